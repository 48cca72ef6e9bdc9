"""Labelled traces of jobs that hang and jobs that are only slow.

Made from a seed. Half of them speak gloo, whose ranks sleep while they wait, half NCCL, whose ranks
spin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from muster.protocol.observations.hangs import Doing, Frame

SITE: Final = "/venv/lib/python3.11/site-packages"
_C10D: Final = f"{SITE}/torch/distributed/distributed_c10d.py"
_MAIN: Final = Frame("<module>", "/w/train.py", 90)


@dataclass(frozen=True, slots=True)
class Moment:
    """Activity of a rank: bytes per second, its share of a core, and the stack of its main
    thread.
    """

    log: float = 0.0
    network: float = 0.0
    hca: float = 0.0
    disk: float = 0.0
    cpu: float = 0.0
    doing: Doing = Doing.SLEEPS
    where: str = ""
    stack: tuple[Frame, ...] = (_MAIN,)
    unseen: bool = False  # its node is cut off
    paused: bool = False  # no samples: the machine is suspended
    gone: bool = False  # it has ended


Course = Callable[[int, float], Moment]
"""Activity of a rank at a time in seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled case. `hangs`: the job hangs from `at` on, because of rank `odd` if there is one.
    `slow`: it must be reported as slow. `pause_s` is the longest silence before.
    """

    name: str
    course: Course
    ranks: int
    seconds: float
    at: float = 0.0
    hangs: bool = False
    slow: bool = False
    odd: int | None = None
    pause_s: float = 0.0


def frames(name: str, file: str, line: int, *outer: Frame) -> tuple[Frame, ...]:
    return Frame(name, file, line), *(outer or (_MAIN,))


@dataclass(frozen=True, slots=True)
class Job:
    """A training loop with steps of `step_s`, each ending with a collective."""

    ranks: int
    step_s: float
    nccl: bool
    talks: bool  # every rank writes a line per step, or only the first

    def step(self, rank: int, t: float) -> Moment:
        """During training."""
        within = (t % self.step_s) / self.step_s
        logs = 80 / self.step_s if self.talks or rank == 0 else 0.0
        if within < 0.6:
            line = 30 + int(t * 7) % 20
            cpu = 1.0 if self.nccl or self.step_s < 20 else 0.0
            doing = Doing.RUNS if cpu else Doing.SLEEPS
            return Moment(cpu=cpu, doing=doing, stack=frames("forward", "/w/model.py", line))
        hca, network = (5e8, 0.0) if self.nccl else (0.0, 2e7)
        stack = self.waiting(41).stack
        return Moment(log=logs, cpu=0.8, stack=stack, hca=hca, network=network)

    def waiting(self, line: int = 41, name: str = "all_reduce") -> Moment:
        """Activity of the other ranks."""
        outer = Frame("step", "/w/train.py", line), _MAIN
        if not self.nccl:
            return Moment(where="futex_do_wait", stack=frames(name, _C10D, 2800, *outer))
        stack = frames("synchronize", f"{SITE}/torch/cuda/__init__.py", 1038, *outer)
        return Moment(cpu=1.0, doing=Doing.RUNS, stack=stack)

    @property
    def pause_s(self) -> float:
        return self.step_s


@dataclass(slots=True)
class _Maker:
    random: Random
    made: list[Case] = field(default_factory=list)

    def job(self) -> Job:
        step_s = self.random.choice((0.3, 1.0, 4.0, 9.0, 12.0))
        return Job(
            ranks=self.random.choice((2, 4, 8)),
            step_s=step_s,
            nccl=self.random.random() < 0.5,
            talks=self.random.random() < 0.5,
        )

    def length(self) -> float:
        """Either clearly below the ten minutes after which slowness is reported, or above."""
        long = self.random.random() < 0.4
        return self.random.uniform(750, 1000) if long else self.random.uniform(40, 540)

    def start(self) -> float:
        return self.random.uniform(150, 400)


def cases(seed: int = 7, each: int = 11) -> list[Case]:
    """Return at least 200 cases."""
    return [
        kind(_Maker(Random(seed * 100_003 + number * 1009 + index)))
        for number, kind in enumerate((*_HANGS, *_SLOWS))
        for index in range(each)
    ]


def _then(job: Job, at: float, after: Course) -> Course:
    return lambda rank, t: job.step(rank, t) if t < at else after(rank, t)


def _during(job: Job, at: float, end: float, between: Course) -> Course:
    return lambda rank, t: between(rank, t) if at <= t < end else job.step(rank, t)


def _hang(name: str, job: Job, at: float, after: Course, odd: int | None) -> Case:
    seconds = at + max(60.0, 5 * job.pause_s) + 120
    course = _then(job, at, after)
    return Case(name, course, job.ranks, seconds, at, hangs=True, odd=odd, pause_s=job.pause_s)


def _one(name: str, maker: _Maker, stuck: Moment) -> Case:
    job, at = maker.job(), maker.start()
    odd = maker.random.randrange(job.ranks)
    return _hang(name, job, at, lambda r, _: stuck if r == odd else job.waiting(), odd)


def stopped(maker: _Maker) -> Case:
    stack = frames("forward", "/w/model.py", 33)
    return _one("stopped by a signal", maker, Moment(doing=Doing.STOPPED, stack=stack))


def gil(maker: _Maker) -> Case:
    stuck = Moment(where="hrtimer_nanosleep", stack=frames("augment", "/w/data.py", 17))
    return _one("holds the GIL", maker, stuck)


def sleeps(maker: _Maker) -> Case:
    stuck = Moment(where="hrtimer_nanosleep", stack=frames("evaluate", "/w/train.py", 66))
    return _one("sleeps for ever", maker, stuck)


def locked(maker: _Maker) -> Case:
    stack = frames(
        "get", "/usr/lib/python3.11/queue.py", 171, Frame("load", "/w/data.py", 8), _MAIN
    )
    return _one("waits for a lock of its own", maker, Moment(where="futex_do_wait", stack=stack))


def spinning(maker: _Maker) -> Case:
    """The other ranks spin in a line of their own, `loss.item()`."""
    job, at = maker.job(), maker.start()
    job = Job(max(4, job.ranks), job.step_s, True, job.talks)
    odd = maker.random.randrange(job.ranks)
    item = Moment(cpu=1.0, doing=Doing.RUNS, stack=frames("step", "/w/train.py", 44))
    stuck = Moment(where="hrtimer_nanosleep", stack=frames("log", "/w/train.py", 70))
    return _hang("sleeps, others spin", job, at, lambda r, _: stuck if r == odd else item, odd)


def deadlock(maker: _Maker) -> Case:
    job, at = maker.job(), maker.start()
    odd = maker.random.randrange(job.ranks) if job.ranks > 2 else None
    return _hang(
        "collectives that do not match",
        job,
        at,
        lambda r, _: job.waiting(57, "broadcast") if r == (odd or 0) else job.waiting(),
        odd,
    )


def cut(maker: _Maker) -> Case:
    job, at = maker.job(), maker.start()
    return _hang("the fabric is gone", job, at, lambda _r, _t: job.waiting(), None)


def left_behind(maker: _Maker) -> Case:
    """A program of a few seconds: the others have ended, and one hangs at its exit."""
    ranks, at = maker.random.choice((2, 4, 8)), maker.random.uniform(2, 9)
    odd = maker.random.randrange(ranks)
    stack = maker.random.choice(((), (_MAIN,), frames("main", "/w/train.py", 88)))
    stuck = Moment(where="futex_do_wait", stack=stack)
    course = _ends(at, lambda r, _: stuck if r == odd else None)
    return Case("left behind at its exit", course, ranks, at + 420, at, hangs=True, odd=odd)


def _ends(at: float, after: Callable[[int, float], Moment | None]) -> Course:
    """A start that is too short for learning a baseline, then `after`; None means that the rank has
    ended.
    """
    begins = Moment(log=50, cpu=1.0, doing=Doing.RUNS)

    def course(rank: int, t: float) -> Moment:
        return begins if t < at else after(rank, t) or Moment(gone=True)

    return course


def _fine(name: str, job: Job, at: float, seconds: float, between: Course) -> Case:
    end = at + seconds
    return Case(name, _during(job, at, end, between), job.ranks, end + 150, at)


def _slow_or_fine(name: str, job: Job, at: float, seconds: float, between: Course) -> Case:
    """A job that moves bytes is never reported, however long it takes."""
    case = _fine(name, job, at, seconds, between)
    moments = [between(rank, at + 1) for rank in range(job.ranks)]
    heard = any(moment.disk or moment.log or moment.network for moment in moments)
    slow = seconds > 700 and not heard
    return Case(name, case.course, job.ranks, case.seconds, at, slow=slow)


def checkpoint(maker: _Maker) -> Case:
    """The first rank writes it; the others wait."""
    job, at, seconds = maker.job(), maker.start(), maker.length()
    stack = frames("save", f"{SITE}/torch/serialization.py", 850)
    ways = (
        Moment(disk=3e7, cpu=0.2, doing=Doing.DISK, stack=stack),
        Moment(doing=Doing.DISK, where="nfs_wait_bit_killable", stack=stack),
        Moment(doing=Doing.DISK, where="request_wait_answer", stack=stack),
        Moment(where="", stack=stack),
        Moment(cpu=1.0, doing=Doing.RUNS, stack=frames("state_dict", "/w/train.py", 12)),
    )
    way = maker.random.choice(ways)
    return _slow_or_fine(
        "checkpoint of one", job, at, seconds, lambda r, _: way if r == 0 else job.waiting(80)
    )


def checkpoint_of_all(maker: _Maker) -> Case:
    job, at, seconds = maker.job(), maker.start(), maker.length()
    stack = frames("write", f"{SITE}/torch/distributed/checkpoint/filesystem.py", 400)
    way = maker.random.choice(
        (Moment(doing=Doing.DISK, stack=stack), Moment(stack=stack), Moment(disk=1e7, stack=stack))
    )
    return _slow_or_fine("checkpoint of all", job, at, seconds, lambda _r, _t: way)


def loading(maker: _Maker) -> Case:
    """Its workers compute, or it waits for a server."""
    job, at, seconds = maker.job(), maker.start(), maker.random.uniform(40, 500)
    stack = frames("_try_get_data", f"{SITE}/torch/utils/data/dataloader.py", 1250)
    remote = frames("read", f"{SITE}/botocore/httpchecksum.py", 240)
    ways = (
        Moment(cpu=4.0, where="futex_do_wait", stack=stack),
        Moment(network=4e5, stack=remote),
        Moment(where="poll_schedule_timeout", stack=remote),
        Moment(doing=Doing.DISK, where="folio_wait_bit_common", stack=stack),
    )
    way = maker.random.choice(ways)
    return _fine("data loading", job, at, seconds, lambda _r, _t: way)


def compile_of_all(maker: _Maker) -> Case:
    job, at, seconds = maker.job(), maker.start(), maker.length()

    def between(_rank: int, t: float) -> Moment:
        line = int(t * 3) % 400
        stack = frames("codegen", f"{SITE}/torch/_inductor/scheduler.py", line)
        return Moment(cpu=1.0, doing=Doing.RUNS, stack=stack)

    return _slow_or_fine("compile", job, at, seconds, between)


def compile_of_one(maker: _Maker) -> Case:
    """A single rank is in one long call; the others wait in a barrier."""
    job, at, seconds = maker.job(), maker.start(), maker.length()
    busy = Moment(
        cpu=1.0,
        doing=Doing.RUNS,
        stack=frames("compile", f"{SITE}/triton/compiler/compiler.py", 280),
    )
    return _slow_or_fine(
        "compile of one", job, at, seconds, lambda r, _: busy if r == 0 else job.waiting(80)
    )


def quiet_steps(maker: _Maker) -> Case:
    """Steps of a minute or more without output."""
    job = Job(maker.random.choice((2, 4, 8)), maker.random.uniform(30, 110), False, False)
    return Case("long quiet steps", job.step, job.ranks, 25 * job.step_s, 0.0)


def evaluation(maker: _Maker) -> Case:
    """The first rank evaluates, and prints that; the others wait."""
    job, at, seconds = maker.job(), maker.start(), maker.random.uniform(60, 500)
    busy = Moment(log=20, cpu=1.0, doing=Doing.RUNS, stack=frames("evaluate", "/w/train.py", 61))
    return _fine(
        "evaluation of one", job, at, seconds, lambda r, _: busy if r == 0 else job.waiting(80)
    )


def beginning(maker: _Maker) -> Case:
    """Minutes before the first step: imports, an index of the data, the first compile."""
    job, seconds = maker.job(), maker.random.uniform(60, 500)
    ways = (
        Moment(where="futex_do_wait"),
        Moment(doing=Doing.DISK),
        Moment(cpu=1.0, doing=Doing.RUNS, stack=frames("index", "/w/data.py", 5)),
        Moment(disk=1e7, cpu=0.3),
    )
    way = maker.random.choice(ways)
    return _fine("a long beginning", job, 0.0, seconds, lambda _r, _t: way)


def debugged(maker: _Maker) -> Case:
    job, at, seconds = maker.job(), maker.start(), maker.random.uniform(90, 500)
    held = Moment(doing=Doing.TRACED, stack=frames("forward", "/w/model.py", 33))
    return _fine("in a debugger", job, at, seconds, lambda r, _: held if r == 0 else job.waiting())


def cut_off(maker: _Maker) -> Case:
    """A node of the job is unreachable: nobody knows if its ranks train or wait."""
    job, at, seconds = maker.job(), maker.start(), maker.random.uniform(60, 240)
    unseen = Moment(unseen=True)
    return _fine(
        "a node cut off",
        job,
        at,
        seconds,
        lambda r, _: unseen if r >= job.ranks // 2 else job.waiting(),
    )


def paused(maker: _Maker) -> Case:
    """The machines are suspended and continue."""
    job, at, seconds = maker.job(), maker.start(), maker.random.uniform(60, 300)
    return _fine("machines paused", job, at, seconds, lambda _r, _t: Moment(paused=True))


def uneven_end(maker: _Maker) -> Case:
    """The others have ended, and the first rank saves its last model, uploads it, or sleeps."""
    ranks, at = maker.random.choice((2, 4, 8)), maker.random.uniform(2, 9)
    seconds = maker.random.uniform(60, 540)
    stack = frames("save", f"{SITE}/torch/serialization.py", 850)
    ways = (
        (Moment(disk=3e7, cpu=0.2, doing=Doing.DISK, stack=stack), seconds),
        (Moment(doing=Doing.DISK, where="nfs_wait_bit_killable", stack=stack), seconds),
        (Moment(where="", stack=stack), seconds),
        (Moment(cpu=1.0, doing=Doing.RUNS, stack=frames("export", "/w/train.py", 12)), seconds),
        (Moment(network=4e5, stack=frames("send", f"{SITE}/httpx/_client.py", 9)), seconds),
        (Moment(where="hrtimer_nanosleep"), min(seconds, 240)),
    )
    way, lasts = maker.random.choice(ways)
    course = _ends(at, lambda r, t: way if r == 0 and t < at + lasts else None)
    return Case("an uneven end", course, ranks, at + lasts + 150, at)


def uneven_roles(maker: _Maker) -> Case:
    """The first of many ranks has ended early, and the others are silent before their first
    step."""
    at, seconds = maker.random.uniform(2, 9), maker.random.uniform(60, 500)
    rests = Moment(where="futex_do_wait")
    course = _ends(at, lambda r, t: rests if r > 0 and t < at + seconds else None)
    return Case("one ends early", course, maker.random.choice((4, 8)), at + seconds + 60, at)


def silent(maker: _Maker) -> Case:
    """It has only ever computed: a single sign is not enough."""
    ranks = maker.random.choice((1, 2))

    def course(_rank: int, t: float) -> Moment:
        busy = (t // 40) % 3 != 1 and t < 700
        return Moment(cpu=1.0 if busy else 0.0, doing=Doing.RUNS if busy else Doing.SLEEPS)

    return Case("only computes, then rests", course, ranks, 1000)


_HANGS: Final = (stopped, gil, sleeps, locked, spinning, deadlock, cut, left_behind)
_SLOWS: Final = (
    checkpoint,
    checkpoint_of_all,
    loading,
    compile_of_all,
    compile_of_one,
    quiet_steps,
    evaluation,
    beginning,
    debugged,
    cut_off,
    paused,
    silent,
    uneven_end,
    uneven_roles,
)


def names() -> Iterator[str]:
    """Return the names of the generator functions."""
    return (kind.__name__ for kind in (*_HANGS, *_SLOWS))
