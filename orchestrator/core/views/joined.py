"""Nodes that have joined and never said hello: their installation may have failed."""

from __future__ import annotations

from muster.http import views as h
from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.timestamp import timestamp
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.people import Joined
from orchestrator.core.model.state import State
from orchestrator.core.nodes.enrolment import certificate_warnings, never_connected


def listed_names(state: State) -> list[NodeName]:
    """Return the names of all nodes, with those that have joined and never said hello."""
    return [*state.nodes, *never_connected(state)]


def joined_seen(state: State, name: NodeName, now: Instant) -> h.NodeView:
    """Return a node of which only its join is known."""
    joined = state.enrolment.nodes[name]
    warnings = certificate_warnings(state.enrolment, name, now.wall)
    found = _state(name, joined)
    return h.NodeView(
        name=name,
        link=LinkState.OFFLINE.value,
        state=h.Reason(found.code, "; ".join((found.text, *warnings))),
        address=joined.origin,
        pool="",
        gpus=0,
        gpu_model="",
        cpus=0,
        memory_bytes=0,
        labels={},
        job=None,
        attempt=None,
        last_seen_s=None,
        version="",
        warnings=warnings,
    )


def _state(name: NodeName, joined: Joined) -> h.Reason:
    forget = f"to forget it: muster node remove {name}"
    if joined.revoked:
        back = f"to take it back: muster join, then muster node accept {name}"
        return h.Reason("revoked", f"revoked, and never connected; {back}; {forget}")
    since = f"{timestamp(joined.since):%Y-%m-%d %H:%M} UTC"
    if joined.current is None:
        # A warning says for whom it waits.
        return h.Reason("waits", f"joined at {since}, not accepted yet")
    why = f"refused: {joined.refused}" if joined.refused else _ADVICE
    text = f"joined at {since} from {joined.origin or 'an unknown address'}, not connected since"
    return h.Reason("joined", f"{text}; {why}; {forget}")


_ADVICE = (
    "look there at systemctl status muster-agent and at what muster doctor says; nodes must reach "
    "the port of agents"
)
