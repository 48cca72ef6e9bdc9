"""Trial of a labelled trace with the real rules: each rank's baseline in the agent's core, and the
coordinator's core with its timers and stack dumps. Time is virtual.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from agent.core.activity_baseline import ActivityBaseline, ActivitySample, signature
from benchmarks.hangs.traces import Case, Moment
from muster.protocol.ids import JobId, NodeName, SessionId, TaskId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    DumpStacks,
    Heartbeat,
    Hello,
    Inventory,
    NodeObservations,
    Prepared,
    Report,
    StacksReport,
    TaskReport,
)
from muster.protocol.observations.hangs import (
    Doing,
    HangVerdict,
    RankActivity,
    RankStacks,
    Sign,
    ThreadStack,
)
from muster.protocol.observations.tasks import TaskObservations
from muster.protocol.states import TaskState
from muster.spec.model import Argv, JobSpec, Launcher
from orchestrator.core.engine.turn import turn
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import hangs as hf
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import State

PERIOD_S: Final = 5.0
ANSWER_S: Final = 0.5
SLICES: Final = 9
"""Samples between two steps; no step is a multiple of it."""
_PREPARED: Final = Prepared("10.0.0.1", (20000, 20001), 0, "/l", "/w", "/s", "/o", "/h")


@dataclass(frozen=True, slots=True)
class Reported:
    """A verdict and its time. `hung` is one for which a job would be restarted."""

    at: float
    verdict: HangVerdict


@dataclass(slots=True)
class Trial:
    """A job on one or two nodes."""

    case: Case
    stacks: bool = True
    state: State = field(default_factory=State)
    limits: Limits = field(default_factory=Limits)
    now: float = 0.0
    reported: list[Reported] = field(default_factory=list)
    _timers: dict[a.Timer, float] = field(default_factory=dict)
    _due: list[tuple[float, NodeName, DumpStacks]] = field(default_factory=list)
    _homes: dict[TaskId, range] = field(default_factory=dict)
    _said: dict[TaskId, object] = field(default_factory=dict)
    _cadences: list[ActivityBaseline] = field(default_factory=list)
    _gone: dict[int, float] = field(default_factory=dict)
    _away: set[NodeName] = field(default_factory=set)
    _sessions: int = 0

    def run(self) -> list[Reported]:
        """Run the case to its end."""
        self._begin()
        case = self.case
        while self.now < case.seconds:
            self._pass(self.now + PERIOD_S)
            moments = [case.course(rank, self.now) for rank in range(case.ranks)]
            if not moments[0].paused:
                self._look(moments)
        return self.reported

    def _begin(self) -> None:
        case = self.case
        nodes = 1 if case.ranks == 1 else 2
        each = case.ranks // nodes
        self._turn(s.CoordinatorStarted(1, "here"))
        names = [NodeName(f"n{number}") for number in range(nodes)]
        for name in names:
            self._connect(name, ())
        spec = JobSpec(
            name="trace",
            run=Argv(("train.py",)),
            nodes=nodes,
            nproc_per_node=each,
            launcher=Launcher.PROCESSES,
        )
        self._turn(s.SubmitReceived(a.RequestId(1), spec, "ada"))
        tasks = self.state.jobs[JobId(1)].attempts[0].tasks
        for state in (TaskState.PREPARED, TaskState.ARRANGED, TaskState.STARTED):
            for task in tasks:
                self._hear(task.node, TaskReport(task.id, state, prepared=_PREPARED))
        for number, task in enumerate(tasks):
            self._homes[task.id] = range(number * each, (number + 1) * each)
        self._cadences = [ActivityBaseline(rank, PERIOD_S, 0.0) for rank in range(case.ranks)]

    def _connect(self, name: NodeName, tasks: tuple[TaskReport, ...]) -> None:
        self._sessions += 1
        inventory = Inventory(address="10.0.0.1", machine_id=name, python="python3", cpus=64)
        hello = Hello(
            name,
            f"id-{name}",
            f"boot-{name}",
            "0.1.0",
            NodeObservations(inventory),
            tasks,
            protocol_max=PROTOCOL_MAX,
        )
        self._turn(s.HelloReceived(SessionId(self._sessions), hello, "127.0.0.1"))

    def _look(self, moments: list[Moment]) -> None:
        for cadence, moment in zip(self._cadences, moments, strict=True):
            if moment.gone:
                self._gone.setdefault(cadence.rank, self.now)
                continue
            since = self.now - cadence.seen_at
            slices = [
                self.case.course(cadence.rank, self.now - since * (part + 0.5) / SLICES)
                for part in range(SLICES)
            ]
            span = since / SLICES
            moved = {
                Sign.LOG: int(sum(one.log for one in slices) * span),
                Sign.NETWORK: int(sum(one.network for one in slices) * span),
                Sign.HCA: int(sum(one.hca for one in slices) * span),
                Sign.DISK: int(sum(one.disk for one in slices) * span),
            }
            cpu_s = sum(one.cpu for one in slices) * span
            cadence.take(ActivitySample(self.now, moved, cpu_s, moment.doing, moment.where))
        for task, ranks in self._homes.items():
            name = self._node(task)
            unseen = moments[ranks[0]].unseen
            if unseen and name not in self._away:
                self._away.add(name)
                session = self.state.nodes[name].session
                assert session is not None
                self._turn(s.SessionEnded(session))
            if unseen:
                continue
            activity = self._activity(task)
            report = TaskReport(
                task,
                TaskState.STARTED,
                prepared=_PREPARED,
                running_s=self.now,
                observed=TaskObservations(activity=activity),
            )
            if name in self._away:
                self._away.discard(name)
                self._connect(name, (report,))
            self._hear(name, Heartbeat(self.now))
            news = tuple(signature(rank) for rank in activity)
            if news != self._said.get(task):
                self._said[task] = news
                self._hear(name, report)

    def _activity(self, task: TaskId) -> tuple[RankActivity, ...]:
        return tuple(self._of_rank(rank) for rank in self._homes[task])

    def _of_rank(self, rank: int) -> RankActivity:
        if rank in self._gone:
            age = self.now - self._gone[rank]
            return RankActivity(rank, still_s=age, idle_s=age, doing=Doing.GONE)
        cadence = self._cadences[rank]
        return cadence.activity().later(self.now - cadence.seen_at)

    def _answer(self, name: NodeName, look: DumpStacks) -> None:
        if name in self._away:
            return
        ranks = tuple(
            RankStacks(rank, 1000 + rank, (ThreadStack("MainThread", moment.stack),))
            for rank in self._homes[look.task]
            for moment in (self.case.course(rank, self.now),)
            if not moment.gone
        )
        found = StacksReport(
            look.task,
            look.epoch,
            look.number,
            ranks if self.stacks else (),
            self._activity(look.task),
            problem="" if self.stacks else "py-spy is not installed on this node",
        )
        self._hear(name, found)

    def _node(self, task: TaskId) -> NodeName:
        found = self.state.task(task)
        assert found is not None
        return found.node

    def _hear(self, name: NodeName, report: Report) -> None:
        session = self.state.nodes[name].session
        if session is not None and not isinstance(report, Hello):
            self._turn(s.ReportReceived(session, report))

    def _pass(self, until: float) -> None:
        """Fire the timers that become due, in order."""
        while True:
            timers = [(at, 0, timer) for timer, at in self._timers.items() if at <= until]
            looks = [(at, 1, (name, look)) for at, name, look in self._due if at <= until]
            if not timers and not looks:
                break
            first_timer = min(timers, key=lambda it: it[0], default=None)
            first_look = min(looks, key=lambda it: it[0], default=None)
            if first_look is None or (first_timer is not None and first_timer[0] < first_look[0]):
                assert first_timer is not None
                del self._timers[first_timer[2]]
                self.now = max(self.now, first_timer[0])
                self._turn(s.TimerFired(first_timer[2]))
            else:
                name, look = first_look[2]
                self._due.remove((first_look[0], name, look))
                self.now = max(self.now, first_look[0])
                self._answer(name, look)
        self.now = until

    def _turn(self, received: s.Input) -> None:
        done = turn(self.state, received, Instant(self.now, 1.7e9 + self.now), self.limits)
        for fact in done.facts:
            if isinstance(fact, hf.HangJudged):
                self.reported.append(Reported(self.now, fact.verdict))
        for action in done.effects:
            match action:
                case a.SetTimer(timer, at):
                    self._timers[timer] = at
                case a.Send(node, _, DumpStacks() as look):
                    self._due.append((self.now + ANSWER_S, node, look))
                case _:
                    pass
