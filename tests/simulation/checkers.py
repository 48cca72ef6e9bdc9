"""Invariants of the nodes and of the coordinator's state, checked at every change of either.

I1 to I10 are the invariants of the design: nothing acknowledged is lost (I1), ends are final (I2),
one attempt runs at a time (I3), nothing runs on after the end (I4), a node has one owner (I5), no
log is removed before all of it is kept (I6), no names of a gang outlive it (I7), nothing grows for
ever (I8), no decision depends on the wall clock (I9, by comparing runs), and every job comes to an
end (I10).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from agent.core.shim_protocol import ShimPhase
from muster.protocol.ids import JobId
from muster.protocol.instant import Instant
from muster.protocol.observations.interfaces import Endpoint
from muster.protocol.outcome import Cause, CauseCode
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts.base import Durability
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.leases import margin_s
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import ITSELF
from orchestrator.core.model.state import Attempt, Job, State
from orchestrator.core.scheduling.backfill import schedule
from orchestrator.core.scheduling.elastic import next_join
from orchestrator.core.scheduling.scheduler import next_placement
from orchestrator.core.views.explain import chance
from tests.simulation.disk import Disk
from tests.simulation.ground import Ground
from tests.simulation.placing import fits
from tests.simulation.promises import Promises
from tests.simulation.replay import Replay
from tests.simulation.starts import Starts
from tests.simulation.world import Violation, World

COMPARE_EVERY = 150  # commits
_Key = TypeVar("_Key")

_QUIET = (lf.NodeHeard, lf.NodeSynced)


@dataclass
class Checkers:
    """Watches one run. Every method raises Violation where something is wrong.

    `looks_soon` returns whether the timer for the queues is due, and its turn has not come yet.
    """

    world: World
    disk: Disk
    ground: Ground = field(init=False)
    promises: Promises = field(init=False)
    starts: Starts = field(init=False)
    replay: Replay = field(default_factory=Replay)
    causes: dict[tuple[JobId, int], Cause] = field(default_factory=dict)
    ends: dict[JobId, Cause] = field(default_factory=dict)
    numbers: dict[JobId, int] = field(default_factory=dict)  # last attempts, over all restores
    epoch: int = 0
    peace_at: float = math.inf
    over: set[JobId] = field(default_factory=set)
    commits: int = 0
    watchers: list[Callable[[State, list[f.Fact]], None]] = field(default_factory=list)
    looks_soon: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.ground = Ground(self.world, self.disk)
        self.promises = Promises(self.disk)
        self.starts = Starts(self.world)

    @property
    def durable(self) -> State:
        return self.disk.shadow

    def fail(self, text: str) -> NoReturn:
        raise Violation(text)

    def turned(self, state: State, facts: list[f.Fact], now: Instant, limits: Limits) -> None:
        """A turn of the coordinator is done; its facts are not on disk yet."""
        loud = False
        for fact in facts:
            self._check_over(fact)
            if isinstance(fact, _QUIET):
                continue
            loud = True
            if isinstance(fact, cf.LivenessPaused):
                self.world.met[type(fact).__name__] += 1
            if isinstance(fact, f.JobHeld) and fact.user == ITSELF:
                self.fail(f"placement: {fact.reason}")
            if isinstance(fact, f.AttemptPlaced):
                self._placed(state, fact)
            elif isinstance(fact, f.TaskJoined | f.TaskLeft):
                self.world.met["joined" if isinstance(fact, f.TaskJoined) else "left"] += 1
        if not loud:
            return
        self.over |= {job.id for job in _named(state, facts) if _is_over(job)}
        for watch in self.watchers:
            watch(state, facts)
        self.starts.turned(state, facts, now)
        self.world.judged["books"] += 1
        wrong = check(state)
        if wrong:
            self.fail(f"books: {wrong[0]}")
        due = state.plan.wakes_at
        if due is not None and due <= now.mono and self.looks_soon():
            return  # a timer makes the coordinator look at the queues, in a turn of its own
        self._idle(state, now)
        placed, joined = _next_start(state, now, limits), next_join(state, now)
        if placed is not None or joined is not None:
            self.fail(f"queue: a turn is over, and {placed or joined} could still follow")

    def _check_over(self, fact: f.Fact) -> None:
        """A fact of a job that may be in the archive would follow from nothing."""
        job = getattr(fact, "job", None)
        if job in self.over and fact.durability is not Durability.EPHEMERAL:
            self.fail(f"archive: job {job} has ended, and {fact} is decided")

    def _placed(self, state: State, fact: f.AttemptPlaced) -> None:
        job = state.jobs[fact.job]
        mine = (-job.spec.priority, job.id)
        ahead = [name for priority, name in state.queues[job.spec.pool] if (priority, name) < mine]
        if state.policy(job.spec.pool).is_strict:
            if ahead:
                self.fail(f"queue: job {job.id} is placed before job {ahead[0]}")
        elif job.id not in self.starts.promised:
            for other in ahead:
                if _wants_no_more(state.jobs[other], job):
                    self.fail(f"queue: job {job.id} is placed before job {other}")
        if job.id in self.promises.holds:
            self.fail(f"hold: job {job.id} is placed although it is held")
        awaited = state.awaited - state.answered
        if awaited:
            self.fail(f"restore: job {job.id} is placed, and {sorted(awaited)} may run it")
        if job.cancel is not None:
            self.fail(f"I1: job {job.id} is placed although it was cancelled")
        if not job.spec.nodes <= len(fact.nodes) <= job.spec.most_nodes:
            self.fail(f"gang: job {job.id} wants {job.spec.nodes} nodes and gets {fact.nodes}")

    def _idle(self, state: State, now: Instant) -> None:
        """Nodes that the first job of a queue could have are not left idle."""
        waiting = [name for queue in state.queues.values() for _, name in queue]
        for queue in state.queues.values():
            if queue:
                job = state.jobs[queue[0][1]]
                # Jobs of other pools count as well, because agents of one machine may be in several
                # pools.
                others = [state.jobs[name] for name in waiting if name != job.id]
                promised = any(other.starts_by is not None for other in others)
                unknown = job.id < state.first_of_epoch and state.unknown.of(job.id)
                if fits(state, job.spec, job.avoid) and not unknown and not promised:
                    self.fail(f"queue: job {job.id} waits although it fits")
                if chance(state, job, now).starts_now:
                    self.fail(f"explain: job {job.id} is said to start now, and waits")

    def synced(self, facts: list[f.Fact]) -> None:
        """Check facts that are on disk now."""
        for fact in facts:
            match fact:
                case f.StopRequested(job, attempt, cause):
                    self._once(self.causes, (job, attempt), cause)
                    self._check_blame(job, attempt, cause)
                case f.JobEnded(job, cause):
                    self._once(self.ends, job, cause)
                    for shim in self.ground.of_job.get(job, {}).values():
                        before = self.ground.of_before(job, shim.attempt)
                        if not before and not self.ground.may_outlive(shim):
                            self.fail(f"I4: job {job} has ended, {shim.task} on {shim.node} not")
                case f.AttemptPlaced(job, attempt):
                    if attempt <= self.numbers.get(job, 0):
                        self.fail(f"numbers: attempt {attempt} of job {job} is made again")
                    self.numbers[job] = attempt
                case f.AttemptArranged(job, attempt, _, _, endpoints):
                    self._check_network(job, attempt, endpoints)
                case f.TaskCleaned(job, attempt, rank):
                    self._check_blocks(job, attempt, rank)
                case cf.EpochStarted(epoch):
                    if epoch <= self.epoch:
                        self.fail(f"epoch {epoch} follows epoch {self.epoch}")
                    self.epoch = epoch
                case _:
                    pass

    def _check_network(self, job: JobId, attempt: int, endpoints: tuple[Endpoint, ...]) -> None:
        """A gang meets in one network, at addresses that its machines had since it was made."""
        subnets = {endpoint.address.rpartition(".")[0] for endpoint in endpoints}
        if len(subnets) != 1:
            self.fail(f"network: attempt {job}.{attempt} is to meet in {sorted(subnets)}")
        tasks = self.durable.jobs[job].attempt(attempt).tasks
        for task, endpoint in zip(tasks, endpoints, strict=True):
            machine = self.ground.wiring[task.node]
            if not machine.had(endpoint.address, self.ground.began[task.id]):
                self.fail(f"network: {task.id} is to be at {endpoint.address}, {machine.wired}")

    def _check_blocks(self, job: JobId, attempt: int, rank: int) -> None:
        task = self.durable.jobs[job].attempt(attempt).tasks[rank]
        if task.id in self.ground.blocks.get(task.node, ()):
            self.fail(f"hosts: {task.id} is clean, and its block is still on {task.node}")

    def _check_blame(self, job: JobId, attempt: int, cause: Cause) -> None:
        """Check that the cause names something that happened."""
        if cause.code is CauseCode.COMPLETED:
            for task in self.durable.jobs[job].attempt(attempt).present:
                if task.id not in self.ground.succeeded_tasks and not task.joined:
                    self.fail(f"truth: job {job} has completed, {task.id} has not")
        elif cause.code is CauseCode.TIME_LIMIT:
            known = self.durable.jobs[job]
            if known.spec.stop.warn:
                self._check_warned(known.attempt(attempt))
        elif cause.code is CauseCode.RANK_FAILED:
            seen = (
                None if cause.rank is None else self.ground.failures.get((job, attempt, cause.rank))
            )
            if seen is None or seen != cause.exit:
                self.fail(f"truth: {job}.{attempt} blames {cause.text!r}, what happened is {seen}")

    def _check_warned(self, attempt: Attempt) -> None:
        """Check that all nodes of an attempt that is stopped at its time limit were warned."""
        name = f"{attempt.job}.{attempt.number}"
        if attempt.warned_at is None:
            self.fail(f"warn: {name} is stopped at its limit and was not warned")
        for shim in self.ground.of_job.get(attempt.job, {}).values():
            if shim.phase is ShimPhase.RUNNING and shim.limit.is_overdue():
                self.fail(f"warn: {name} is stopped at its limit, {shim.task} was not warned")

    def settled(self, state: State, disk: Disk) -> None:
        """A commit is done: now and then, see whether the disk holds the state."""
        self.commits += 1
        if self.commits % COMPARE_EVERY == 0 and not disk.staged:
            self.replay.check(state, disk)

    def restored(self) -> None:
        """An older backup is in place: what came after it is lost."""
        self.causes.clear()
        self.ends.clear()
        self.replay.retraced.clear()
        self.promises.restored()
        self.ground.restores = True

    def restarted(self, state: State) -> None:
        """A new process has read the disk: all that was promised is there."""
        self.world.judged["I1"] += 1
        self.promises.restarted(state)
        self.starts.restarted()
        self.over = {job.id for job in state.jobs.values() if _is_over(job)}
        for job, cause in self.ends.items():
            if state.jobs[job].cause != cause:
                self.fail(f"I2: job {job} ended of {cause}, and now of {state.jobs[job].cause}")

    def greeted(self, epoch: int) -> None:
        """Check the epoch that an agent receives: no other process will ever have it."""
        if epoch != self.durable.epoch:
            self.fail(f"epoch: {epoch} was sent, {self.durable.epoch} is on disk")

    def _once(self, known: dict[_Key, Cause], key: _Key, cause: Cause) -> None:
        self.world.judged["I2"] += 1
        first = known.setdefault(key, cause)
        if first != cause:
            self.fail(f"I2: {key} ended of {first.text!r}, and then of {cause.text!r}")


def _next_start(state: State, now: Instant, limits: Limits) -> f.Fact | None:
    """The next gang that could start, in any pool."""
    placed = next_placement(state)
    if placed is not None:
        return placed
    found = schedule(state, [], now, limits.lease_s + margin_s(limits.lease_s))
    return next((it for it in found if isinstance(it, f.AttemptPlaced)), None)


def _wants_no_more(job: Job, other: Job) -> bool:
    """True if a job could start wherever another one can."""
    mine, its = job.spec, other.spec
    same = ("resources", "placement", "roles", "launcher", "rdma", "nproc_per_node")
    longest_s = math.inf if its.time_limit_s is None else its.time_limit_s
    return (
        all(getattr(mine, name) == getattr(its, name) for name in same)
        and not mine.elastic
        and not its.elastic
        and mine.nodes <= its.nodes
        and (math.inf if mine.time_limit_s is None else mine.time_limit_s) <= longest_s
        and mine.stop.grace_s <= its.stop.grace_s
        and job.avoid == other.avoid
    )


def _named(state: State, facts: list[f.Fact]) -> list[Job]:
    """The jobs of these facts."""
    names: set[JobId] = {name for fact in facts if (name := getattr(fact, "job", None)) is not None}
    return [state.jobs[name] for name in names if name in state.jobs]


def _is_over(job: Job) -> bool:
    """True if it may go to the archive."""
    return job.phase is JobPhase.ENDED and not job.queued_webhooks
