"""A whole simulated cluster from one seed: some time of trouble, then peace, then the reckoning."""

from __future__ import annotations

from functools import partial

from muster.protocol.ids import NodeName, parse_task_id
from muster.protocol.link.control_channel import Inventory
from muster.spec.model import JobSpec
from orchestrator.core.gangs.log_delivery import tasks_with_pending_logs
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.plan import Backfill, PoolPolicy
from orchestrator.core.model.state import Job
from tests.simulation.cards import Cards, with_cards
from tests.simulation.checkers import Checkers
from tests.simulation.clients import Client, Rudeness
from tests.simulation.coordinator import Coordinator
from tests.simulation.crashes import Crashes
from tests.simulation.disk import Disk
from tests.simulation.draining import FIRST_DRAINED, Draining, quarantine_of
from tests.simulation.faults import Swarm
from tests.simulation.jobs import draw_temper, make_job
from tests.simulation.judging import Judging
from tests.simulation.machine import Machine
from tests.simulation.mishaps import Mishaps
from tests.simulation.network import Cut, Network
from tests.simulation.node import Node
from tests.simulation.onlookers import Onlookers
from tests.simulation.operator import Operator
from tests.simulation.programs import Programs
from tests.simulation.restores import Restores
from tests.simulation.shim import HELD_S
from tests.simulation.steering import FIRST_STEERED, Steering
from tests.simulation.stuck import Stuck
from tests.simulation.vouching import LEASES_S, Vouching, vouches
from tests.simulation.world import Violation, World

TROUBLE_S = 1200.0
STRICT = PoolPolicy(Backfill.OFF)
"""Most worlds have strict queues: their seeds stay the runs that they were."""
BOUND_S = 4 * 3600.0
"""I10: once nothing fails any more, every job has ended within so long. A dozen jobs may have to
run one after the other, each up to five times, for at most 440 s and the timeouts around them."""
SETTLE_S = 600.0
"""And so long after the last job, and after the kernel has let go of the last process, nothing at
all is left of any."""
LIMIT_SLACK_S = 150.0
"""The slack of a time limit: a launcher may listen late, and each start has its own timeout."""


