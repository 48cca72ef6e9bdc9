"""The jobs of a run: specs as users write them, and the programs behind them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import msgspec

from muster.spec.model import (
    Argv,
    JobSpec,
    Launcher,
    Rendezvous,
    Resources,
    Retry,
    Role,
    Roles,
    Shell,
    Stop,
    Warn,
)
from tests.simulation.cards import with_part
from tests.simulation.leases import with_checkpoints, with_lease
from tests.simulation.mishaps import with_mishaps, with_patience
from tests.simulation.onlookers import with_idle, with_webhook
from tests.simulation.programs import Program, Programs
from tests.simulation.rails import with_wish
from tests.simulation.shim import FIRST_STUCK
from tests.simulation.vouching import ELASTIC
from tests.simulation.world import World

FIRST_VARIED = 100
"""From this seed on there are gangs of every kind. Those before, in which most planted bugs are
found, stay the runs that they are when a kind is added."""


@dataclass(frozen=True, slots=True)
class Temper:
    """Bad habits of the jobs of a run, each in some jobs."""

    refuse: bool
    start_fails: bool
    rank_fails: bool
    endless: bool
    stubborn: bool
    unkillable: bool
    leftovers: bool
    slow_setup: bool


def draw_temper(world: World) -> Temper:
    coin = world.rng.random
    return Temper(
        refuse=coin() < 0.4,
        start_fails=coin() < 0.3,
        rank_fails=coin() < 0.6,
        endless=coin() < 0.4,
        stubborn=coin() < 0.4,
        unkillable=coin() < 0.15,
        leftovers=coin() < 0.3,
        slow_setup=coin() < 0.3,
    )


def make_job(
    world: World, programs: Programs, temper: Temper, number: int, pools: dict[str, int]
) -> JobSpec:
    """Make a job that fits into the pools given (nodes by name), and choose what its program will
    do."""
    rng = world.rng
    pool = rng.choice(list(pools))
    nodes = rng.randint(1, max(1, pools[pool] - rng.choice((0, 0, 1, 2))))
    program = _program(world, temper)
    limit_s = rng.choice((None, None, 30.0, 200.0))
    if program.never_ends and rng.random() < 0.7:
        limit_s = rng.uniform(5.0, 300.0)
    name = f"job-{number}"
    own = random.Random(f"infects {world.seed} {number}")
    infects = world.seed >= FIRST_VARIED and own.random() < 0.4
    spec = JobSpec(
        name=name,
        run=Argv(("train.py",)),
        nodes=nodes,
        resources=Resources(gpu=rng.choice((None, None, 1))),
        nproc_per_node=2,
        setup=Shell("true") if rng.random() < 0.3 else None,
        launcher=rng.choice((Launcher.TORCHRUN, Launcher.TORCHRUN, Launcher.NONE)),
        time_limit_s=limit_s,
        stop=Stop(grace_s=rng.choice((0.0, 1.0, 5.0, 30.0))),
        retry=Retry(
            infra=rng.randrange(4), user=rng.choice((0, 0, 1)), backoff_s=rng.uniform(0.0, 20.0)
        ),
        priority=rng.choice((50, 50, 50, 10, 90)),
        pool=pool,
    )
    spec = with_wish(world, number, with_part(world, number, _varied(world, number, spec)))
    spec = with_checkpoints(world, number, with_lease(world, number, spec))
    spec = with_patience(world, with_idle(world, number, with_webhook(world, number, spec)))
    # A gang fails within itself: one that may be smaller than it was meant to be has no other node,
    # and goes on without the one that was to fail, should that leave before.
    program = replace(program, unkillable=_often_unkillable(world, number, program.unkillable))
    program = with_mishaps(world, number, program)
    programs.by_name[name] = replace(
        program, infects=infects, fails_alone=program.fails_alone or spec.elastic
    )
    programs.nodes[name] = spec.nodes
    return spec


def _varied(world: World, number: int, spec: JobSpec) -> JobSpec:
    """Perhaps another kind of gang: ranks that we start, with another number on the launcher, or
    one whose size may change.
    """
    own = random.Random(f"varied {world.seed} {number}")
    if world.seed < FIRST_VARIED and world.seed not in ELASTIC:
        return spec
    limit_s = spec.time_limit_s
    if limit_s is not None and own.random() < 0.6:
        warn = Warn("SIGUSR1", limit_s * own.uniform(0.1, 0.9))
        spec = msgspec.structs.replace(spec, stop=Stop(grace_s=spec.stop.grace_s, warn=warn))
    match own.choice(("plain", "processes", "elastic")):
        case "processes":
            roles = Roles(Role(nproc_per_node=own.choice((None, 1, 3))))
            return msgspec.structs.replace(spec, launcher=Launcher.PROCESSES, roles=roles)
        case "elastic":
            return msgspec.structs.replace(
                spec,
                launcher=Launcher.TORCHRUN,
                nodes=own.randint(1, spec.nodes),
                max_nodes=spec.nodes + own.randint(1, 3),
                rendezvous=Rendezvous.C10D,
            )
        case _:
            return spec


def _program(world: World, temper: Temper) -> Program:
    rng = world.rng

    def some(vice: bool, share: float, probability: float) -> float:
        return probability if vice and rng.random() < share else 0.0

    lasts = rng.choice(((0.0, 0.5), (1.0, 30.0), (20.0, 120.0), (60.0, 400.0)))
    return Program(
        run_s=lasts,
        setup_s=(1.0, 90.0) if some(temper.slow_setup, 0.4, 1.0) else (0.01, 1.0),
        listen_s=rng.choice(((0.01, 0.1), (0.5, 8.0))),
        refuses=some(temper.refuse, 0.4, 0.15),
        refuses_all=some(temper.refuse, 0.1, 1.0) > 0,
        refusal_code=rng.choice(("no_folder", "setup_failed", "no_space")),
        gate_dies=some(temper.start_fails, 0.3, 0.2),
        start_fails=some(temper.start_fails, 0.3, 0.2),
        fails=some(temper.rank_fails, 0.5, 0.6),
        fails_alone=rng.random() < 0.3,
        never_ends=some(temper.endless, 0.3, 1.0) > 0,
        ignores_term=some(temper.stubborn, 0.4, 1.0) > 0,
        unkillable=some(temper.unkillable, 0.3, 0.3),
        leftovers=some(temper.leftovers, 0.4, 0.4),
    )


def _often_unkillable(world: World, number: int, share: float) -> float:
    """Return the probability that a task of this job has a process that outlives SIGKILL."""
    if world.seed < FIRST_STUCK:
        return share
    own = random.Random(f"unkillable {world.seed} {number}")
    return 0.8 if own.random() < 0.7 else share
