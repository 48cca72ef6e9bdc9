"""A coordinator's core in virtual time: jobs arrive, gangs run as long as they really take."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.protocol.ids import JobId, TaskId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Inventory, RankReport, with_devices
from muster.protocol.link.terms import Terms
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import Argv, JobSpec, Resources
from orchestrator.core.engine.guarded_turn import guarded_turns
from orchestrator.core.engine.turn import Turn
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.jobs import AttemptPlaced, JobEnded
from orchestrator.core.facts.queue import StartMoved, StartPromised
from orchestrator.core.scheduling.planned_ends import LATER_S
from tests.orchestrator.core.playbook import Cluster, prepared, task_report

GPUS = 8
PASS = a.Timer(a.TimerKind.QUEUE)


class Wanted(NamedTuple):
    """A job of a workload: it arrives at `at` seconds and runs for `runs_s`."""

    at: float
    runs_s: float
    limit_s: float
    nodes: int
    gpus: int  # of each node; 0 for whole nodes
    priority: int = 50


class Done(NamedTuple):
    """A job that has ended, and when it began."""

    wanted: Wanted
    began: float
    ended: float


@dataclass
class Replay(Cluster):
    """`turns` are the seconds of each turn that looked at the queues, for each event. `promised`
    are the newest promised starts, `late` the jobs that started later.
    """

    queued: list[tuple[float, int, Wanted | JobId]] = field(default_factory=list)
    wanted: dict[JobId, Wanted] = field(default_factory=dict)
    began: dict[JobId, float] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    promised: dict[JobId, float | None] = field(default_factory=dict)
    moved: list[StartMoved] = field(default_factory=list)
    late: list[JobId] = field(default_factory=list)
    turns: list[list[float]] = field(default_factory=list)

    placed: list[JobId] = field(default_factory=list)
    _number: int = 0

    def turn(self, received: s.Input) -> Turn:
        began = time.thread_time()
        turned = super().turn(received)
        took = time.thread_time() - began
        if isinstance(received, s.TimerFired) and self.turns:
            self.turns[-1].append(took)
        elif not isinstance(received, s.HelloReceived):
            self.turns.append([took])
        self._observe()
        return turned

    def end_together(self, jobs: Sequence[JobId]) -> None:
        """Let running jobs end now, by reports of all nodes that the coordinator reads at once."""
        self.queued = [it for it in self.queued if it[2] not in jobs]
        heapq.heapify(self.queued)
        tasks = [task for name in jobs for task in self.state.jobs[name].attempts[-1].tasks]
        exited = {"exit": ExitStatus(0), "ranks": (RankReport(0, exit=ExitStatus(0)),)}
        reports: list[tuple[s.Input, Instant]] = []
        for state, more in ((TaskState.EXITED, exited), (TaskState.CLEANED, {})):
            for task in tasks:
                session = self.state.nodes[task.node].session
                assert session is not None
                sent = task_report(task.id, state, prepared=prepared(), terms=1, **more)
                reports.append((s.ReportReceived(session, sent), self.now))
        began = time.thread_time()
        turned = guarded_turns(self.state, reports, self.limits)
        self.turns.append([time.thread_time() - began])
        for it in turned:
            self.facts += it.turn.facts
            for action in it.turn.effects:
                if isinstance(action, a.SetTimer):
                    self.timers[action.timer] = action.at
        self._observe()
        while self.placed:
            self.begin(self.placed.pop())

    def _observe(self) -> None:
        for fact in self.facts:
            if isinstance(fact, AttemptPlaced):
                self.began[fact.job] = self.mono
                self.placed.append(fact.job)
                promised = self.promised.get(fact.job)
                if promised is not None and self.now.wall > promised + LATER_S:
                    self.late.append(fact.job)
                self._push(self.mono + self.wanted[fact.job].runs_s, fact.job)
            elif isinstance(fact, StartPromised | StartMoved):
                self.promised[fact.job] = fact.at
                if isinstance(fact, StartMoved):
                    self.moved.append(fact)
            elif isinstance(fact, JobEnded):
                known = self.wanted.pop(fact.job)
                self.done.append(Done(known, self.began.pop(fact.job), self.mono))
        self.facts.clear()
        self.sent.clear()

    def terms(self, task: TaskId) -> Terms:  # noqa: ARG002 - never changed here
        return Terms(1)

    def add_nodes(self, nodes: int) -> None:
        for number in range(nodes):
            name = f"gpu-{number:03d}"
            described = with_devices(
                Inventory("10.0.0.1", name, cpus=64, python="python3"), devices(name)
            )
            fields = {field: getattr(described, field) for field in described.__struct_fields__}
            self.join(name, **fields)

    def _push(self, at: float, what: Wanted | JobId) -> None:
        self._number += 1
        heapq.heappush(self.queued, (at, self._number, what))

    def run(self, jobs: Iterable[Wanted], until: float = math.inf) -> None:
        """Let jobs arrive, and go on until all have ended, or until `until`."""
        for it in jobs:
            self._push(self.mono + it.at, it)
        while self.step(until):
            pass

    def step(self, until: float = math.inf) -> bool:
        """Let the next thing happen; returns False if there is none before `until`."""
        at = self.queued[0][0] if self.queued else math.inf
        due = self.timers.get(PASS, math.inf)
        if min(at, due) > until or min(at, due) == math.inf:
            return False
        self.mono = max(self.mono, min(at, due))
        if due <= at:
            del self.timers[PASS]
            self.turn(s.TimerFired(PASS))
        else:
            what = heapq.heappop(self.queued)[2]
            if isinstance(what, Wanted):
                self.add(what)
            else:
                self._end(what)
        while self.placed:
            self.begin(self.placed.pop())
        return True

    def add(self, wanted: Wanted) -> None:
        """Submit a job now."""
        name = JobId(self.state.next_job)
        self.wanted[name] = wanted
        self.requests += 1
        request = a.RequestId(self.requests)
        self.turn(s.SubmitReceived(request, spec_of(wanted), "ada", "", ""))
        del self.answers[request]

    def begin(self, name: JobId) -> None:
        """Bring a gang that was placed to its start."""
        tasks = self._tasks(name)
        first = 20_000 + 2 * (name % 20_000)  # jobs that share a node have other ports
        known = prepared(ports=(first, first + 1))
        for state in (TaskState.PREPARED, TaskState.ARRANGED):
            for task in tasks:
                self.report(task, state, prepared=known)
        for task in tasks:
            self.report(task, TaskState.STARTED, prepared=known, listening=True, running_s=0.0)

    def _end(self, name: JobId) -> None:
        tasks = self._tasks(name)
        for task in tasks:
            self.end(task, ExitStatus(0))
        for task in tasks:
            self.clean(task, exit=ExitStatus(0))

    def _tasks(self, name: JobId) -> list[TaskId]:
        return [task.id for task in self.state.jobs[name].attempts[-1].tasks]


def spec_of(it: Wanted) -> JobSpec:
    return JobSpec(
        name="train",
        run=Argv(("train.py",)),
        nodes=it.nodes,
        time_limit_s=it.limit_s,
        resources=Resources(gpu=it.gpus or None),
        priority=it.priority,
    )


def devices(node: str) -> tuple[GpuDevice, ...]:
    """The GPUs of a node: two sockets of four."""
    return tuple(
        GpuDevice(
            f"0000:{16 + at:02x}:00.0",
            f"GPU-{node}-{at}",
            model="NVIDIA H100",
            numa_node=at // 4,
            path=(f"pci0000:0{at // 4}", f"0000:{16 + at:02x}:00.0"),
        )
        for at in range(GPUS)
    )