class Cluster:
    """Everything there is in one run."""

    def __init__(
        self,
        seed: int,
        *,
        wall_jumps: bool = True,
        verbose: bool = False,
        trouble_s: float = TROUBLE_S,
        crashes: Crashes | None = None,
        policy: PoolPolicy = STRICT,
        shares_looks: bool = False,
    ) -> None:
        self.world = World(seed, wall_jumps=wall_jumps, verbose=verbose)
        self.world.crashes = crashes
        self.trouble_s = trouble_s
        rng = self.world.rng
        self.network = Network(self.world)
        self.programs = Programs(self.world)
        lease_s = rng.choice((30.0, 60.0, 120.0))
        if vouches(seed):
            lease_s = LEASES_S[seed % len(LEASES_S)]
        self.limits = Limits(
            lease_s=lease_s,
            prepare_timeout_s=120.0,
            arrange_timeout_s=30.0,
            start_timeout_s=60.0,
            quarantine=quarantine_of(seed),
        )
        self.disk = Disk()
        self.checkers = Checkers(self.world, self.disk)
        self.coordinator = Coordinator(
            self.world, self.network, self.disk, self.limits, self.checkers
        )
        self.coordinator.shares_looks = shares_looks
        self.coordinator.crashed = self._restart_coordinator
        self.judging = Judging(self.coordinator, self.checkers)
        self.nodes: list[Node] = []
        self._peace_at = 0.0
        self.gone: Node | None = None
        pools = self._make_nodes()
        self.coordinator.pools = dict.fromkeys(pools, policy)
        self.clients = self._make_clients(pools)
        steered = seed >= FIRST_STEERED
        self.steering = (
            Steering(self.world, self.coordinator, self.checkers, self.clients) if steered else None
        )
        self.swarm = Swarm(self)
        self.mishaps = Mishaps(self)
        self.restores = Restores(self)
        self.vouching = Vouching(self)
        self.operator = Operator(self)
        names = [node.name for node in self.nodes]
        self.draining = (
            Draining(self.world, self.coordinator, self.checkers, names, trouble_s)
            if seed >= FIRST_DRAINED
            else None
        )
        self.stuck = Stuck(self.world, self.coordinator, self.checkers)
        self.cards = Cards(self.world, self.nodes)
        self.onlookers = Onlookers(
            self.world,
            self.coordinator,
            self.checkers,
            self.clients,
            self.draining,
            removes="impostor" not in self.swarm.chosen,
        )

    def run(self) -> World:
        """Live through it all. Raises Violation, or what a core raised."""
        world = self.world
        self.coordinator.start()
        world.run(self.trouble_s)
        self._make_peace()
        self._peace_at = self.checkers.peace_at = world.now
        deadline = world.now + BOUND_S
        while not self._ended():
            if world.now >= deadline:
                raise Violation(f"I10: {BOUND_S:g} s after the last fault, {self._unended()}")
            self._check_limits(world.now)
            world.run(world.now + 20.0)
        deadline = world.now + SETTLE_S + HELD_S
        while (left := self._left()) is not None:
            if world.now >= deadline:
                raise Violation(f"I4: {SETTLE_S:g} s after the last job, {left}")
            world.run(world.now + 10.0)
        self._reckon()
        world.log(f"the end: {world.steps} steps")
        return world

    def power_on(self, node: Node) -> None:
        if node is not self.gone and not node.machine.powered:
            node.machine.power_on()
            node.start()

    # --- making ---------------------------------------------------------------------------

    def _make_nodes(self) -> dict[str, int]:
        rng = self.world.rng
        names = ["default", "big", "small"][: rng.choice((1, 1, 2, 3))]
        pools: dict[str, int] = dict.fromkeys(names, 0)
        count = max(rng.randint(2, 8), len(names))
        shared = rng.random() < 0.25  # two agents on each host
        for number in range(count):
            pool = names[number % len(names)]
            pools[pool] += 1
            host = number // 2 if shared else number
            inventory = Inventory(
                address=f"10.0.0.{host}",
                machine_id=f"host-{host}",
                gpus=rng.choice((2, 4)),
                pool=pool,
                shared_host=shared,
            )
            inventory = with_cards(self.world, inventory, host)
            name = NodeName(f"n{number}")
            self.network.cuts[name] = Cut()
            machine = Machine(self.world, self.checkers.ground, self.programs, name, inventory)
            machine.rate = rng.uniform(0.999, 1.001)
            machine.beside = [
                n.machine for n in self.nodes if n.machine.inventory.machine_id == f"host-{host}"
            ]
            for other in machine.beside:
                other.beside.append(machine)
            node = Node(self.world, self.network, self.coordinator, machine, self.checkers.ground)
            self.checkers.ground.machines[name] = inventory.machine_id
            self.checkers.ground.wiring[name] = machine
            self.nodes.append(node)
            self.world.at(rng.uniform(0.0, 20.0), node.start)
        return pools

    def _make_clients(self, pools: dict[str, int]) -> list[Client]:
        rng, world = self.world.rng, self.world
        temper = draw_temper(world)
        rudeness = Rudeness(
            answer_lost=rng.choice((0.0, 0.3)),
            cancels=rng.choice((0.0, 0.2, 0.5)),
            cancels_twice=rng.choice((0.0, 0.4)),
            forces=rng.choice((0.0, 0.3)),
        )
        clients = []
        for number in range(rng.randint(3, 14)):
            spec = make_job(world, self.programs, temper, number, pools)
            client = Client(world, self.coordinator, self.checkers, spec, rudeness)
            clients.append(client)
            world.at(rng.uniform(0.0, self.trouble_s * rng.random()), client.submit)
        return clients

    # --- peace ----------------------------------------------------------------------------

    def _restart_coordinator(self) -> None:
        rng = self.world.rng
        down_s = rng.choice((rng.uniform(0.05, 2.0), rng.uniform(1.0, 60.0)))
        if rng.random() < 0.1:
            down_s = self.limits.lease_s * rng.uniform(0.8, 2.0)
        self.world.at(self.vouching.absence_s() or down_s, self.coordinator.start)

    def _make_peace(self) -> None:
        self.world.log("peace")
        self.swarm.stop()
        self.mishaps.make_peace()
        self.restores.make_peace()
        self.vouching.make_peace()
        self.cards.make_peace()
        for node in self.nodes:
            node.traffic.make_peace()
            node.health.make_peace()
        self.coordinator.thaw()
        self._choose_gone()
        for node in self.nodes:
            if node is not self.gone:
                node.thaw()
                self.power_on(node)
                node.start()
        if self.steering is not None:
            self.steering.make_peace(self.clients)
        if self.draining is not None:
            self.draining.make_peace()
        self.onlookers.make_peace()
        for client in self.clients:
            client.peace = True
            program = self.programs.by_name[client.spec.name]
            endless = program.never_ends and client.spec.time_limit_s is None
            if endless or not self._can_ever_run(client.spec):
                self._cancel_in_the_end(client)

    def _choose_gone(self) -> None:
        """A node may be off for good: the others have to go on without it."""
        if self.world.chance(0.2):
            node = self.world.rng.choice(self.nodes)
            self.world.log(f"{node.name} is gone for good")
            self.world.met["node_gone"] += 1
            if node.machine.powered:
                node.crash(power=True)
                node.machine.power_off()
            self.gone = node

    def _can_ever_run(self, spec: JobSpec) -> bool:
        here = [n for n in self.nodes if n is not self.gone]
        pool = [n.machine.inventory for n in here if n.machine.inventory.pool == spec.pool]
        # Agents of one host that see the same GPUs are one node of a gang.
        hosts = {it.machine_id if it.devices else f"{n}": n for n, it in enumerate(pool)}
        return len(hosts) >= spec.nodes

    def _cancel_in_the_end(self, client: Client) -> None:
        if client.job is None and not client.declined:
            self.world.at(10.0, partial(self._cancel_in_the_end, client))
        elif client.job is not None:
            client.cancel()

    def _check_limits(self, now: float) -> None:
        """In peace a time limit holds, plus the time for the stop."""
        for tasks in self.checkers.ground.on_node.values():
            for shim in tasks.values():
                job = self.coordinator.state.jobs.get(shim.job)
                if job is None:  # it came after a backup that was restored
                    continue
                spec, began = job.spec, shim.started_at
                if not shim.running or began is None or spec.time_limit_s is None:
                    continue
                over_s = now - max(began, self._peace_at) - spec.time_limit_s - spec.stop.grace_s
                if over_s > LIMIT_SLACK_S:
                    raise Violation(f"limit: {shim.task} runs {over_s:.0f} s longer than it may")

    def _ended(self) -> bool:
        return self.coordinator.up and self._unended() is None

    def _unended(self) -> str | None:
        for client in self.clients:
            if not client.content:
                return f"{client.spec.name} waits for its answer"
        for job in self.coordinator.state.jobs.values():
            if job.phase is not JobPhase.ENDED:
                attempt = job.current
                notes = (
                    "" if attempt is None else f", attempt {attempt.number} {attempt.phase.value}"
                )
                return f"job {job.id} is {job.phase.value}{notes}"
        return None

    def _left(self) -> str | None:
        for node in self.nodes:
            if node is self.gone:
                continue
            for task in node.machine.folders:
                return f"the folder of {task} is on {node.name}"
            for task in node.machine.blocks:
                return f"I7: the names of {task} are in the hosts file of {node.name}"
            if node.state is None or node.state.tasks:
                return f"the agent of {node.name} holds tasks"
        for name, known in self.coordinator.state.nodes.items():
            gone = self.gone is not None and name == self.gone.name
            if known.holders or (known.session is None) != gone:
                return f"{name} is held by {known.holders}, {known.link.value}"
        if any(self.coordinator.state.ports.values()):
            return f"ports are leased: {self.coordinator.state.ports}"
        if self.coordinator.state.webhook_jobs or self.coordinator.state.stack_dumps:
            notes = sorted(self.coordinator.state.webhook_jobs)
            return (
                f"webhooks of {notes} are not sent, or {self.coordinator.state.stack_dumps} go on"
            )
        if self.disk.staged:
            return "facts are not on disk"
        return None

    def _logs_came(self, job: Job) -> None:
        """Check that an incomplete log is reported only if it was lost with a disk."""
        if "folder_loss" in self.swarm.chosen:
            return
        keys = (parse_task_id(task) for task in self.checkers.ground.stored)
        stored = {(attempt, rank) for number, attempt, rank in keys if number == job.id}
        for task in tasks_with_pending_logs(job, stored):
            if self.gone is None or task.node != self.gone.name:
                raise Violation(f"I6: the log of {task.id} never came, and is waited for")

    def _reckon(self) -> None:
        state = self.coordinator.state
        self.checkers.replay.check(state, self.disk)
        self.checkers.restarted(state)
        self.world.judged.update(("I7", "I8", "I10"))
        for name in ("suspects", "running", "elastic", "held", "watches", "sessions"):
            known = len(getattr(state, name))
            if known > (len(self.nodes) if name == "sessions" else 0):
                raise Violation(f"I8: {known} {name} are kept after the end of all jobs")
        submitted = sum(not client.declined for client in self.clients)
        if len(state.jobs) != submitted:
            raise Violation(f"I1: {submitted} jobs were submitted, {len(state.jobs)} known")
        for client in self.clients:
            if client.declined:
                continue
            if client.job is None or state.jobs[client.job].as_submitted != client.spec:
                raise Violation(f"I1: {client.spec.name} is job {client.job}, which is another")
        for job in state.jobs.values():
            self._logs_came(job)
            assert job.cause is not None
            self.world.met[f"job_{job.cause.outcome.value}"] += 1
            self.world.met[f"cause_{job.cause.code.value}"] += 1
