"""Real processes on the nodes and their invariants. Every change there is reported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from agent.core.shim_protocol import ShimLimit
from muster.protocol.ids import JobId, NodeName, TaskId, parse_task_id
from muster.protocol.observations.fabric import TaskFabric
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import JobSpec, Launcher, Rdma
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.state import Attempt, State
from orchestrator.core.model.task import OVER
from tests.simulation.disk import Disk
from tests.simulation.machine import Machine
from tests.simulation.rails import agree
from tests.simulation.shim import Shim, writes_nothing
from tests.simulation.world import Violation, World


@dataclass
class Ground:
    """Every method raises Violation where something is wrong, measured by what is on disk."""

    world: World
    disk: Disk
    machines: dict[NodeName, str] = field(default_factory=dict)  # the host each node is on
    wiring: dict[NodeName, Machine] = field(default_factory=dict)
    on_node: dict[NodeName, dict[TaskId, Shim]] = field(default_factory=dict)
    of_job: dict[JobId, dict[TaskId, Shim]] = field(default_factory=dict)
    signals: set[tuple[TaskId, int]] = field(default_factory=set)
    fabrics: dict[TaskId, TaskFabric] = field(default_factory=dict)  # as its node received it
    began: dict[TaskId, float] = field(default_factory=dict)  # when its node made ready for it
    ready: set[TaskId] = field(default_factory=set)
    arranged: set[TaskId] = field(default_factory=set)
    proved: set[TaskId] = field(default_factory=set)
    blocks: dict[NodeName, set[TaskId]] = field(default_factory=dict)
    listened: set[TaskId] = field(default_factory=set)
    succeeded_tasks: set[TaskId] = field(default_factory=set)
    ran: set[TaskId] = field(default_factory=set)
    stored: set[TaskId] = field(default_factory=set)  # all of its log, with the coordinator
    restores: bool = False
    failures: dict[tuple[JobId, int, int], ExitStatus] = field(default_factory=dict)

    @property
    def durable(self) -> State:
        return self.disk.shadow

    def of_before(self, job: JobId, attempt: int) -> bool:
        """True if it was made before a restore, so that the journal may lack some of it."""
        known = self.durable.jobs.get(job)
        return self.restores and (known is None or known.is_restored(attempt))

    def fail(self, text: str) -> NoReturn:
        raise Violation(text)

    def occupied(self, shim: Shim) -> None:
        """A process of the job exists on the node; its setup counts."""
        self.world.log(f"{shim.node} {shim.task} occupied")
        self.world.judged.update(("I3", "I4", "I5"))
        self.ran.add(shim.task)
        here = self.on_node.setdefault(shim.node, {})
        for other in here.values():
            if not other.wedged and (other.job, other.attempt) != (shim.job, shim.attempt):
                self._check_apart(shim, other)
        self._check_gpus(shim)
        here[shim.task] = shim
        siblings = self.of_job.setdefault(shim.job, {})
        for other in siblings.values():
            if other.attempt != shim.attempt and not self.may_outlive(other):
                self.fail(f"I3: {other.task} on {other.node} still runs as {shim.task} begins")
        siblings[shim.task] = shim
        if self.of_before(shim.job, shim.attempt):
            return
        if self.durable.jobs[shim.job].phase is JobPhase.ENDED:
            self.fail(f"I4: {shim.task} begins on {shim.node} although its job has ended")

    def may_outlive(self, shim: Shim) -> bool:
        """True if processes of a task may exist after its attempt: the kernel holds them, or they
        escape SIGKILL on a node that is cut off, so that its lease counts as their end.
        """
        if shim.wedged:
            return True
        attempt = self._attempt(shim.job, shim.attempt)
        if attempt is None or shim.rank >= len(attempt.tasks):
            return False
        return shim.doomed and attempt.tasks[shim.rank].proof is TaskProof.LEASE

    def _check_apart(self, shim: Shim, other: Shim) -> None:
        """Only those share a node that each have a part of it."""
        parts = [
            bool(one.gpus)
            and (job := self.durable.jobs.get(one.job)) is not None
            and job.spec.resources.gpu
            for one in (shim, other)
        ]
        if not all(parts):
            self.fail(f"I5: {shim.node} runs processes of {other.task} and of {shim.task}")
        self.world.met["node_shared"] += 1

    def _check_gpus(self, shim: Shim) -> None:
        """No two tasks on a machine have the same GPU, through whichever agents they came, unless
        one may outlive its attempt."""
        host = self.machines[shim.node]
        for node, tasks in self.on_node.items():
            for other in tasks.values() if self.machines[node] == host else ():
                both = set(shim.gpus) & set(other.gpus)
                if both and other is not shim and not self.may_outlive(other):
                    self.fail(f"gpus: {other.task} and {shim.task} both have {sorted(both)}")

    def vacated(self, shim: Shim) -> None:
        self.world.log(f"{shim.node} {shim.task} vacated")
        self.on_node[shim.node].pop(shim.task, None)
        self.of_job[shim.job].pop(shim.task, None)

    def task_created(self, node: NodeName, task: TaskId) -> None:
        """An agent makes ready for a task: that was decided, and is on disk."""
        if self._task(task) is None and not self._is_of_before(task):
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
        if self._task(task) is TaskState.CLEANED and not self._is_of_before(task):
            self.fail(f"hosts: a block of {task} is written on {node}, and the task is clean")

    def block_removed(self, node: NodeName, task: TaskId) -> None:
        self.world.judged["I7"] += 1
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
        if self.of_before(shim.job, shim.attempt):
            return
        attempt = self._attempt(shim.job, shim.attempt)
        if attempt is None or attempt.released_at is None:
            self.fail(f"gang: {shim.task} runs, and that its gang may start is not on disk")
        # Nobody waits for a task that joins later, and earlier host tables do not contain it.
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
                self._check_rendezvous(shim, attempt)
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

    def _check_rendezvous(self, shim: Shim, attempt: Attempt) -> None:
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
        """The ranks of a task get a user's signal."""
        if self.of_before(shim.job, shim.attempt):
            return
        attempt = self._attempt(shim.job, shim.attempt)
        given = [] if attempt is None else [it for it in attempt.signals if it.number == number]
        if not given or given[0].name != name:
            self.fail(f"warn: {shim.task} gets {name}, and that is not on disk")
        self.world.met["signalled"] += 1
        if (shim.task, number) in self.signals:
            self.fail(f"warn: {shim.task} gets the same {name} twice")
        self.signals.add((shim.task, number))

    def limited(self, shim: Shim, limit: ShimLimit) -> None:
        """A shim receives the time limit of its task."""
        attempt = self._attempt(shim.job, shim.attempt)
        if self.of_before(shim.job, shim.attempt) or attempt is None:
            return
        job = self.durable.jobs[shim.job]
        if job.current is not attempt:  # later changes concern another attempt
            return
        spec, task = job.spec, attempt.tasks[shim.rank]
        if limit.number > attempt.terms:
            self.fail(f"limit: {shim.task} gets number {limit.number} of {attempt.terms} limits")
        if limit.number == attempt.terms and not task.joined and limit.limit_s != spec.time_limit_s:
            self.fail(f"limit: {shim.task} gets {limit.limit_s} s, its job {spec.time_limit_s} s")

    def limit_near(self, shim: Shim, limit: ShimLimit) -> None:
        """The ranks of a task are warned of its time limit."""
        assert limit.warn_s is not None
        self.world.met["warned"] += 1
        self._check_run(shim, limit.warn_s, "is warned")

    def limit_over(self, shim: Shim, limit: ShimLimit) -> None:
        """A node ends a task at its time limit."""
        assert limit.limit_s is not None
        self.world.met["limit_over"] += 1
        self._check_run(shim, limit.limit_s, "is ended")

    def _check_run(self, shim: Shim, after_s: float, what: str) -> None:
        assert shim.started_at is not None
        ran_s = (self.world.now - shim.started_at) * shim.clock_rate
        if ran_s < after_s - 1e-3:
            self.fail(f"limit: {shim.task} {what} after {ran_s:.3f} s instead of {after_s:.3f} s")

    def succeeded(self, shim: Shim) -> None:
        self.succeeded_tasks.add(shim.task)

    def failed(self, shim: Shim, rank: int, status: ExitStatus) -> None:
        """A rank has failed of itself; what we stop does not count."""
        self.failures[shim.job, shim.attempt, rank] = status

    def removed(self, node: NodeName, task: TaskId) -> None:
        """A task's folder goes, and its record with it: the end is on disk elsewhere."""
        self.world.judged.update(("I1", "I6"))
        if self._is_of_before(task):
            return
        mute = writes_nothing(self.world, task)
        self.world.met["mute"] += mute
        if task in self.ran and task not in self.stored and not mute:
            self.fail(f"I6: {node} removes {task}, and its log is not stored")
        state = self._task(task)
        if state is not None and state not in OVER:
            self.fail(f"I1: {node} removes {task}, which is {state.value} on disk")

    def _attempt(self, job: JobId, number: int) -> Attempt | None:
        return self.durable.attempt(job, number)

    def _is_of_before(self, task: TaskId) -> bool:
        job, attempt, _ = parse_task_id(task)
        return self.of_before(job, attempt)

    def _task(self, task: TaskId) -> TaskState | None:
        job, number, rank = parse_task_id(task)
        attempt = self.durable.attempt(job, number)
        if attempt is None or rank >= len(attempt.tasks):
            return None
        return attempt.tasks[rank].state
