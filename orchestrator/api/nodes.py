"""Node routes, and the coordinator's version and health."""

from bisect import bisect_right
from typing import Final

from aiohttp import web

from muster.fabric.natural_sort import natural
from muster.http.views import NodeList, VersionView
from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import PROTOCOL_MAX, PROTOCOL_MIN
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.connection_limits import no_descriptors
from orchestrator.api.http.pagination import make_cursor, read_cursor
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.query_params import NodesQuery
from orchestrator.api.http.request_parsing import read_query, shown
from orchestrator.api.http.responses import reply
from orchestrator.api.http.tokens import TokenStore
from orchestrator.core.engine.decide import VERSION
from orchestrator.core.facts.effects import UNKNOWN_NODE
from orchestrator.core.scheduling.restore_hold import silent_nodes, why_held
from orchestrator.core.views.display import node_seen
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.fd_limits import shortage

_NODES: Final = "nodes"


def unknown_node(name: str) -> ApiError:
    return ApiError(
        404,
        UNKNOWN_NODE,
        f"there is no node {shown(name)}",
        "list the nodes: muster nodes (GET /v1/nodes)",
    )


def _place(name: str) -> tuple[object, str]:
    """Sort key in natural order; n1 and n01 are different nodes."""
    return natural(name), name


class NodesApi:
    """Routes /v1/nodes, /v1/version and the two health checks."""

    def __init__(self, coordinator: Coordinator, tokens: TokenStore) -> None:
        self._coordinator = coordinator
        self._tokens = tokens

    async def nodes(self, request: web.Request) -> web.Response:
        query = read_query(request, NodesQuery)
        behind = None if query.cursor is None else _place(read_cursor(_NODES, query.cursor))
        state = await self._coordinator.settled()
        now = self._coordinator.now()
        names = sorted(state.nodes, key=_place)
        begin = 0 if behind is None else bisect_right(names, behind, key=_place)
        page = names[begin : begin + query.limit]
        more = len(names) > begin + query.limit
        limits = self._coordinator.limits
        views = tuple(node_seen(state, state.nodes[name], now, limits) for name in page)
        cursor = make_cursor(_NODES, page[-1]) if more else None
        return reply(NodeList(views, cursor, tuple(silent_nodes(state)), why_held(state)))

    async def node(self, request: web.Request) -> web.Response:
        name = NodeName(request.match_info["id"])
        state = await self._coordinator.settled()
        node = state.nodes.get(name)
        if node is None:
            raise unknown_node(name)
        return reply(node_seen(state, node, self._coordinator.now(), self._coordinator.limits))

    async def version(self, request: web.Request) -> web.Response:
        state = await self._coordinator.settled()
        token = self._tokens.current(request[TOKEN])
        return reply(
            VersionView(
                version=VERSION,
                protocol_min=PROTOCOL_MIN,
                protocol_max=PROTOCOL_MAX,
                epoch=state.epoch,
                user=token.user,
                role=token.user_role.value if token.user_role else "",
                teams=tuple(sorted(token.teams)),
                address=request.remote or "",
            )
        )

    async def healthz(self, _request: web.Request) -> web.Response:
        """Liveness check: the process answers."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """Readiness check: the state is loaded and requests are accepted."""
        if self._coordinator.changes.closed:
            raise ApiError(503, "stopping", "the coordinator is stopping")
        if shortage():
            raise no_descriptors()
        return web.Response(text="ready\n")
