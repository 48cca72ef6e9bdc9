"""What must be true, on the nodes as well as in the books. Asked at every change of either.

I1 to I10 are the invariants of the design: nothing acknowledged is lost (I1), ends are final (I2),
one attempt runs at a time (I3), nothing runs on after the end (I4), a node has one owner (I5), no
decision hangs on the wall clock (I9, by comparing runs), and all of it comes to an end (I10).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from agent.core.shim import ShimPhase
from muster.protocol.fabric import TaskFabric
from muster.protocol.ids import JobId, NodeName, TaskId, parse_task_id
from muster.protocol.interfaces import Endpoint
from muster.protocol.outcome import Cause, CauseCode, ExitStatus
from muster.protocol.states import TaskState
from muster.spec.types import JobSpec, Launcher, Rdma
from orchestrator.core import actions as a
from orchestrator.core import facts as f
from orchestrator.core.elastic import next_join
from orchestrator.core.explain import chance
from orchestrator.core.invariants import check
from orchestrator.core.job import JobPhase
from orchestrator.core.node import LinkState
from orchestrator.core.retrace import retrace
from orchestrator.core.scheduler import next_placement
from orchestrator.core.state import Attempt, Node, State
from orchestrator.core.task import OVER
from tests.simulation.disk import Disk
from tests.simulation.machine import Machine
from tests.simulation.rails import agree
from tests.simulation.shim import Shim
from tests.simulation.world import Violation, World

COMPARE_EVERY = 150  # commits
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_QUIET = (f.NodeHeard, f.NodeSynced)


@dataclass
class Checkers:
    """Watches one run. Every method raises Violation where something is wrong."""

    world: World
    machines: dict[NodeName, str] = field(default_factory=dict)  # the host each node is on
    durable: State = field(default_factory=State)
    submits: dict[str, JobId] = field(default_factory=dict)  # acknowledged, by name
    cancels: set[JobId] = field(default_factory=set)  # acknowledged before the end
    on_node: dict[NodeName, dict[TaskId, Shim]] = field(default_factory=dict)
    of_job: dict[JobId, dict[TaskId, Shim]] = field(default_factory=dict)
    warned: set[TaskId] = field(default_factory=set)
    signals: set[tuple[TaskId, int]] = field(default_factory=set)
    holds: set[JobId] = field(default_factory=set)  # acknowledged, and no release asked for since
    settings: dict[JobId, dict[str, float]] = field(default_factory=dict)  # acknowledged
    wiring: dict[NodeName, Machine] = field(default_factory=dict)
    fabrics: dict[TaskId, TaskFabric] = field(default_factory=dict)  # as its node was told
    began: dict[TaskId, float] = field(default_factory=dict)  # when its node made ready for it
    ready: set[TaskId] = field(default_factory=set)
    arranged: set[TaskId] = field(default_factory=set)
    proved: set[TaskId] = field(default_factory=set)
    blocks: dict[NodeName, set[TaskId]] = field(default_factory=dict)
    listened: set[TaskId] = field(default_factory=set)
    succeeded_tasks: set[TaskId] = field(default_factory=set)
    failures: dict[tuple[JobId, int, int], ExitStatus] = field(default_factory=dict)
    causes: dict[tuple[JobId, int], Cause] = field(default_factory=dict)
    ends: dict[JobId, Cause] = field(default_factory=dict)
    epoch: int = 0
    peace_at: float = math.inf
    commits: int = 0
    retraced: set[JobId] = field(default_factory=set)

    watchers: list[Callable[[State, list[f.Fact]], None]] = field(default_factory=list)
    promises: list[Callable[[State], None]] = field(default_factory=list)

    def fail(self, text: str) -> NoReturn:
        raise Violation(text)

    # --- the truth on the nodes -----------------------------------------------------------

    def occupied(self, shim: Shim) -> None:
        """A process of the job exists on the node, be it only its setup."""
        self.world.log(f"{shim.node} {shim.task} occupied")
        here = self.on_node.setdefault(shim.node, {})
        for other in here.values():
            if not other.wedged and (other.job, other.attempt) != (shim.job, shim.attempt):
                self._check_apart(shim, other)
        self._check_gpus(shim)
        here[shim.task] = shim
        siblings = self.of_job.setdefault(shim.job, {})
        for other in siblings.values():
            if not other.wedged and other.attempt != shim.attempt:
                self.fail(f"I3: {other.task} on {other.node} still runs as {shim.task} begins")
        siblings[shim.task] = shim
        if self.durable.jobs[shim.job].phase is JobPhase.ENDED:
            self.fail(f"I4: {shim.task} begins on {shim.node} although its job has ended")

    def _check_apart(self, shim: Shim, other: Shim) -> None:
        """Only those share a node that each have a part of it."""
        parts = [
            bool(one.gpus) and self.durable.jobs[one.job].spec.resources.gpu
            for one in (shim, other)
        ]
        if not all(parts):
            self.fail(f"I5: {shim.node} runs processes of {other.task} and of {shim.task}")
        self.world.met["node_shared"] += 1

    def _check_gpus(self, shim: Shim) -> None:
        """No two tasks on a machine have the same GPU, through whichever agents they came."""
        host = self.machines[shim.node]
        for node, tasks in self.on_node.items():
            for other in tasks.values() if self.machines[node] == host else ():
                both = set(shim.gpus) & set(other.gpus)
                if both and other is not shim and not other.wedged:
                    self.fail(f"gpus: {other.task} and {shim.task} both have {sorted(both)}")

    def vacated(self, shim: Shim) -> None:
        self.world.log(f"{shim.node} {shim.task} vacated")
        self.on_node[shim.node].pop(shim.task, None)
        self.of_job[shim.job].pop(shim.task, None)

    def task_created(self, node: NodeName, task: TaskId) -> None:
        """An agent makes ready for a task: that was decided, and is on disk."""
        if self._task(task) is None:
            self.fail(f"I1: {node} prepares {task}, of which nothing is on disk")
        self.began[task] = self.world.now

    def plan_taken(self, node: NodeName, task: TaskId, fabric: TaskFabric | None) -> None:
        if task not in self.ready:
            self.fail(f"gang: {node} is given a plan for {task}, which is not ready there")
        self.arranged.add(task)
        self.fabrics[task] = fabric or TaskFabric()

    def prepared(self, shim: Shim) -> None:
        self.ready.add(shim.task)

    def block_written(self, node: NodeName, task: TaskId) -> None:
        self.blocks.setdefault(node, set()).add(task)
        if self._task(task) is TaskState.CLEANED:
            self.fail(f"hosts: a block of {task} is written on {node}, and the task is clean")

    def block_removed(self, node: NodeName, task: TaskId) -> None:
        self.blocks[node].discard(task)
        shim = self.on_node.get(node, {}).get(task)
        if shim is not None and not shim.wedged:
            self.fail(f"hosts: the names of {task} go from {node} while it runs")

    def network_proved(self, task: TaskId) -> None:
        self.proved.add(task)

    def listens(self, shim: Shim) -> None:
        self.listened.add(shim.task)

    def program_started(self, shim: Shim) -> None:
        """The program of a task runs: all of its gang stood ready, and the books say so."""
        self.world.met["program_started"] += 1
        self.world.log(f"{shim.node} {shim.task} runs")
        attempt = self._attempt(shim.job, shim.attempt)
        if attempt is None or attempt.released_at is None:
            self.fail(f"gang: {shim.task} runs, and that its gang may start is not on disk")
        # Who joins later is waited for by nobody, and is in no table made before.
        gang = [task for task in attempt.tasks if not task.joined]
        for task in gang:
            if not task.present:
                continue
            if task.id not in self.arranged:
                self.fail(f"gang: {shim.task} runs, and {task.id} has no plan yet")
            if len(gang) > 1 and task.id not in self.proved:
                self.fail(f"hosts: {shim.task} runs, and {task.id} has not proved its peers' names")
        if len(attempt.tasks) > 1 and shim.task not in self.blocks.get(shim.node, ()):
            self.fail(f"hosts: {shim.task} runs on {shim.node} without the names of its peers")
        job = self.durable.jobs[shim.job]
        if job.phase is JobPhase.ENDED:
            self.fail(f"I4: {shim.task} runs although its job has ended")
        self._check_rails(shim, attempt, job.spec)
        match job.spec.launcher:
            case Launcher.TORCHRUN | Launcher.ACCELERATE | Launcher.DEEPSPEED:
                self._check_meeting(shim, attempt)
            case Launcher.PROCESSES:
                self._check_ranks(shim, job.spec)
            case Launcher.NONE:
                pass

    def _check_rails(self, shim: Shim, attempt: Attempt, spec: JobSpec) -> None:
        """All nodes of a gang use ports that go together; where RDMA is required they use some."""
        gang = [task for task in attempt.present if task.id in self.fabrics]
        used = [(self.wiring[task.node].fabric, self.fabrics[task.id].hcas) for task in gang]
        wrong = agree(used)
        if wrong is not None:
            self.fail(f"rails: {shim.task} runs, and {wrong}")
        if len(gang) > 1 and used[0][1]:
            self.world.met["rdma_gang"] += 1
        if spec.rdma is Rdma.OFF and used[0][1]:
            self.fail(f"rails: {shim.task} is to use TCP and gets {used[0][1]}")
        if len(gang) > 1 and spec.rdma is Rdma.REQUIRED:
            self.world.met["rdma_required"] += 1
            if not used[0][1]:
                self.fail(f"rails: {shim.task} runs without RDMA, which its job requires")

    def _check_ranks(self, shim: Shim, spec: JobSpec) -> None:
        """Ranks count on from node to node, without a gap, whatever each node has of them."""
        workers = spec.nproc_per_node or 1
        launchers = spec.roles.launcher.nproc_per_node or workers
        first = 0 if shim.rank == 0 else launchers + (shim.rank - 1) * workers
        wanted = list(range(first, first + (launchers if shim.rank == 0 else workers)))
        if shim.ranks != wanted:
            self.fail(f"ranks: {shim.task} has {shim.ranks} in place of {wanted}")

    def _check_meeting(self, shim: Shim, attempt: Attempt) -> None:
        if shim.rank > 0:
            if attempt.tasks[0].id not in self.listened:
                self.fail(f"order: {shim.task} runs, and its launcher does not listen yet")
            return
        host = self.machines[shim.node]
        for node, tasks in self.on_node.items():
            if self.machines[node] != host:
                continue
            for other in tasks.values():
                clash = other.listen_port == shim.listen_port and other.running
                if clash and other is not shim:
                    self.fail(f"ports: {other.task} and {shim.task} meet at {shim.listen_port}")

    def signalled(self, shim: Shim, number: int, name: str) -> None:
        """The ranks of a task get a signal: a user's, or the one that warns of its time limit."""
        attempt = self._attempt(shim.job, shim.attempt)
        given = [] if attempt is None else [it for it in attempt.signals if it.number == number]
        if not given or given[0].name != name:
            self.fail(f"warn: {shim.task} gets {name}, and that is not on disk")
        self.world.met["warned" if given[0].late else "signalled"] += 1
        if (shim.task, number) in self.signals:
            self.fail(f"warn: {shim.task} gets the same {name} twice")
        self.signals.add((shim.task, number))
        if given[0].late:
            self.warned.add(shim.task)

    def succeeded(self, shim: Shim) -> None:
        self.succeeded_tasks.add(shim.task)

    def failed(self, shim: Shim, rank: int, status: ExitStatus) -> None:
        """A rank has failed of itself; what we stop does not count."""
        self.failures[shim.job, shim.attempt, rank] = status

    def removed(self, node: NodeName, task: TaskId) -> None:
        """A task's folder goes, and its record with it: the end is on disk elsewhere."""
        state = self._task(task)
        if state is not None and state not in OVER:
            self.fail(f"I1: {node} removes {task}, which is {state.value} on disk")

    # --- the books ------------------------------------------------------------------------

    def turned(self, state: State, facts: list[f.Fact]) -> None:
        """A turn of the coordinator is done; its facts are not on disk yet."""
        loud = False
        for fact in facts:
            if isinstance(fact, _QUIET):
                continue
            loud = True
            if isinstance(fact, f.AttemptPlaced):
                self._placed(state, fact)
            elif isinstance(fact, f.TaskJoined | f.TaskLeft):
                self.world.met["joined" if isinstance(fact, f.TaskJoined) else "left"] += 1
        if not loud:
            return
        for watch in self.watchers:
            watch(state, facts)
        wrong = check(state)
        if wrong:
            self.fail(f"books: {wrong[0]}")
        self._idle(state)
        placed, joined = next_placement(state), next_join(state)
        if placed is not None or joined is not None:
            self.fail(f"queue: a turn is over, and {placed or joined} could still follow")

    def _placed(self, state: State, fact: f.AttemptPlaced) -> None:
        job = state.jobs[fact.job]
        mine = (-job.spec.priority, job.id)
        ahead = [name for priority, name in state.queues[job.spec.pool] if (priority, name) < mine]
        if ahead:
            self.fail(f"queue: job {job.id} is placed before job {ahead[0]}")
        if job.id in self.holds:
            self.fail(f"hold: job {job.id} is placed although it is held")
        if job.cancel is not None:
            self.fail(f"I1: job {job.id} is placed although it was cancelled")
        if not job.spec.nodes <= len(fact.nodes) <= job.spec.most_nodes:
            self.fail(f"gang: job {job.id} wants {job.spec.nodes} nodes and gets {fact.nodes}")

    def _idle(self, state: State) -> None:
        """Nodes that the first job of a queue could have are not left idle."""
        for queue in state.queues.values():
            if queue:
                job = state.jobs[queue[0][1]]
                if _fits(state, job.spec, job.avoid):
                    self.fail(f"queue: job {job.id} waits although it fits")
                if chance(state, job).starts_now:
                    self.fail(f"explain: job {job.id} is said to start now, and waits")

    def synced(self, facts: list[f.Durable], durable: State) -> None:
        """These facts are on disk now; `durable` is what all that is there amounts to."""
        self.durable = durable
        for fact in facts:
            match fact:
                case f.StopRequested(job, attempt, cause):
                    self._once(self.causes, (job, attempt), cause)
                    self._check_blame(job, attempt, cause)
                case f.JobEnded(job, cause):
                    self._once(self.ends, job, cause)
                    for shim in self.of_job.get(job, {}).values():
                        if not shim.wedged:
                            self.fail(f"I4: job {job} has ended, {shim.task} on {shim.node} not")
                case f.AttemptArranged(job, attempt, _, _, endpoints):
                    self._check_network(job, attempt, endpoints)
                case f.TaskCleaned(job, attempt, rank):
                    self._check_blocks(job, attempt, rank)
                case f.EpochStarted(epoch):
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
        tasks = self.durable.jobs[job].attempts[attempt - 1].tasks
        for task, endpoint in zip(tasks, endpoints, strict=True):
            machine = self.wiring[task.node]
            if not machine.had(endpoint.address, self.began[task.id]):
                self.fail(f"network: {task.id} is to be at {endpoint.address}, {machine.wired}")

    def _check_blocks(self, job: JobId, attempt: int, rank: int) -> None:
        task = self.durable.jobs[job].attempts[attempt - 1].tasks[rank]
        if task.id in self.blocks.get(task.node, ()):
            self.fail(f"hosts: {task.id} is clean, and its block is still on {task.node}")

    def _check_blame(self, job: JobId, attempt: int, cause: Cause) -> None:
        """What is said to have happened did."""
        if cause.code is CauseCode.COMPLETED:
            for task in self.durable.jobs[job].attempts[attempt - 1].present:
                if task.id not in self.succeeded_tasks and not task.joined:
                    self.fail(f"truth: job {job} has completed, {task.id} has not")
        elif cause.code is CauseCode.TIME_LIMIT:
            known = self.durable.jobs[job]
            if known.spec.stop.warn:
                self._check_warned(known.attempts[attempt - 1])
        elif cause.code is CauseCode.RANK_FAILED:
            seen = None if cause.rank is None else self.failures.get((job, attempt, cause.rank))
            if seen is None or seen != cause.exit:
                self.fail(f"truth: {job}.{attempt} blames {cause.text!r}, what happened is {seen}")

    def _check_warned(self, attempt: Attempt) -> None:
        """At its time limit. Where nothing fails any more, every node has heard of it, too."""
        name = f"{attempt.job}.{attempt.number}"
        if attempt.warned_at is None:
            self.fail(f"warn: {name} is stopped at its limit and was not warned")
        for shim in self.of_job.get(attempt.job, {}).values():
            in_peace = (shim.started_at or 0.0) > self.peace_at
            if in_peace and shim.phase is ShimPhase.RUNNING and shim.task not in self.warned:
                self.fail(f"warn: {name} is stopped at its limit, {shim.task} was not warned")

    def settled(self, state: State, disk: Disk) -> None:
        """A commit is done: now and then, see whether the disk holds the state."""
        self.commits += 1
        if self.commits % COMPARE_EVERY == 0 and not disk.staged:
            self.compare(state, disk.replay())
            self.archived(state, disk)

    def archived(self, state: State, disk: Disk) -> None:
        """Were all jobs that have ended in the archive: the rest of the disk holds the rest of the
        state, and each of them can be told from its own facts."""
        over = {name for name, job in state.jobs.items() if job.phase is JobPhase.ENDED}
        live = disk.replay(without=over)
        jobs = {name: job for name, job in state.jobs.items() if name not in over}
        keys = {key: found for key, found in state.keys.items() if found[0] not in over}
        self.compare(replace(state, jobs=jobs, keys=keys, next_job=live.next_job), live)
        histories = disk.histories(over - self.retraced)
        self.retraced |= over
        for name, facts in histories.items():
            wanted, found = deepcopy(state.jobs[name]), retrace(facts)
            for attempt in wanted.attempts:
                attempt.machine_id = ""  # that port is free again
            if found != wanted:
                self.fail(f"archive: job {name} was {wanted}, and its facts say {found}")

    def compare(self, state: State, replayed: State) -> None:
        for name, wanted, found in (
            ("epoch", state.epoch, replayed.epoch),
            ("next job", state.next_job, replayed.next_job),
            ("jobs", state.jobs, replayed.jobs),
            ("keys", state.keys, replayed.keys),
            ("elastic gangs", state.elastic, replayed.elastic),
            ("held", state.held, replayed.held),
            ("queues", _filled(state.queues), _filled(replayed.queues)),
            ("ports", _filled(state.ports), _filled(replayed.ports)),
            ("nodes", _lasting(state), _lasting(replayed)),
        ):
            if wanted != found:
                self.fail(f"replay: {name} are {found} on disk and {wanted} in memory")

    def restarted(self, state: State) -> None:
        """A new process has read the disk: all that was promised is there."""
        for promised in self.promises:
            promised(state)
        for name, job in self.submits.items():
            if job not in state.jobs or state.jobs[job].as_submitted.name != name:
                self.fail(f"I1: {name} was acknowledged as job {job}, and that is lost")
        for job in self.cancels:
            known = state.jobs[job]
            if known.cancel is None and known.phase is not JobPhase.ENDED:
                self.fail(f"I1: the cancel of job {job} was acknowledged and is lost")
        for job in self.holds:
            if state.jobs[job].phase not in (JobPhase.HELD, JobPhase.ENDED):
                self.fail(f"I1: the hold of job {job} was acknowledged and is lost")
        for job, wanted in self.settings.items():
            for name, value in wanted.items():
                if getattr(state.jobs[job].spec, name) != value:
                    self.fail(f"I1: {name} {value} of job {job} was acknowledged and is lost")
        for job, cause in self.ends.items():
            if state.jobs[job].cause != cause:
                self.fail(f"I2: job {job} ended of {cause}, and now of {state.jobs[job].cause}")

    # --- what users were told -------------------------------------------------------------

    def answered(self, result: a.Result) -> None:
        """An answer leaves: what it promises is on disk at this moment."""
        match result:
            case a.Submitted(job, _):
                if job not in self.durable.jobs:
                    self.fail(f"I1: job {job} is acknowledged and not on disk")
            case a.Cancelled(job, already_ended):
                known = self.durable.jobs[job]
                if known.phase is not JobPhase.ENDED and (already_ended or known.cancel is None):
                    self.fail(f"I1: the cancel of job {job} is acknowledged and not on disk")
            case a.Changed(job, _):
                if job not in self.durable.jobs:
                    self.fail(f"I1: the change of job {job} is acknowledged and not on disk")
            case a.Signalled(job, _, _):
                if not any(attempt.signals for attempt in self.durable.jobs[job].attempts):
                    self.fail(f"I1: the signal to job {job} is acknowledged and not on disk")
            case a.Serviced() | a.Stacks() | a.Declined():
                pass

    def greeted(self, epoch: int) -> None:
        """An agent is told the epoch: no other process will ever be in it."""
        if epoch != self.durable.epoch:
            self.fail(f"epoch: {epoch} is told, {self.durable.epoch} is on disk")

    def submit_acked(self, name: str, job: JobId) -> None:
        if self.submits.setdefault(name, job) != job:
            self.fail(f"I1: {name} is job {self.submits[name]} and job {job}")

    def cancel_acked(self, job: JobId, *, already_ended: bool) -> None:
        if not already_ended:
            self.cancels.add(job)

    def change_asked(self, job: JobId, wanted: dict[str, int | float | bool]) -> None:
        """From here on what was acknowledged before may be otherwise."""
        if "hold" in wanted:
            self.holds.discard(job)
        for field_name in wanted:
            self.settings.get(job, {}).pop(field_name, None)

    def change_acked(self, job: JobId, wanted: dict[str, int | float | bool]) -> None:
        if wanted.get("hold"):
            self.holds.add(job)
            if self.durable.jobs[job].phase not in (JobPhase.HELD, JobPhase.ENDED):
                self.fail(f"I1: the hold of job {job} is acknowledged and not on disk")
        kept = {name: value for name, value in wanted.items() if name != "hold"}
        self.settings.setdefault(job, {}).update(kept)

    # --- parts ----------------------------------------------------------------------------

    def _once(self, known: dict[_Key, Cause], key: _Key, cause: Cause) -> None:
        first = known.setdefault(key, cause)
        if first != cause:
            self.fail(f"I2: {key} ended of {first.text!r}, and then of {cause.text!r}")

    def _attempt(self, job: JobId, number: int) -> Attempt | None:
        return self.durable.attempt(job, number)

    def _task(self, task: TaskId) -> TaskState | None:
        job, number, rank = parse_task_id(task)
        attempt = self.durable.attempt(job, number)
        if attempt is None or rank >= len(attempt.tasks):
            return None
        return attempt.tasks[rank].state


