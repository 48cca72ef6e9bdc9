"""A model of the shim and of the processes it owns: they outlive the agent, not the machine.

It uses the documents and commands of `agent.core.shim_protocol` and keeps to what the real one
does: a ladder that only gets shorter, a lease of its own, an exit record that is there before
the end is reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import assert_never

from agent.core import shim_protocol as s
from agent.core.shim_protocol import ShimPhase as P
from muster.protocol.ids import NodeName, TaskId, parse_task_id
from muster.protocol.outcome import ExitStatus
from tests.simulation.programs import PEER_GONE, RAISED, Course, Program, Programs
from tests.simulation.time_limits import TimeLimit
from tests.simulation.truth import Truth
from tests.simulation.world import World

ABANDONED_S = 30.0
LINGER_S = 120.0
LEFTOVER_GRACE_S = 2.0
STUCK_S = 60.0
HELD_S = 900.0
FIRST_STUCK = 1200
"""From this seed on, shims report processes that SIGKILL does not end, and some of those are held
for long. Those before stay the runs that they were."""
BEFORE_GATE = (P.NEW, P.PREPARING, P.PREPARED)
ENDED = (P.CLEANED, P.REFUSED)
FIRST_MUTE = 1300
"""From this seed on the tasks of each third job write nothing."""
_MUTE = 3


def writes_nothing(world: World, task: TaskId) -> bool:
    """True if the logs of a task stay without a byte."""
    return world.seed >= FIRST_MUTE and parse_task_id(task)[0] % _MUTE == 0


class Shim:
    """The shim of one task. `changed` is called with every new document."""

    def __init__(
        self,
        world: World,
        truth: Truth,
        programs: Programs,
        node: NodeName,
        clock_rate: float,
        task: TaskId,
        changed: Callable[[Shim], None],
    ) -> None:
        self.world = world
        self.truth = truth
        self.node = node
        self.clock_rate = clock_rate
        self.task = task
        self.job, self.attempt, self.rank = parse_task_id(task)
        self.changed = changed
        self.phase = P.NEW
        self.dead = False  # the shim's own process is gone
        self.occupied = False  # a process of the job exists
        self.doomed = False  # all of them have been sent SIGKILL
        self.wedged = False  # and the kernel does not let go of one: it computes no more
        self.record: s.ShimStatus | None = None
        self.listening = False
        self.listen_port: int | None = None
        self.gpus: tuple[str, ...] = ()
        self.signalled = 0
        self._programs = programs
        self._name = ""
        self._torchrun = False
        self._numbers: list[int] = []  # of its ranks
        self._start_seen = False
        self._ends = False
        self.started_at: float | None = None
        self._ended_at: float | None = None
        self._refusal: s.ShimRefusal | None = None
        self._exit: s.ShimExit | None = None
        self._stopped_by: str | None = None
        self._first_failed: int | None = None
        self._ranks: list[s.ShimRank] = []
        self._kill_at: float | None = None
        self.limit = TimeLimit(self)
        self._stop_grace_s = 0.0
        self._lease_until: float | None = None
        self._lease_grace_s = 0.0
        self._lease_watched = False
        self._alone_since: float | None = world.now
        self.alone()

    @property
    def running(self) -> bool:
        """True if the program's processes exist and may still do something."""
        return self.occupied and self.started_at is not None and not self.wedged

    def document(self) -> s.ShimStatus:
        running_s = None
        if self.started_at is not None:
            until = self.world.now if self._ended_at is None else self._ended_at
            running_s = until - self.started_at
        return s.ShimStatus(
            task=self.task,
            phase=self.phase,
            refusal=self._refusal,
            fingerprint=s.ShimFingerprint("3.11.7", "2.13.0") if self._torchrun else None,
            start_method=s.ShimStartMethod("fork") if self._torchrun and self.started_at else None,
            log_dir="/logs",
            listening=self.listening,
            ranks=tuple(self._ranks),
            exit=self._exit,
            stopped_by=self._stopped_by,
            first_failed=self._first_failed,
            running_s=running_s,
            signalled=self.signalled,
            survivors=(1000,) if self._reports_stuck and self.phase is P.STUCK else (),
            doomed=self._reports_stuck and self.phase is P.STUCK and self.wedged,
            warned_s=self.limit.warned_s,
        )

    @property
    def _reports_stuck(self) -> bool:
        return self.world.seed >= FIRST_STUCK

    # --- messages of the agent -----------------------------------------------------------

    def alone(self) -> None:
        """Its agent is gone."""
        self._alone_since = self.world.now
        wait_s = ABANDONED_S if self.phase in BEFORE_GATE else LINGER_S
        self.world.at(wait_s, partial(self._still_alone, self.world.now))

    def company(self) -> None:
        self._alone_since = None

    def _still_alone(self, since: float) -> None:
        if self.dead or self._alone_since != since:
            return
        if self.phase in BEFORE_GATE:
            self.world.met["shim_abandoned"] += 1
            self._stop("abandoned", 0.0)
        elif self.phase in ENDED:
            self.dead = True
            return
        self.world.at(LINGER_S, partial(self._still_alone, since))

    def handle(self, command: s.ShimCommand) -> None:
        if self.dead:
            return
        match command:
            case s.ShimPrepare():
                self._prepare(command)
            case s.ShimHostfile():
                pass
            case s.ShimStart():
                self._start(command)
            case s.ShimStop(signal, grace_s):
                self._stop("stop", 0.0 if signal == "SIGKILL" else grace_s)
            case s.ShimSignal(name, number):
                self._signal(number, name)
            case s.ShimKill():
                self._stop("kill", 0.0)
            case s.ShimLease():
                self._lease(command)
            case s.ShimLimit():
                self.limit.change(command)
            case s.ShimRelease():
                if self.phase in ENDED:
                    self.dead = True
            case _:
                assert_never(command)

    def _signal(self, number: int, name: str) -> None:
        if self.phase is P.RUNNING and number > self.signalled:
            self.signalled = number
            self.truth.signalled(self, number, name)
            self.changed(self)

    def limit_over(self) -> None:
        self._stop("limit", self._stop_grace_s)

    def _lease(self, command: s.ShimLease) -> None:
        if self.phase in ENDED:
            return
        if command.ttl_s == 0:
            self._lease_until = None  # so the real one reads it: no lease, no end
            return
        self._lease_until = self.world.now + command.ttl_s / self.clock_rate
        if command.until is not None:
            self._lease_until = min(self._lease_until, command.until)
        self._lease_grace_s = command.grace_s
        if not self._lease_watched:
            self._lease_watched = True
            self.world.at(command.ttl_s / self.clock_rate, self._watch_lease)

    def _watch_lease(self) -> None:
        self._lease_watched = False
        if self.dead or self.phase in ENDED or self._lease_until is None:
            return
        left = self._lease_until - self.world.now
        if left > 0:
            self._lease_watched = True
            self.world.at(left, self._watch_lease)
            return
        self.world.met["lease_ended_task"] += 1
        self._stop("lease", self._lease_grace_s)

    # --- before the gate ------------------------------------------------------------------

    def _prepare(self, command: s.ShimPrepare) -> None:
        if self.phase is not P.NEW:
            return
        self._name = (command.env or {})["MUSTER_JOB_NAME"]
        self._torchrun = command.launcher == "torchrun"
        program = self._program
        self.phase = P.PREPARING
        self.occupied = True
        self.truth.occupied(self)
        takes_s = self.world.rng.uniform(*program.setup_s)
        refuses = program.refuses_all or self.world.chance(program.refuses)
        limit_s = command.setup_timeout_s
        if takes_s > limit_s:
            takes_s, refuses = limit_s, True
        self.world.at(takes_s, partial(self._setup_over, refuses=refuses))
        self.changed(self)

    def _setup_over(self, *, refuses: bool) -> None:
        if self.phase is not P.PREPARING or self._ends or self.dead:
            return
        if not refuses:
            self.phase = P.PREPARED
            self.truth.prepared(self)
            self.changed(self)
            if self._torchrun and self.world.chance(self._program.gate_dies):
                self.world.at(self.world.rng.uniform(0.0, 0.1), self._gate_dies)
            return
        self.world.met["refused"] += 1
        code = self._program.refusal_code
        self._refusal = s.ShimRefusal(code, f"{code}, says {self.node}")
        self._ends = True
        self._die(self.world.rng.choice((0.005, 0.5)))
        self.changed(self)

    def refuse_plan(self) -> None:
        """The host file cannot be written."""
        if self.dead or self.phase is not P.PREPARED or self._start_seen or self._ends:
            return
        self._refusal = s.ShimRefusal("spawn_failed", "the host file cannot be written")
        self._ends = True
        self._die(self.world.rng.choice((0.005, 0.5)))
        self.changed(self)

    def _gate_dies(self) -> None:
        """Kill the process at the gate before the gate was ever opened."""
        if self.dead or self.phase is not P.PREPARED or self._start_seen:
            return
        self.world.met["gate_died"] += 1
        self._refusal = s.ShimRefusal("bootstrap_failed", "was it killed?")
        self._main_ended(s.ShimExit(signal=9))

    def _start(self, command: s.ShimStart) -> None:
        if self.phase is not P.PREPARED or self._start_seen or self._ends:
            return
        self._start_seen = True
        self.listen_port, self._stop_grace_s = command.listen_port, command.grace_s
        self._numbers = self._ranks_of(command)
        self.world.at(self.world.rng.uniform(0.001, 0.05), self._spawn)

    # --- the run --------------------------------------------------------------------------

    def _spawn(self) -> None:
        if self.dead or self._ends:
            return
        world, program = self.world, self._program
        if world.chance(program.start_fails):
            world.met["start_failed"] += 1
            self._refusal = s.ShimRefusal("spawn_failed", "no such file")
            self._main_ended(s.ShimExit(code=127))
            return
        self.started_at = world.now
        self.phase = P.RUNNING
        self._ranks = [
            s.ShimRank(number, local, pid=1000 + local)
            for local, number in enumerate(self._numbers)
        ]
        self.truth.program_started(self)
        course = self._programs.course(self._name, self.job, self.attempt)
        if self.listen_port is not None:
            world.at(world.rng.uniform(*program.listen_s), self._listen)
        self._let_run(program, course, len(self._ranks))
        self.limit.follow()
        self.changed(self)

    def _ranks_of(self, command: s.ShimStart) -> list[int]:
        if command.ranks:
            return [int(own["RANK"]) for own in command.ranks]
        return [2 * self.rank, 2 * self.rank + 1] if self._torchrun else [self.rank]

    @property
    def ranks(self) -> list[int]:
        return self._numbers

    def _let_run(self, program: Program, course: Course, count: int) -> None:
        world = self.world
        if course.failing_node == self.rank:
            local = course.failing_local % count
            world.at(course.fails_at_s, partial(self._rank_fails, local, course.code, RAISED))
        elif course.failing_node is not None and program.infects:
            after_s = course.fails_at_s + 0.2 * (1 + self.rank)
            world.at(after_s, partial(self._rank_fails, 0, 1, PEER_GONE))
        elif not program.never_ends and (course.failing_node is None or program.fails_alone):
            world.at(course.run_s * world.rng.uniform(0.9, 1.1), self._succeeds)

    def _listen(self) -> None:
        if self._over() or self._ends:
            return
        self.listening = True
        self.truth.listens(self)
        self.changed(self)

    def _succeeds(self) -> None:
        if self._over() or self._ends or any(r.exit is not None for r in self._ranks):
            return
        self.truth.succeeded(self)
        self._end_ranks(s.ShimExit(code=0))
        self._main_ended(s.ShimExit(code=0))

    def _rank_fails(self, local: int, code: int, error: str) -> None:
        if self._over() or self._ends:
            return
        self.world.met["rank_failed"] += 1
        status = s.ShimExit(code=code) if code > 0 else s.ShimExit(signal=-code)
        status.at_s = self.world.now - (self.started_at or 0.0)
        rank = self._ranks[local]
        self._ranks[local] = s.ShimRank(
            rank.rank, rank.local_rank, pid=rank.pid, exit=status, error=error
        )
        self._first_failed = rank.rank
        self.truth.failed(self, rank.rank, ExitStatus(status.code, status.signal))
        if len(self._ranks) == 1:
            self._main_ended(status)
            return
        self.changed(self)
        # It waits for the siblings, which may take their time.
        gives_up = partial(
            self._launcher_gives_up, s.ShimExit(code=1) if self._torchrun else status
        )
        self.world.at(self.world.rng.uniform(0.01, 30.0), gives_up)

    def _launcher_gives_up(self, status: s.ShimExit) -> None:
        if self._over() or self._ends:
            return
        self._end_ranks(s.ShimExit(signal=15))
        self._main_ended(status)

    def _end_ranks(self, status: s.ShimExit) -> None:
        self._ranks = [
            rank
            if rank.exit is not None
            else s.ShimRank(
                rank.rank, rank.local_rank, pid=rank.pid, exit=status, stopped=status.code != 0
            )
            for rank in self._ranks
        ]

    def _main_ended(self, status: s.ShimExit) -> None:
        if self._start_seen and self._exit is None:
            self._exit = status
        self._ended_at = self._ended_at or self.world.now
        if self._ends:
            self._die(0.003)
            return
        self._ends = True
        self.phase = P.EXITED
        leaves = self.world.chance(self._program.leftovers)
        self._die(LEFTOVER_GRACE_S if leaves else 0.003)
        self.changed(self)

    # --- the end --------------------------------------------------------------------------

    def _stop(self, why: str, grace_s: float) -> None:
        if self.phase in ENDED:
            return
        begins = self.phase in (P.NEW, P.PREPARING, P.PREPARED, P.RUNNING)
        if begins:
            self._stopped_by = self._stopped_by or why
            self._ends = True
            self.phase = P.STOPPING
        if grace_s == 0 or self.started_at is None:
            self._kill()
        else:
            if begins and not self._program.ignores_term:
                # Some ends take longer than the grace.
                takes_s = self.world.rng.uniform(0.005, 1.3 * min(grace_s, 20.0))
                self.world.at(takes_s, self._obeys)
            self._kill_within(grace_s)
        if begins:
            self.changed(self)

    def _obeys(self) -> None:
        if self._over() or self.phase is not P.STOPPING or self.doomed:
            return
        code = self.world.rng.choice((0, 1, -15))
        status = s.ShimExit(code=code) if code >= 0 else s.ShimExit(signal=-code)
        self._end_ranks(status)
        self._main_ended(status)

    def _kill_within(self, grace_s: float) -> None:
        at = self.world.now + grace_s / self.clock_rate
        if self._kill_at is None or at < self._kill_at:
            self._kill_at = at
            self.world.at(grace_s / self.clock_rate, partial(self._late, at))

    def _late(self, at: float) -> None:
        if not self._over() and self._kill_at == at:
            self.world.met["grace_over"] += 1
            self._kill()

    def _kill(self) -> None:
        if self.doomed:
            return
        self.doomed = True
        world = self.world
        if self.started_at is not None and world.chance(self._program.unkillable):
            world.met["unkillable"] += 1
            world.at(STUCK_S, self._stuck)
            self.wedged = True
            for_s = (1.0, 200.0)
            if self._reports_stuck:
                # Some are not held, but escape it again and again: they go on computing.
                own = random.Random(f"held {world.seed} {self.task}")
                self.wedged = own.random() < 0.7
                world.met["held" if self.wedged else "escapes"] += 1
                for_s = (1.0, HELD_S) if self.wedged else (1.0, 60.0)
            world.at(STUCK_S + world.rng.uniform(*for_s), self._killed)
        else:
            world.at(world.rng.choice((0.002, 0.05, 1.0)) * world.rng.random(), self._killed)

    def _stuck(self) -> None:
        if not self._over():
            self.phase = P.STUCK
            self.changed(self)

    def _killed(self) -> None:
        if self._over():
            return
        if self.started_at is not None:
            self._end_ranks(s.ShimExit(signal=9))
        if self._start_seen and self._exit is None:
            self._exit = s.ShimExit(signal=9)
        self._write_exit_record()

    def _die(self, after_s: float) -> None:
        self.world.at(after_s, self._write_exit_record)

    def _write_exit_record(self) -> None:
        """The record is on disk before the end is reported."""
        if self._over():
            return
        self._ended_at = self._ended_at or self.world.now
        refused = self._refusal is not None and not self._start_seen
        self.phase = P.REFUSED if refused else P.CLEANED
        self._vacate()
        self.record = self.document()
        self.changed(self)

    def _over(self) -> bool:
        return self.dead or self.phase in ENDED

    def _vacate(self) -> None:
        if self.occupied:
            self.occupied = False
            self.truth.vacated(self)

    # --- what the machine does to it -------------------------------------------------------

    def killed(self) -> None:
        """kill -9 of the shim itself."""
        self.dead = True

    def bury(self) -> None:
        """End what a dead shim left, and write a record in its place."""
        self._vacate()
        if self.record is None:
            self.phase = P.CLEANED
            self.record = s.ShimStatus(task=self.task, phase=P.CLEANED, stopped_by="shim_lost")

    def power_off(self) -> None:
        """Everything that runs is gone; what is on disk stays."""
        self.dead = True
        self._vacate()

    @property
    def _program(self) -> Program:
        return self._programs.by_name[self._name]
