"""Lost nodes, tasks given up and nodes taken out of service, judged without the cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from muster.protocol.ids import JobId, NodeName
from muster.protocol.observations.hardware_events import Grade, HardwareEvent
from muster.protocol.outcome import Cause, CauseCode
from orchestrator.core.facts import hangs as hf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.state import State
from orchestrator.core.model.task import OVER

if TYPE_CHECKING:
    from tests.simulation.checkers import Checkers
    from tests.simulation.coordinator import Coordinator

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
                case f.TaskLost():
                    self._check_over(state, fact)
                case f.StopRequested(job, number, cause) if cause.code is CauseCode.HARDWARE:
                    self._check_blamed(state, job, number, cause)
                case hf.HangJudged():
                    self.checkers.world.met["hang_judged"] += 1
                case f.RetryScheduled(job):
                    self._check_progress(state, job)
                case sf.HardwareReported(node, event):
                    self._check_hardware(state, node, critical=event.grade is Grade.CRITICAL)
                    if event.code.startswith("xid "):
                        self._check_gpu(state, node, event)
                case _:
                    pass

    def _check_over(self, state: State, lost: f.TaskLost) -> None:
        """A task counts as over only once nothing of it can compute any more."""
        proof = "no proof" if lost.proof is None else lost.proof.value
        self.checkers.world.met[f"over_{proof}"] += 1
        task = state.jobs[lost.job].attempt(lost.attempt).tasks[lost.rank]
        shim = self.checkers.ground.on_node.get(task.node, {}).get(task.id)
        if shim is not None and shim.running and not shim.doomed:
            self.checkers.fail(f"I3: {task.id} counts as over by {proof}, and runs on {task.node}")

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

    def _check_gpu(self, state: State, name: NodeName, event: HardwareEvent) -> None:
        """Check a failed GPU, at once: the attempt that has it ends, or goes on without that node;
        the others go on. A GPU event that is only shown ends nothing."""
        for (job, number), share in state.nodes[name].holders.items():
            attempt = state.jobs[job].attempt(number)
            runs = attempt.phase not in (AttemptPhase.STOPPING, AttemptPhase.CLOSED)
            there = any(task.node == name and task.state not in OVER for task in attempt.present)
            has = event.uuid in share.gpus or (share.whole and not share.gpus)
            if event.grade is Grade.CRITICAL and has and runs and there:
                self.checkers.fail(f"hardware: {event.text} of {name}, and job {job} goes on")

    def _check_blamed(self, state: State, job: JobId, number: int, cause: Cause) -> None:
        """Nobody ends for a GPU that another has, or that is none of the critical."""
        self.checkers.world.met["hardware_ended_attempt"] += 1
        assert cause.node is not None
        node = state.nodes[NodeName(cause.node)]
        share = node.holders.get((job, number))
        if share is None:
            return
        said = [event for _, event in node.hardware if event.text in cause.text]
        wrong = [
            event
            for event in said
            if event.grade is not Grade.CRITICAL
            or not (event.uuid in share.gpus or (share.whole and not share.gpus))
        ]
        if not said or wrong:
            self.checkers.fail(f"hardware: job {job} ends, {cause.text}, of {wrong}")
