"""Hardware of a node as last probed, and a check of the node against others."""

import asyncio
import secrets

from aiohttp import web
from msgspec.structs import replace

from muster.check.job import check_job
from muster.check.networks import networks_of
from muster.http.node_probe import CheckRequest
from muster.http.views import NodeView
from muster.protocol.ids import JobId, NodeName
from muster.spec.errors import SpecError
from muster.spec.model import JobSpec
from muster.spec.parse import parse_document
from muster.spec.pool_defaults import fill_in
from muster.spec.yaml.loader import Document
from orchestrator.api.http.access import FOREIGN, TOKEN, AccessTable
from orchestrator.api.http.job_body import spec_problem
from orchestrator.api.http.preconditions import idempotency_key, request_digest
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.request_parsing import struct_body
from orchestrator.api.http.responses import reply
from orchestrator.api.http.submit_policy import SubmitRules
from orchestrator.api.jobs import JobsApi
from orchestrator.api.nodes import unknown_node
from orchestrator.core.rights.rules import Action
from orchestrator.core.scheduling.reasons import NO_TORCH
from orchestrator.core.views.display import node_seen
from orchestrator.core.views.gpus import without_processes
from orchestrator.core.views.probe import probe_view, without_software
from orchestrator.shell.coordinator import Coordinator

# A check needs no torch.
_FREE = ("free", NO_TORCH)


class NodeCheckApi:
    """/v1/nodes/{id}/probe and /check."""

    def __init__(
        self, coordinator: Coordinator, access: AccessTable, jobs: JobsApi, rules: SubmitRules
    ) -> None:
        self._coordinator = coordinator
        self._access = access
        self._jobs = jobs
        self._rules = rules

    async def probe(self, request: web.Request) -> web.Response:
        """Return the agent's last probe report. The node is not contacted."""
        name = NodeName(request.match_info["id"])
        state = await self._coordinator.durable_state()
        node = state.nodes.get(name)
        if node is None:
            raise unknown_node(name)
        if not self._access.allows(request, Action.READ_JOB, ""):
            node = without_processes(node)
        view = probe_view(state, node, self._coordinator.now())
        fabric = view.fabric
        if fabric is not None:
            owner = state.jobs[JobId(fabric.job)].user
            if not self._access.allows(request, Action.READ_JOB, owner):
                view = replace(view, fabric=without_software(fabric))
            elif owner != request[TOKEN].user:
                request[FOREIGN] = owner
        return reply(view)

    async def check(self, request: web.Request) -> web.Response:
        """Submit a job that checks this node with free nodes of its pool. Its log has the
        results.
        """
        self._jobs.check_rate(request)
        name = NodeName(request.match_info["id"])
        key = idempotency_key(request)
        asked = await struct_body(request, CheckRequest)
        # Digest of the caller's request only, because the job contains varying parts.
        digest = request_digest(asked, f"check {name}")
        # On a repeated request, the checked node is no longer free. That is no reason to refuse it.
        before = await self._jobs.replayed_response(request, key, digest)
        if before is not None:
            return before
        state, now = await self._coordinator.durable_state(), self._coordinator.now()
        if name not in state.nodes:
            raise unknown_node(name)
        views = [node_seen(state, node, now) for node in state.nodes.values()]
        (this,) = (view for view in views if view.name == name)
        if this.state.code not in _FREE:
            raise ApiError(
                409,
                "node_not_free",
                f"{name} cannot be checked now: {this.state.text}",
                "check it once it is free, or submit a check that waits: muster check --wait",
            )
        others = [v for v in views if v.name != name and v.pool == this.pool]
        chosen = [this, *(view for view in others if view.state.code in _FREE)]
        # The program of a check is read from files, so use a thread.
        spec = await asyncio.to_thread(self._job, chosen, asked)
        return await self._jobs.submit_spec(request, key, spec, digest)

    def _job(self, nodes: list[NodeView], asked: CheckRequest) -> JobSpec:
        mapping = check_job(
            [node.name for node in nodes],
            networks_of(nodes),
            size=asked.mib << 20,
            timeout_s=asked.timeout_s,
            key=secrets.token_hex(8),
            pool=nodes[0].pool,
            python=asked.python,
        )
        try:
            document, _ = fill_in(Document(mapping), self._rules.defaults)
            return parse_document(document)
        except SpecError as error:
            raise spec_problem(error) from error
