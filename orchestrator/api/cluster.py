"""Nodes, the coordinator's own version and its health."""

from aiohttp import web

from muster.protocol.http import NodeList, VersionView
from muster.protocol.messages import PROTOCOL_MAX, PROTOCOL_MIN
from orchestrator.api.access import TOKEN
from orchestrator.api.problems import ApiError
from orchestrator.api.reading import Query
from orchestrator.api.responses import reply
from orchestrator.core.decide import VERSION
from orchestrator.core.display import node_view
from orchestrator.shell.coordinator import Coordinator


class ClusterApi:
    """/v1/nodes, /v1/version and the two health checks."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def nodes(self, request: web.Request) -> web.Response:
        Query(request, ())
        state = await self._coordinator.settled()
        now = self._coordinator.now()
        nodes = sorted(state.nodes.values(), key=lambda node: node.name)
        return reply(NodeList(tuple(node_view(node, now) for node in nodes)))

    async def version(self, request: web.Request) -> web.Response:
        Query(request, ())
        state = await self._coordinator.settled()
        token = request[TOKEN]
        return reply(
            VersionView(
                version=VERSION,
                protocol_min=PROTOCOL_MIN,
                protocol_max=PROTOCOL_MAX,
                epoch=state.epoch,
                user=token.user,
                role=token.class_.value,
            )
        )

    async def healthz(self, _request: web.Request) -> web.Response:
        """The process answers; nothing is said about it but that."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """The state is there and requests are taken."""
        if self._coordinator.changes.closed:
            raise ApiError(503, "stopping", "the coordinator is stopping")
        return web.Response(text="ready\n")
