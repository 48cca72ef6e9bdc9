"""What the coordinator calls lost, gives up and takes out of service, judged without its cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from muster.protocol.hardware import Grade
from muster.protocol.ids import JobId, NodeName
from muster.protocol.outcome import CauseCode
from orchestrator.core import facts as f
from orchestrator.core import service_facts as sf
from orchestrator.core.node import LinkState
from orchestrator.core.state import State

if TYPE_CHECKING:
    from tests.simulation.checkers import Checkers
    from tests.simulation.coordinator import Coordinator

_MOST: Final = 0.55
_ROUNDS: Final = 2
_TRIES: Final = 3


class Judging:
    """Watches one run."""

    def __init__(self, coordinator: Coordinator, checkers: Checkers) -> None:
        self.coordinator = coordinator
        self.checkers = checkers
        checkers.watchers.append(self._turned)

    def _turned(self, state: State, facts: list[f.Fact]) -> None:
        for fact in facts:
            match fact:
                case f.NodeLeaseExpired(node):
                    self._check_brake(state, node)
                case f.RetryScheduled(job):
                    self._check_progress(state, job)
                case sf.HardwareReported(node, event):
                    self._check_hardware(state, node, critical=event.grade is Grade.CRITICAL)
                case _:
                    pass

    def _check_brake(self, state: State, name: NodeName) -> None:
        """Nothing is lost while most agents are away that fell silent at once."""
        limits, brake = self.coordinator.limits, state.brake
        if not limits.brake_s:
            return
        if brake is not None:
            if self.coordinator.mono < brake.at + brake.lasts_s - 1.0:
                self.checkers.fail(f"brake: {name} is called lost while it is on")
            return
        node = state.nodes[name]
        away = [n for n in state.nodes.values() if n.link is LinkState.SUSPECT or n is node]
        window_s = _ROUNDS * limits.silence_s
        gone = sum(abs(other.heard_at - node.heard_at) <= window_s for other in away)
        there = len(away) + sum(n.link is LinkState.CONNECTED for n in state.nodes.values())
        if gone > 1 and gone > _MOST * there:
            self.checkers.fail(f"brake: {name} is called lost with {gone} of {there}")

    def _check_progress(self, state: State, name: JobId) -> None:
        """A job that says where its checkpoints are, and writes none, is not tried for ever."""
        job = state.jobs[name]
        ran = [
            attempt
            for attempt in job.attempts
            if attempt.started_at is not None
            and (attempt.cause is None or attempt.cause.code is not CauseCode.DRAINED)
        ]
        last = ran[-_TRIES:]
        if job.spec.checkpoint_dir is None or len(last) < _TRIES:
            return
        if not any(task.checkpoint for attempt in last for task in attempt.tasks):
            self.checkers.fail(f"progress: job {name} is tried again after {_TRIES} in vain")

    def _check_hardware(self, state: State, name: NodeName, *, critical: bool) -> None:
        node = state.nodes[name]
        if critical and node.drain is None:
            self.checkers.fail(f"hardware: {name} has failed and gets jobs")
        heard = [(event.boot, event.number) for _, event in node.hardware]
        if len(set(heard)) < len(heard):
            self.checkers.fail(f"hardware: {name} has reported {heard}, some of it twice")