def _fits(state: State, spec: JobSpec, avoid: frozenset[NodeName]) -> bool:
    """Whether a whole gang could be had now, judged without the scheduler."""
    able = [
        node
        for node in state.nodes.values()
        if node.inventory.pool == spec.pool and node.inventory.gpus >= (spec.resources.gpu or 0)
    ]
    there = (LinkState.CONNECTED, LinkState.SUSPECT)
    serving = [node for node in able if node.drain is None]
    liked = [node for node in serving if node.name not in avoid and node.link in there]
    if _in_one_network(liked) < spec.nodes:
        liked = serving
    free = [n for n in liked if _is_free(state, spec, n)]
    return _in_one_network(free) >= spec.nodes


def _is_free(state: State, spec: JobSpec, node: Node) -> bool:
    if node.link is not LinkState.CONNECTED:
        return False
    host = [n for n in state.nodes.values() if n.inventory.machine_id == node.inventory.machine_id]
    taken = {uuid for n in host for share in n.holders.values() for uuid in share.gpus}
    whole = [n for n in host if any(share.whole for share in n.holders.values())]
    sound = {gpu.uuid for gpu in node.inventory.devices if not gpu.fault}
    if not sound:
        return not node.holders
    if not spec.resources.gpu:
        return not node.holders and not whole and not taken & sound
    cpus = node.inventory.cpus - sum(share.cpus for share in node.holders.values())
    enough = not node.holders or spec.resources.cpu is None or cpus >= spec.resources.cpu
    return not whole and enough and len(sound - taken) >= spec.resources.gpu


def _in_one_network(nodes: list[Node]) -> int:
    """How many at most share one; each has one address that others can reach."""
    # Agents of one machine that see the same GPUs are one node of a gang.
    hosts = {n.inventory.machine_id if n.inventory.devices else n.name: n for n in nodes}
    subnets = Counter(
        n.inventory.interfaces[-1].addresses[0].rpartition(".")[0] for n in hosts.values()
    )
    return max(subnets.values(), default=0)


def _filled(table: dict[_Key, _Value]) -> dict[_Key, _Value]:
    return {key: value for key, value in table.items() if value}


def _lasting(state: State) -> list[tuple[object, ...]]:
    """Of the nodes, what is in the journal."""
    return [
        (n.name, n.agent_id, n.boot_id, n.version, n.inventory, n.holders, n.drains, n.faults)
        for n in state.nodes.values()
    ]
