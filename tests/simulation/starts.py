"""Promised starts: no job starts later than promised without an event that really happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from msgspec import UNSET

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts import restored as rf
from orchestrator.core.facts import service as sf
from orchestrator.core.facts.queue import StartMoved, StartPromised
from orchestrator.core.model.grace import stop_grace_s
from orchestrator.core.model.plan import MoveCause as M
from orchestrator.core.model.plan import QueueEvent
from orchestrator.core.model.state import Job, State
from orchestrator.core.scheduling.planned_ends import CLEAN_S, LATER_S, START_S
from tests.simulation.world import Violation, World

_ROUNDING_S = 1e-3
Subject = JobId | NodeName | None


@dataclass
class Promise:
    """The latest start, and the time of the promise, in world time."""

    due: float
    made: float


@dataclass
class Starts:
    """Watches one run: when which job may start at the latest, and what may change that.

    `placed`, `started` and `stopping` are by the clock of the coordinator's process, which counts
    from the arrival of what it judges. `slow` are jobs whose last attempt began too slowly.
    """

    world: World
    promised: dict[JobId, Promise] = field(default_factory=dict)
    happened: dict[tuple[M, Subject], float] = field(default_factory=dict)
    placed: dict[JobId, float] = field(default_factory=dict)
    started: dict[JobId, float] = field(default_factory=dict)
    stopping: dict[JobId, float] = field(default_factory=dict)
    slow: set[JobId] = field(default_factory=set)

    def turned(self, state: State, facts: Sequence[f.Fact], now: Instant) -> None:
        for fact in facts:
            self._note(state, fact, now.mono)
        for fact in facts:
            match fact:
                case StartPromised(job, at):
                    self.world.met["start_promised"] += 1
                    self._promise(job, at, now)
                case StartMoved(job, at, event):
                    self.world.met["start_moved"] += 1
                    self.world.met[f"moved_{event.cause.value}"] += 1
                    self._check_event(state, job, event, now.mono)
                    if at is None:
                        self.promised.pop(job, None)
                    else:
                        self._promise(job, at, now)
                case f.AttemptPlaced(job):
                    self._check_start(state.jobs[job])
                case f.JobHeld(job) | f.JobEnded(job):
                    self.promised.pop(job, None)
                case _:
                    pass

    def restarted(self) -> None:
        """Forget all promises: a new process makes them anew, because of its restart."""
        self.promised.clear()
        # A process learns from the agents how long they have run; until then it plans anew.
        self.slow.update(self.placed)

    def _promise(self, job: JobId, at: float, now: Instant) -> None:
        due = self.world.now + at - now.wall
        self.promised[job] = Promise(due, self.world.now)

    def _check_start(self, job: Job) -> None:
        promise = self.promised.pop(job.id, None)
        if promise is None:
            return
        self.world.judged["promise"] += 1
        if self.world.now > promise.due + LATER_S + _ROUNDING_S:
            late_s = self.world.now - promise.due
            self.fail(f"job {job.id} starts {late_s:.1f} s too late, and no event says why")

    def _note(self, state: State, fact: f.Fact, mono: float) -> None:
        now = self.world.now
        match fact:
            case lf.NodeGivenUp(node) | rf.NodeDeclaredLost(node) | sf.NodeRemoved(node):
                self.happened[M.NODE_LOST, node] = now
            case lf.NodeDisconnected(node):
                self.happened[M.UNREACHABLE, node] = now
            case sf.NodeDrained(node):
                self.happened[M.DRAIN, node] = self.happened[M.QUARANTINE, node] = now
            case sf.NodeResumed(node):
                self.happened[M.RESUME, node] = now
            case cf.NodeRegistered(node) | lf.NodeDescribed(node):
                self.happened[M.NODE_CHANGED, node] = now
            case cf.EpochStarted():
                self.happened[M.RESTART, None] = now
                for name in state.nodes:
                    self.happened[M.UNREACHABLE, name] = now
            case f.JobRequeued(job):
                self.happened[M.RETRY, job] = now
            case f.JobSubmitted(job):
                self.happened[M.PRIORITY, job] = now
            case f.JobReleased(job):
                self.happened[M.RELEASE, job] = now
            case f.JobChanged(job):
                self.happened[M.SET, job] = now
                if fact.time_limit_s is not UNSET:
                    self.happened[M.LIMIT, job] = now
            case f.CancelRequested(job):
                self.happened[M.SET, job] = now
            case f.AttemptPlaced(job):
                self.placed[job] = mono
                self.started.pop(job, None)
                self.stopping.pop(job, None)
            case f.RunTimed(job):
                if job not in self.started:
                    self.started[job] = mono
                    if mono - self.placed.get(job, mono) > START_S - 1:
                        self.slow.add(job)
            case f.StopRequested(job):
                self.stopping[job] = mono
            case _:
                pass

    def _check_event(self, state: State, job: JobId, event: QueueEvent, mono: float) -> None:
        self.world.judged["moved"] += 1
        promise = self.promised.get(job)
        if event.cause is M.OVERRUN:
            assert event.job is not None
            if not self._overran(state.jobs[event.job], mono):
                self.fail(f"job {job} is delayed by job {event.job}, which is not late")
            return
        subject: Subject = event.node if event.node is not None else event.job
        at = self.happened.get((event.cause, subject))
        if event.cause is M.UNREACHABLE and event.node is not None:
            node = state.nodes[event.node]
            at = at if node.session is not None else self.world.now
        if at is None or (promise is not None and at < promise.made - _ROUNDING_S):
            self.fail(f"job {job} is delayed by {event}, which did not happen since")

    def _overran(self, job: Job, now: float) -> bool:
        if job.id in self.slow or now - self.placed.get(job.id, now) > START_S - 1:
            limit_s, since = job.spec.time_limit_s, self.started.get(job.id)
            if since is None or job.id in self.slow or limit_s is None:
                return True
            if now >= since + limit_s + job.spec.stop.grace_s:
                return True
        since, attempt = self.stopping.get(job.id), job.current
        if since is None or attempt is None:
            return False
        limit_s, started = job.spec.time_limit_s, self.started.get(job.id)
        if limit_s is not None and started is not None and since > started + limit_s + LATER_S:
            return True  # the report of the end of the limit came late
        return now >= since + (stop_grace_s(job, attempt) or 0.0) + CLEAN_S - 1

    def fail(self, text: str) -> NoReturn:
        raise Violation(f"promise: {text}")
