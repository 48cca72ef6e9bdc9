"""A coordinator's core with agents that answer by hand, to write tests of decisions with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.protocol.ids import JobId, NodeName, SessionId, TaskId, task_id
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    ArrangeTask,
    Command,
    Heartbeat,
    Hello,
    Inventory,
    NodeChanges,
    NodeObservations,
    Prepared,
    RankReport,
    Refusal,
    TaskReport,
)
from muster.protocol.link.terms import ChangeTerms, Terms
from muster.protocol.observations.interfaces import Interface
from muster.protocol.observations.tasks import TaskObservations
from muster.protocol.outcome import Cause, ExitStatus
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Argv, JobSpec
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.turn import Turn, turn
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.base import Durability
from orchestrator.core.facts.jobs import Fact
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.plan import Backfill, PoolPolicy
from orchestrator.core.model.state import Job, Node, State
from orchestrator.core.model.status import job_state

INVENTORY = Inventory(address="10.0.0.1", machine_id="m1", python="python3", cpus=4)
OBSERVED = NodeObservations(INVENTORY)
STRICT = {"default": PoolPolicy(Backfill.OFF)}
"""Pools without backfill."""


def spec(name: str = "train", nodes: int = 1, **more: Any) -> JobSpec:
    fields: dict[str, object] = {"name": name, "nodes": nodes, "run": Argv(("train.py",)), **more}
    return msgspec.convert({k: msgspec.to_builtins(v) for k, v in fields.items()}, JobSpec)


def task_report(name: TaskId, state: TaskState, **more: Any) -> TaskReport:
    """A report, with what is observed of the task among the other fields."""
    seen = {name: more.pop(name) for name in TaskObservations.__struct_fields__ if name in more}
    return TaskReport(name, state, observed=TaskObservations(**seen), **more)


@dataclass
class Cluster:
    """A coordinator core; `sent` collects commands by node, `answers` results by request."""

    state: State = field(default_factory=State)
    limits: Limits = field(default_factory=Limits)
    mono: float = 100.0
    pools: dict[str, PoolPolicy] = field(default_factory=dict)
    secret: str = "of this cluster"
    sent: dict[NodeName, list[Command]] = field(default_factory=dict)
    answers: dict[int, a.Result] = field(default_factory=dict)
    timers: dict[a.Timer, float] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    closed: list[SessionId] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    requests: int = 0
    sessions: int = 0

    def __post_init__(self) -> None:
        self.turn(
            s.CoordinatorStarted(self.state.epoch + 1, "here", pools=self.pools, secret=self.secret)
        )

    @property
    def now(self) -> Instant:
        return Instant(self.mono, 1_700_000_000.0 + self.mono)

    def turn(self, received: s.Input) -> Turn:
        done = turn(self.state, received, self.now, self.limits)
        self.facts += done.facts
        for action in done.effects:
            match action:
                case a.Send(node, _, command):
                    self.sent.setdefault(node, []).append(command)
                case a.Answer(request, result):
                    self.answers[request] = result
                case a.SetTimer(timer, at):
                    self.timers[timer] = at
                case a.CloseSession(session, _):
                    self.closed.append(session)
                case a.RefuseSession(_, refused):
                    self.refused.append(refused.code)
        return done

    def replayed(self) -> State:
        """Return the state that a new process reads from the journal."""
        decoder = msgspec.json.Decoder(Fact)
        state = State()
        for fact in self.facts:
            if fact.durability is not Durability.EPHEMERAL:
                apply(state, decoder.decode(msgspec.json.encode(fact)), self.now.wall)
        return state

    def pass_time(self, seconds: float) -> None:
        """Let time pass, firing every timer that becomes due on the way, in order."""
        until = self.mono + seconds
        while due := [(at, timer) for timer, at in self.timers.items() if at <= until]:
            at, timer = min(due, key=lambda it: it[0])
            del self.timers[timer]
            self.mono = max(self.mono, at)
            self.turn(s.TimerFired(timer))
        self.mono = until

    def beat(self, seconds: float) -> None:
        """Let time pass while every connected agent says that it lives."""
        until = self.mono + seconds
        while self.mono < until:
            self.pass_time(min(5.0, until - self.mono))
            for node in self.state.nodes.values():
                if node.session is not None:
                    self.turn(s.ReportReceived(node.session, Heartbeat(self.mono)))

    def join(
        self,
        *names: str,
        tasks: tuple[TaskReport, ...] = (),
        cluster: str = "",
        made_s: float = 0.0,
        process: str = "",
        boot: str = "boot",
        **inventory: Any,
    ) -> None:
        for name in names:
            self.sessions += 1
            described = msgspec.structs.replace(INVENTORY, **inventory)
            who = (NodeName(name), f"id-{name}", f"{boot}-{name}", "0.1.0")
            hello = Hello(
                *who,
                NodeObservations(described),
                tasks,
                protocol_max=PROTOCOL_MAX,
                cluster=cluster,
                instance=process,
                made_s=made_s,
            )
            self.turn(s.HelloReceived(SessionId(self.sessions), hello, "127.0.0.1"))

    def leave(self, name: str) -> None:
        session = self.state.nodes[NodeName(name)].session
        assert session is not None
        self.turn(s.SessionEnded(session))

    def submit(
        self, wanted: JobSpec, key: str = "", digest: str = "", user: str = "ada"
    ) -> a.Result:
        self.requests += 1
        request = a.RequestId(self.requests)
        self.turn(s.SubmitReceived(request, wanted, user, key, digest))
        return self.answers[request]

    def cancel(self, job: int, **more: Any) -> a.Result:
        self.requests += 1
        request = a.RequestId(self.requests)
        self.turn(s.CancelReceived(request, JobId(job), "ada", **more))
        return self.answers[request]

    def change(self, job: int, user: str = "ada", **more: Any) -> a.Result:
        self.requests += 1
        request = a.RequestId(self.requests)
        self.turn(s.ChangeReceived(request, JobId(job), user, **more))
        return self.answers[request]

    def drain(self, node: str, reason: str = "bad DIMM", **more: Any) -> a.Result:
        self.requests += 1
        request = a.RequestId(self.requests)
        self.turn(s.DrainReceived(request, NodeName(node), "ana", reason, **more))
        return self.answers[request]

    def resume(self, node: str, **more: Any) -> a.Result:
        self.requests += 1
        request = a.RequestId(self.requests)
        self.turn(s.ResumeReceived(request, NodeName(node), "ana", **more))
        return self.answers[request]

    def remove(self, node: str) -> a.Result:
        self.requests += 1
        request = a.RequestId(self.requests)
        self.turn(s.RemoveReceived(request, NodeName(node), "ana"))
        return self.answers[request]

    def declare_lost(self, node: str) -> a.Result:
        self.requests += 1
        request = a.RequestId(self.requests)
        self.turn(s.LostReceived(request, NodeName(node), "ana"))
        return self.answers[request]

    def node(self, name: str) -> Node:
        return self.state.nodes[NodeName(name)]

    def report(self, task: TaskId, state: TaskState, **more: Any) -> Turn:
        found = self.state.task(task)
        assert found is not None
        session = self.state.nodes[found.node].session
        assert session is not None
        if state not in (TaskState.ASSIGNED, TaskState.PREPARED):
            more.setdefault("terms", self.terms(task).number)
        return self.turn(s.ReportReceived(session, task_report(task, state, **more)))

    def terms(self, task: TaskId) -> Terms:
        """The newest terms that the task's node was sent."""
        sent = [
            command.terms
            for commands in self.sent.values()
            for command in commands
            if isinstance(command, ArrangeTask | ChangeTerms) and command.task == task
        ]
        return next((it for it in reversed(sent) if it is not None), Terms(0))

    def warn(self, task: TaskId) -> None:
        """The node warns its ranks of the time limit."""
        warned_s = self.terms(task).warn_s
        self.report(task, TaskState.STARTED, prepared=prepared(), warned_s=warned_s)

    def reach_limit(self, task: TaskId) -> None:
        """The node begins to stop its ranks at the time limit."""
        terms = self.terms(task)
        self.report(
            task,
            TaskState.STARTED,
            prepared=prepared(),
            warned_s=terms.warn_s,
            running_s=terms.limit_s,
            stopped_by="limit",
        )

    def prepare(self, task: TaskId, **more: Any) -> Turn:
        """A node is prepared. If it joins a gang, the launcher's node lets it in at once."""
        done = self.report(task, TaskState.PREPARED, prepared=prepared(**more))
        found = self.state.task(task)
        assert found is not None
        if not found.joined or not found.present:
            return done
        launcher = self.job(found.job).attempt(found.attempt).tasks[0]
        return self.report(launcher.id, launcher.state, prepared=prepared())

    def rewire(self, name: str, interfaces: tuple[Interface, ...]) -> Turn:
        """A node says that its interfaces have changed."""
        return self.observe(name, interfaces=interfaces)

    def observe(self, name: str, wall_s: float | None = None, **changes: Any) -> Turn:
        """A node reports changes."""
        session = self.node(name).session
        assert session is not None
        beat = Heartbeat(self.mono, wall_s, NodeChanges(**changes))
        return self.turn(s.ReportReceived(session, beat))

    def run_gang(self, job: int, attempt: int = 1, **more: Any) -> list[TaskId]:
        """Bring every task of an attempt to its start, in rank order. `more` is of Prepared."""
        tasks = [t.id for t in self.job(job).attempt(attempt).tasks]
        for task in tasks:
            self.prepare(task, **more)
        for task in tasks:
            self.report(task, TaskState.ARRANGED, prepared=prepared())
        for task in tasks:
            self.report(task, TaskState.STARTED, prepared=prepared(), listening=True)
        return tasks

    def finish(self, task: TaskId, code: int = 0) -> None:
        self.end(task, ExitStatus(code))
        self.clean(task, exit=ExitStatus(code))

    def end(self, task: TaskId, exit_status: ExitStatus, stopped_by: str = "") -> None:
        ranks = (RankReport(0, exit=exit_status),)
        self.report(
            task,
            TaskState.EXITED,
            prepared=prepared(),
            exit=exit_status,
            ranks=ranks,
            stopped_by=stopped_by,
        )

    def clean(self, task: TaskId, **more: Any) -> None:
        self.report(task, TaskState.CLEANED, **more)

    def refuse(self, task: TaskId, code: str, *, node_fault: bool = False) -> Turn:
        return self.report(
            task, TaskState.ASSIGNED, refusal=Refusal(code, f"{code} here", node_fault)
        )

    def job(self, job: int) -> Job:
        return self.state.jobs[JobId(job)]

    def cause(self, job: int) -> Cause:
        found = self.job(job).cause
        assert found is not None, f"job {job} has not ended"
        return found

    def shown(self, job: int) -> JobState:
        return job_state(self.job(job))

    def commands(self, name: str, kind: type[Command]) -> list[Command]:
        return [c for c in self.sent.get(NodeName(name), []) if isinstance(c, kind)]


def prepared(**more: Any) -> Prepared:
    fields: dict[str, Any] = {
        "address": "10.0.0.1",
        "ports": (20000, 20001),
        "gpus": 0,
        "log_dir": "/t/logs",
        "workdir": "/w",
        "scratch": "/t/scratch",
        "output": "/o",
        "hostfile": "/t/hostfile",
        **more,
    }
    return Prepared(**fields)


def task(job: int, attempt: int, rank: int) -> TaskId:
    return task_id(JobId(job), attempt, rank)
