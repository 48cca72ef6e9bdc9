"""A fixed set of seeds in every test run: no violation, and every kind of fault was met."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.simulation.cluster import Cluster
from tests.simulation.coordinator import Moment
from tests.simulation.faults import KINDS, STEPS, WINDOWS
from tests.simulation.shim import FIRST_STUCK
from tests.simulation.steering import WINDOWS as MORE_WINDOWS

SEEDS_A_BLOCK = 50
ORDINARY = (0, 6, 8, 9, 17, 18)
"""Blocks that always run: without what came later, and with all of it."""
ALL = (0, 1, 2, 4, 6, 7, 8, 9, 16, 17, 18, 19)
STEPS_LEAST = 2_000_000

# Besides the kinds of the swarm: what has to happen, and how often at least in all blocks.
WANTED = {
    "frame_lost": 100,
    "frame_repeated": 1_000,
    "frame_delayed": 300,
    "gap_noticed": 100,
    "slow_frame": 1_000,
    "slow_sync": 50,
    "answered_while_slow": 50,
    "unsynced_facts_lost": 50,
    "answer_lost": 100,
    "cancel": 200,
    "cancel_forced": 50,
    "cancel_twice": 50,
    "impostor_refused": 50,
    "lease_ended_task": 50,
    "node_gone": 20,
    "grace_over": 50,
    "refused": 50,
    "rank_failed": 100,
    "warned": 50,
    "hardware_shown": 100,
    "hardware_note": 100,
    "hardware_critical": 100,
    "xid_shown": 100,
    "xid_critical": 100,
    "hardware_ended_attempt": 50,
    "rank_still": 100,
    "gpu_idle": 100,
    "hang_judged": 100,
    "hold": 200,
    "change": 500,
    "signalled": 300,
    "explained": 2_000,
    "drain": 150,
    "resume": 100,
    "resume_refused": 3,
    "drained_away": 10,
    "quarantined": 3,
    "start_failed": 20,
    "gate_died": 10,
    "spawn_failed": 20,
    "name_unresolved": 20,
    "port_taken": 20,
    "launcher_unreachable": 20,
    "rewired": 100,
    "node_shared": 100,
    "gpu_gone": 10,
    "rdma_gang": 20,
    "rdma_required": 10,
    "shim_abandoned": 1,
    "unkillable": 1,
    "program_started": 2_000,
    "job_success": 500,
    "job_cancelled": 100,
    "job_infra": 50,
    "job_user": 50,
    "job_time_limit": 50,
    "job_never_started": 20,
    "joined": 50,
    "left": 20,
    "checkpoint_seen": 500,
    "drain_after_checkpoint": 100,
    "traffic_seen": 200,
    "link_flap": 50,
    "plan_unwritable": 5,
    "BrakeSet": 5,
    "BrakeReleased": 5,
    "JudgementPut": 20,
    "cause_arrange_failed": 10,
    "cause_node_lost": 10,
    "cause_lease_expired": 10,
    "cause_task_vanished": 10,
    "cause_prepare_timeout": 1,
    "cause_start_timeout": 10,
}


@functools.cache
def lived(block: int) -> tuple[tuple[str, ...], Counter[str], Counter[str], int]:
    """Run a block of seeds, once: what went wrong, what was met, what was judged, core steps."""
    failures = []
    met: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    steps = 0
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        cluster = Cluster(seed)
        try:
            cluster.run()
        except Exception as error:  # noqa: BLE001 - whatever a core raises is a finding
            failures.append(
                f"{type(error).__name__}: {error}\n"
                + "\n".join(list(cluster.world.lines)[-20:])
                + f"\nreplay: python -m tests.simulation {seed} -v"
            )
        met += cluster.world.met
        judged += cluster.world.judged
        steps += cluster.world.steps
    return tuple(failures), met, judged, steps


@pytest.mark.parametrize("block", ORDINARY)
def test_nothing_is_lost_nothing_runs_twice_and_all_comes_to_an_end(block: int) -> None:
    failures, *_ = lived(block)
    assert not failures, failures[0]


def test_what_outlives_sigkill_holds_up_nobody_and_is_not_run_beside() -> None:
    met: Counter[str] = Counter()
    for seed in range(FIRST_STUCK, FIRST_STUCK + 20):
        cluster = Cluster(seed)
        cluster.run()
        met += cluster.world.met
    assert min(met["held"], met["escapes"], met["given_up"]) >= 3, met


@pytest.mark.timeout(600)
def test_every_kind_of_fault_strikes(capsys: pytest.CaptureFixture[str]) -> None:
    met, steps = told(ORDINARY, capsys)
    assert steps >= STEPS_LEAST
    missing = [kind for kind in KINDS if not met[kind]]
    assert not missing


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", sorted(set(ALL) - set(ORDINARY)))
def test_nor_is_it_in_two_million_steps(block: int) -> None:
    failures, *_ = lived(block)
    assert not failures, failures[0]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_kind_of_fault_was_met(capsys: pytest.CaptureFixture[str]) -> None:
    met, steps = told(ALL, capsys)
    assert steps >= STEPS_LEAST
    wanted = dict.fromkeys(KINDS, 100) | WANTED
    wanted |= {f"crash_{moment.value}": 20 for moment in Moment}
    wanted |= {f"crash_at_{window.__name__}": 1 for window in WINDOWS + MORE_WINDOWS}
    wanted |= {f"agent_{how}_in_{step.__name__}": 5 for how in ("dies", "stops") for step in STEPS}
    short = {kind: met[kind] for kind, least in wanted.items() if met[kind] < least}
    assert not short, f"met less often than wanted: {short}"


def told(blocks: Iterable[int], capsys: pytest.CaptureFixture[str]) -> tuple[Counter[str], int]:
    """What was met in these blocks, and core steps; both are printed."""
    met: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    steps = seeds = 0
    for block in blocks:
        _, counts, invariants, done = lived(block)
        met += counts
        judged += invariants
        steps += done
        seeds += SEEDS_A_BLOCK
    with capsys.disabled():
        print(f"\n{seeds} seeds, {steps:,} core steps; met:")
        print(", ".join(f"{kind} {count:,}" for kind, count in sorted(met.items())))
        print("judged:", ", ".join(f"{what} {count:,}" for what, count in sorted(judged.items())))
    return met, steps


def digests(seeds: str, hash_seed: str) -> str:
    """What a process of its own, with another order of its sets, makes of these seeds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seeds", seeds, "--digests"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    return "\n".join(line for line in done.stdout.splitlines() if "digest" in line)


def test_the_same_seed_is_the_same_run_in_every_process() -> None:
    first = digests("20:30", "1")
    assert first.count("digest") == 10
    assert digests("20:30", "2") == first


@pytest.mark.parametrize("seed", range(5))
def test_the_wall_clock_decides_nothing(seed: int) -> None:
    jumping, steady = Cluster(seed), Cluster(seed, wall_jumps=False)
    assert jumping.run().digest == steady.run().digest
