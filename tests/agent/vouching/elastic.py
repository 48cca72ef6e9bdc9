"""An elastic gang in a virtual world: members join and leave, and learn of it at different times.

The coordinator here counts as the real one does: by `over_at`, on its own records of tasks.
"""

from __future__ import annotations

from functools import partial

from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.link import control_channel as m
from muster.protocol.link.terms import ChangeTerms, Member, Terms
from muster.protocol.states import TaskState
from muster.spec.model import Argv, JobSpec, Rendezvous
from orchestrator.core.model import leases
from orchestrator.core.model.state import Attempt, Job, Node, State, Task
from tests.agent.vouching.world import HEARTBEAT_S, LEASE_S, Machine, Violation, World


class ElasticWorld(World):
    """A world of a gang that starts with `size` members."""

    def __init__(self, seed: int, size: int = 2) -> None:
        """Begins with the gang running."""
        spec = JobSpec(name="e", nodes=1, max_nodes=9, rendezvous=Rendezvous.C10D, run=Argv(("x",)))
        self.attempt = Attempt(JobId(1), 1, [], 0.0, lease_s=LEASE_S, vouch_key="ab" * 32)
        job = Job(JobId(1), spec, "ada", 0.0, attempts=[self.attempt])
        self.state = State(jobs={job.id: job})
        self.judged: set[TaskId] = set()
        super().__init__(seed, size)

    def run_on(self, machine: Machine, terms: Terms) -> None:
        name = NodeName(f"n{machine.rank}")
        task = Task(self.tasks[machine.rank], JobId(1), 1, machine.rank, name)
        self.attempt.tasks.append(task)
        inventory = m.Inventory("10.0.0.1", "machine")
        self.state.nodes[name] = Node(name, "id", "boot-1", "0", inventory)
        super().run_on(machine, terms)

    def join(self) -> None:
        """A node has its plan on disk and runs. The coordinator adds it once it is connected."""
        rank = len(self.machines)
        machine = Machine(rank, 1 + self.rng.uniform(-0.02, 0.02))
        self.machines.append(machine)
        self.tasks.append(TaskId(f"1.1.{rank}"))
        self.answered[rank] = self.now
        number = self.attempt.terms
        members = (*self._members(), Member(self.tasks[rank], str(rank), 1))
        self.run_on(machine, Terms(number, members=members))
        task = self.attempt.tasks[rank]
        task.planned_terms, task.member_from = number, None
        self.met["joined"] += 1

    def leave(self, rank: int) -> None:
        """The gang goes on without a member, which may run on until it knows."""
        task = self.attempt.tasks[rank]
        if task.left is None and not self.stopping:
            task.left = "it is silent"
            self.attempt.terms += 1
            task.member_until = self.attempt.terms
            self._send_terms()
            self.met["left"] += 1

    def _members(self) -> tuple[Member, ...]:
        named = [it for it in self.attempt.present if it.member_from is not None]
        return tuple(Member(it.id, str(it.rank), 1) for it in named)

    def _send_terms(self) -> None:
        for machine in self.machines:
            if machine.connection:
                self._refresh(machine, machine.connection)

    def _refresh(self, machine: Machine, connection: int) -> None:
        """Send what a node lacks: the newest terms, or its stop once it has left."""
        task = self.attempt.tasks[machine.rank]
        if not task.present:
            self._stop(machine, connection)
        elif task.terms < self.attempt.terms and not self.stopping:
            members = self._members()
            if task.member_from is None:
                members = (*members, Member(task.id, str(task.rank), 1))
            terms = Terms(self.attempt.terms, members=members)
            self._down(machine, connection, ChangeTerms(task.id, terms))

    def _hear(self, machine: Machine, connection: int, report: m.Report) -> None:
        super()._hear(machine, connection, report)
        if isinstance(report, m.Hello | m.Heartbeat):
            self._refresh(machine, connection)

    def _reported(self, rank: int, report: m.TaskReport) -> None:
        super()._reported(rank, report)
        task = self.attempt.tasks[rank]
        if report.terms > task.terms:
            task.terms, task.terms_at = report.terms, self.now
        runs = report.state is TaskState.STARTED and task.present and not self.stopping
        if runs and task.member_from is None:
            self.attempt.terms += 1
            task.member_from = self.attempt.terms
            self._send_terms()

    def _judge(self) -> None:
        for machine, task in zip(self.machines, self.attempt.tasks, strict=False):
            if machine.rank in self.ended or (task.present and not self.stopping):
                continue
            if not machine.runs and task.id in self.judged:
                continue
            self.state.nodes[task.node].answered_at = self.answered[machine.rank]
            for rank, at in self.mute.items():
                self.attempt.tasks[rank].mute_at = at
            over = leases.over_at(self.state, self.attempt, task)
            if over is not None and self.now >= over:
                self.met["judged_left" if task.left else "judged"] += 1
                self.judged.add(task.id)
                if machine.runs:
                    raise Violation(f"at {self.now:.1f} {task.id} runs: over {over:.1f}")

    def lose(self, rank: int, links: list[tuple[int, int]], for_s: float) -> None:
        """Cut a member off; its neighbours notice, and the gang goes on without it."""
        self.cut(links, for_s)
        self.at(self.rng.uniform(2, 6) * HEARTBEAT_S, partial(self.leave, rank))
