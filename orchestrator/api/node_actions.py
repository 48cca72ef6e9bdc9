"""Routes that change a node: drain, resume, remove and lost."""

from aiohttp import web

from muster.http.node_actions import (
    DrainRequest,
    LostAnswer,
    LostRequest,
    NodeAnswer,
    RemoveRequest,
    ResumeRequest,
)
from muster.http.views import NodeView
from muster.protocol.ids import NodeName
from orchestrator.api.http.access import TOKEN
from orchestrator.api.http.problems import bad_field
from orchestrator.api.http.request_parsing import struct_body
from orchestrator.api.http.responses import reply
from orchestrator.api.jobs import declined
from orchestrator.api.nodes import unknown_node
from orchestrator.core.facts.effects import UNKNOWN_NODE, Declined, NodeServiceChanged, Result
from orchestrator.core.facts.inputs import (
    DrainReceived,
    LostReceived,
    RemoveReceived,
    ResumeReceived,
)
from orchestrator.core.views.display import node_seen
from orchestrator.core.views.joined import joined_seen
from orchestrator.shell.coordinator import Coordinator


class NodeActionsApi:
    """Routes below /v1/nodes/{id} that change a node."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def drain(self, request: web.Request) -> web.Response:
        """Drain the node: `{"reason": "bad DIMM", "deadline_s": 7200}`."""
        name, user = NodeName(request.match_info["id"]), request[TOKEN].user
        asked = await struct_body(request, DrainRequest)
        reason = " ".join(asked.reason.split())
        if not reason:
            raise bad_field(
                "reason", "is empty: give a reason, for those who find the node drained"
            )
        if asked.now and asked.after_checkpoint:
            raise bad_field("now", "and after_checkpoint exclude each other: give one")
        if asked.now and asked.deadline_s is not None:
            raise bad_field("now", "and deadline_s exclude each other: give one")
        deadline_s = 0.0 if asked.now else asked.deadline_s
        result = await self._coordinator.request(
            lambda rid: DrainReceived(rid, name, user, reason, deadline_s, asked.after_checkpoint)
        )
        return await self._answer(name, result)

    async def resume(self, request: web.Request) -> web.Response:
        """Resume the node; `{"check": false}` skips the check."""
        name, user = NodeName(request.match_info["id"]), request[TOKEN].user
        asked = await struct_body(request, ResumeRequest)
        result = await self._coordinator.request(
            lambda rid: ResumeReceived(rid, name, user, asked.check)
        )
        return await self._answer(name, result)

    async def remove(self, request: web.Request) -> web.Response:
        """Remove a node that is gone. Returns its last known state."""
        name, user = NodeName(request.match_info["id"]), request[TOKEN].user
        await struct_body(request, RemoveRequest)
        view = await self._view(name)
        result = await self._coordinator.request(lambda rid: RemoveReceived(rid, name, user))
        if isinstance(result, NodeServiceChanged):
            return reply(NodeAnswer(view, changed=True))
        return await self._answer(name, result)

    async def lost(self, request: web.Request) -> web.Response:
        """Declare a node lost that is not connected."""
        name, user = NodeName(request.match_info["id"]), request[TOKEN].user
        await struct_body(request, LostRequest)
        result = await self._coordinator.request(lambda rid: LostReceived(rid, name, user))
        if isinstance(result, NodeServiceChanged):
            return reply(LostAnswer(name, result.anything))
        return await self._answer(name, result)

    async def _view(self, name: NodeName) -> NodeView:
        """Return a node. Raises ApiError (404)."""
        state = await self._coordinator.durable_state()
        node = state.nodes.get(name)
        now = self._coordinator.now()
        if node is not None:
            return node_seen(state, node, now)
        if name in state.enrolment.nodes:
            return joined_seen(state, name, now)
        raise unknown_node(name)

    async def _answer(self, name: NodeName, result: Result) -> web.Response:
        match result:
            case NodeServiceChanged(anything=anything):
                return reply(NodeAnswer(await self._view(name), anything))
            case Declined(code=code) if code == UNKNOWN_NODE:
                raise unknown_node(name)
            case Declined():
                raise declined(result)
            case _:
                raise AssertionError(f"a verb of a node was answered with {result}")
