"""Nodes in and out of service: apply the facts about them, and describe drains in words."""

from __future__ import annotations

from typing import Final, assert_never

from msgspec.structs import replace

from muster.protocol.instant import Instant
from orchestrator.core.facts import service as sf
from orchestrator.core.model.node import Drain, Fault, rounded_down
from orchestrator.core.model.state import State

HARDWARE_KEPT: Final = 16
FAULTS_KEPT: Final = 16


def apply_service(state: State, fact: sf.OfService, at: float) -> None:
    if isinstance(fact, sf.NodeRemoved):
        # A node that has joined but never connected exists only in `enrolment`.
        state.nodes.pop(fact.node, None)
        state.enrolment.put(fact.node, None)
        return
    node = state.nodes[fact.node]
    match fact:
        case sf.NodeDrained(_, user, reason, deadline_s, jobs, after, left_by):
            node.drains += 1
            node.drain = Drain(
                user, reason, at, node.drains, deadline_s, deadline_s, at, jobs, after, left_by
            )
            node.spared = ""
        case sf.DrainTimed(_, left_s):
            if node.drain is not None:
                node.drain = replace(node.drain, left_s=left_s, left_at=at)
        case sf.NodeResumed():
            node.drain, node.spared, node.hardware = None, "", ()
            node.hardware_skipped = 0
            node.faults, node.faults_gone, node.lives = (), 0, ()
        case sf.NodeFaultRecorded(_, job, attempt, text):
            faults = (*node.faults, Fault(job, attempt, text))
            node.faults_gone += len(faults[:-FAULTS_KEPT])
            node.faults = faults[-FAULTS_KEPT:]
            # Judge the node again. Until then, it counts as about to be quarantined.
            node.spared = ""
        case sf.NodeFaultsDecayed(_, forgets):
            kept = node.faults[forgets:]
            node.faults = tuple(replace(fault, since=fault.since + 1) for fault in kept)
            if forgets:
                # Faults that are only counted are older still, so forget them, too.
                node.spared, node.faults_gone = "", 0
        case sf.QuarantineSkipped(_, reason):
            node.spared = reason
        case sf.HardwareReported(_, event):
            node.hardware = (*node.hardware, (at, event))[-HARDWARE_KEPT:]
            node.hardware_heard = (event.boot, event.number)
        case _:
            assert_never(fact)


def deadline_text(drain: Drain, now: Instant) -> str:
    """The time that running jobs still have, in words; "" if they may continue."""
    left_s = deadline_left_s(drain, now)
    if left_s is None:
        return "running jobs leave after their next checkpoint" if drain.after_checkpoint else ""
    return (
        f"ends running jobs in {rounded_down(left_s)}" if left_s else "running jobs are being ended"
    )


def deadline_left_s(drain: Drain, now: Instant) -> float | None:
    """The rest of the deadline by the wall clock, for display only."""
    if drain.left_s is None or drain.left_s <= 0:
        return drain.left_s
    return min(drain.left_s, max(0.0, drain.left_at + drain.left_s - now.wall))
