"""Nodes, the coordinator's own version and its health."""

from aiohttp import web

from muster.fabric.order import natural
from muster.protocol.http import NodeList, VersionView
from muster.protocol.ids import NodeName
from muster.protocol.messages import PROTOCOL_MAX, PROTOCOL_MIN
from orchestrator.api.access import TOKEN
from orchestrator.api.guard import no_descriptors
from orchestrator.api.problems import ApiError
from orchestrator.api.reading import shown
from orchestrator.api.responses import reply
from orchestrator.core.actions import UNKNOWN_NODE
from orchestrator.core.decide import VERSION
from orchestrator.core.display import node_view
from orchestrator.core.silence import brake_text
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.descriptors import shortage


def unknown_node(name: str) -> ApiError:
    return ApiError(
        404,
        UNKNOWN_NODE,
        f"there is no node {shown(name)}",
        "list the nodes: muster nodes (GET /v1/nodes)",
    )


class ClusterApi:
    """/v1/nodes, /v1/version and the two health checks."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def nodes(self, _request: web.Request) -> web.Response:
        state = await self._coordinator.settled()
        now = self._coordinator.now()
        nodes = sorted(state.nodes.values(), key=lambda node: natural(node.name))
        brake = brake_text(state)
        return reply(NodeList(tuple(node_view(node, now, brake) for node in nodes)))

    async def node(self, request: web.Request) -> web.Response:
        name = NodeName(request.match_info["id"])
        state = await self._coordinator.settled()
        node = state.nodes.get(name)
        if node is None:
            raise unknown_node(name)
        return reply(node_view(node, self._coordinator.now(), brake_text(state)))

    async def version(self, request: web.Request) -> web.Response:
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
        if shortage():
            raise no_descriptors()
        return web.Response(text="ready\n")
