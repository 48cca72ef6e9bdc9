"""Node routes, and the coordinator's version and health."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from aiohttp import web
from msgspec.structs import replace

from muster.fabric.natural_sort import natural
from muster.http.views import NodeList, NodeView, VersionView
from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import PROTOCOL_MAX, PROTOCOL_MIN
from muster.protocol.observations.hardware_events import OOM
from orchestrator.api.http.access import TOKEN, AccessTable
from orchestrator.api.http.connection_limits import no_descriptors
from orchestrator.api.http.job_owners import JobOwners
from orchestrator.api.http.pagination import make_cursor, read_cursor
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.query_params import NodesQuery
from orchestrator.api.http.request_parsing import read_query, shown
from orchestrator.api.http.responses import reply
from orchestrator.api.http.submit_policy import SubmitRules
from orchestrator.api.http.tokens import TokenStore
from orchestrator.certificate_ends import CertificateEnds
from orchestrator.core.engine.decide import VERSION
from orchestrator.core.facts.effects import UNKNOWN_NODE
from orchestrator.core.model.state import State
from orchestrator.core.nodes.hardware import job_of
from orchestrator.core.rights.rules import Action
from orchestrator.core.scheduling.restore_hold import silent_nodes, why_held
from orchestrator.core.views.display import node_seen
from orchestrator.core.views.gpus import without_processes
from orchestrator.core.views.joined import joined_seen, listed_names
from orchestrator.shell.bundles.store import BundleLimits
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.fd_limits import shortage

_NODES: Final = "nodes"
_KILLED: Final = "the memory ran out: the kernel killed a process"


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


def without_others_words(
    view: NodeView, mine: Collection[int], kills: Collection[tuple[str, int | None]] = ()
) -> NodeView:
    """Return the node without the texts of faults that quote jobs other than `mine`, and without
    the names in `kills`: texts of kills for lack of memory, with their jobs.
    """
    faults = tuple(it if it.job in mine else replace(it, text="") for it in view.faults)
    hidden = {text for text, job in kills if job not in mine}
    hardware = tuple(replace(it, text=_KILLED) if it.text in hidden else it for it in view.hardware)
    return replace(view, faults=faults, hardware=hardware)


class NodesApi:
    """Routes /v1/nodes, /v1/version and the two health checks."""

    def __init__(
        self,
        coordinator: Coordinator,
        tokens: TokenStore,
        access: AccessTable,
        owners: JobOwners,
        rules: SubmitRules,
        code: BundleLimits,
        certificates: CertificateEnds,
    ) -> None:
        self._coordinator = coordinator
        self._access = access
        self._owners = owners
        self._tokens = tokens
        self._workdirs = rules.workdirs()
        self._code_bytes_max = code.bundle_bytes
        self._certificates = certificates

    async def nodes(self, request: web.Request) -> web.Response:
        query = read_query(request, NodesQuery)
        behind = None if query.cursor is None else _place(read_cursor(_NODES, query.cursor))
        state = await self._coordinator.durable_state()
        names = sorted(listed_names(state), key=_place)
        begin = 0 if behind is None else bisect_right(names, behind, key=_place)
        page = names[begin : begin + query.limit]
        more = len(names) > begin + query.limit
        views = await self._shown(request, state, page)
        awaited, held = tuple(silent_nodes(state)), why_held(state)
        cursor = make_cursor(_NODES, page[-1]) if more else None
        warnings = self._certificates.warnings()
        return reply(NodeList(views, cursor, awaited, held, warnings))

    async def node(self, request: web.Request) -> web.Response:
        name = NodeName(request.match_info["id"])
        state = await self._coordinator.durable_state()
        if name not in state.nodes and name not in state.enrolment.nodes:
            raise unknown_node(name)
        (shown,) = await self._shown(request, state, [name])
        return reply(shown)

    async def _shown(
        self, request: web.Request, state: State, names: Sequence[NodeName]
    ) -> tuple[NodeView, ...]:
        """Leave out what the failures of jobs say that the user may not read, and the processes
        outside all jobs.
        """
        may_read = partial(self._access.allows, request, Action.READ_JOB)
        now = self._coordinator.now()
        nodes = [state.nodes[name] for name in names if name in state.nodes]
        whole = may_read("")

        def seen(name: NodeName) -> NodeView:
            if (node := state.nodes.get(name)) is None:
                return joined_seen(state, name, now)
            return node_seen(state, node if whole else without_processes(node), now)

        views = tuple(map(seen, names))
        if whole:
            return views
        kills = {
            (event.text, job_of(event))
            for node in nodes
            for _, event in node.hardware
            if event.code == OOM
        }
        jobs = {JobId(it.job) for view in views for it in view.faults}
        jobs.update(job for _, job in kills if job is not None)
        owners = await self._owners.of(jobs)
        mine = frozenset(job for job, owner in owners.items() if may_read(owner))
        return tuple(without_others_words(view, mine, kills) for view in views)

    async def version(self, request: web.Request) -> web.Response:
        state = await self._coordinator.durable_state()
        token = request[TOKEN]
        role = self._tokens.role(token)
        return reply(
            VersionView(
                version=VERSION,
                protocol_min=PROTOCOL_MIN,
                protocol_max=PROTOCOL_MAX,
                epoch=state.epoch,
                user=token.user,
                role=role.value if role else "",
                teams=tuple(sorted(self._tokens.teams_of(token.user))),
                address=request.remote or "",
                code_bytes_max=self._code_bytes_max,
                workdirs=self._workdirs,
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
