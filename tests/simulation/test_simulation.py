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

from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import TaskReport
from muster.protocol.states import TaskState
from orchestrator.core.engine import guarded_turn as guard
from orchestrator.core.engine.decide import decide
from orchestrator.core.engine.guarded_turn import guarded_turn
from orchestrator.core.engine.turn import Due, Turn, advance
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.decision import Decision
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import State
from tests.simulation.cluster import Cluster
from tests.simulation.coordinator import Moment
from tests.simulation.faults import KINDS, STEPS, WINDOWS
from tests.simulation.shim import FIRST_MUTE, FIRST_STUCK
from tests.simulation.steering import WINDOWS as MORE_WINDOWS

SEEDS_A_BLOCK = 50
ORDINARY = (0, 6, 8, 9, 17, 18)
"""Blocks that always run: without what came later, and with all of it."""
ALL = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 18, 19, 20)
STEPS_LEAST = 2_000_000
ORDINARY_STEPS_LEAST = 1_900_000

LEAST = 100
"""The least number of each kind of fault that all blocks meet."""
# Besides the kinds of the swarm: what has to happen. What faults lead to may be rarer.
WANTED = {
    "frame_lost": LEAST,
    "frame_repeated": 1_000,
    "frame_delayed": 300,
    "gap_noticed": LEAST,
    "slow_frame": 1_000,
    "slow_sync": LEAST,
    "answered_while_slow": 50,
    "unsynced_facts_lost": LEAST,
    "answer_lost": LEAST,
    "cancel": 200,
    "cancel_forced": LEAST,
    "cancel_twice": LEAST,
    "impostor_refused": LEAST,
    "lease_ended_task": LEAST,
    "node_gone": LEAST,
    "grace_over": LEAST,
    "refused": LEAST,
    "rank_failed": LEAST,
    "warned": LEAST,
    "hardware_shown": LEAST,
    "hardware_note": LEAST,
    "hardware_critical": LEAST,
    "xid_shown": LEAST,
    "xid_critical": LEAST,
    "hardware_ended_attempt": LEAST,
    "rank_still": LEAST,
    "gpu_idle": LEAST,
    "hang_judged": LEAST,
    "hold": 200,
    "change": 500,
    "signalled": 300,
    "explained": 2_000,
    "drain": 150,
    "resume": LEAST,
    "resume_refused": LEAST,
    "drained_away": LEAST,
    "quarantined": LEAST,
    "start_failed": LEAST,
    "gate_died": 50,
    "spawn_failed": LEAST,
    "name_unresolved": LEAST,
    "port_taken": LEAST,
    "launcher_unreachable": LEAST,
    "rewired": LEAST,
    "node_shared": LEAST,
    "agent_deserts": LEAST,
    "gpu_gone": LEAST,
    "rdma_gang": LEAST,
    "rdma_required": LEAST,
    "shim_abandoned": LEAST,
    "unkillable": LEAST,
    "program_started": 2_000,
    "job_success": 500,
    "job_cancelled": LEAST,
    "job_infra": LEAST,
    "job_user": LEAST,
    "job_time_limit": LEAST,
    "job_never_started": LEAST,
    "joined": LEAST,
    "left": LEAST,
    "checkpoint_seen": 500,
    "drain_after_checkpoint": LEAST,
    "traffic_seen": 200,
    "link_flap": LEAST,
    "plan_unwritable": LEAST,
    "over_lease": 20,
    "over_rebooted": 20,
    "over_declared": 20,
    "LivenessPaused": 20,
    "cause_arrange_failed": 10,
    "cause_node_lost": 10,
    "cause_lease_expired": 10,
    "cause_task_vanished": 10,
    "cause_prepare_timeout": 1,
    # Rare: a launcher that ends before its start ends its attempt at once.
    "cause_start_timeout": 3,
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


def test_a_process_that_survives_sigkill_blocks_no_job_and_gets_no_neighbour() -> None:
    met: Counter[str] = Counter()
    for seed in range(FIRST_STUCK, FIRST_STUCK + 20):
        cluster = Cluster(seed)
        cluster.run()
        met += cluster.world.met
    assert min(met["held"], met["escapes"], met["given_up"]) >= 3, met


def test_a_task_that_writes_nothing_goes_without_a_word_on_its_log() -> None:
    met: Counter[str] = Counter()
    for seed in range(FIRST_MUTE, FIRST_MUTE + 20):
        cluster = Cluster(seed)
        cluster.run()
        met += cluster.world.met
    assert met["mute"] >= 20, met


def test_an_input_that_cannot_be_decided_harms_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: some reports of ends fail in `decide`, and one start fails in its consequences."""
    met: Counter[str] = Counter()
    for seed in range(10):
        failures = Failures(monkeypatch)
        cluster = Cluster(seed)
        cluster.coordinator.turn = failures.turn
        cluster.run()
        met += cluster.world.met + failures.met
    assert min(met["refused_report"], met["turn_failed"]) >= 5, met


class Failures:
    """A coordinator with a bug that shows a few times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.met: Counter[str] = Counter()
        monkeypatch.setattr(guard, "decide", self._decide)
        monkeypatch.setattr(guard, "advance", self._advance)

    def turn(self, state: State, given: s.Input, now: Instant, limits: Limits) -> Turn:
        return guarded_turn(state, given, now, limits)[0]

    def _decide(self, state: State, given: s.Input, now: Instant, limits: Limits) -> Decision:
        report = given.report if isinstance(given, s.ReportReceived) else None
        exited = isinstance(report, TaskReport) and report.state is TaskState.EXITED
        if exited and self.met["refused_report"] < 5:
            self.met["refused_report"] += 1
            raise ZeroDivisionError
        return decide(state, given, now, limits)

    def _advance(
        self, state: State, decision: Decision, now: Instant, limits: Limits, due: Due | None
    ) -> Turn:
        done = advance(state, decision, now, limits, due)
        started = any(isinstance(fact, f.AttemptStarted) for fact in done.facts)
        if started and not self.met["failed"]:
            self.met["failed"] += 1
            raise ZeroDivisionError
        return done


def test_no_job_runs_twice_after_restores_of_older_backups() -> None:
    met: Counter[str] = Counter()
    for seed in range(-30, 0):
        cluster = Cluster(seed)
        try:
            cluster.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        met += cluster.world.met
    assert min(met["restore"] / 20, met["cause_restored"], met["declared_lost"]) >= 3, met


@pytest.mark.timeout(600)
def test_every_kind_of_fault_strikes(capsys: pytest.CaptureFixture[str]) -> None:
    met, steps = transcript(ORDINARY, capsys)
    assert steps >= ORDINARY_STEPS_LEAST
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
    met, steps = transcript(ALL, capsys)
    assert steps >= STEPS_LEAST
    wanted = dict.fromkeys(KINDS, LEAST) | WANTED
    wanted |= {f"crash_{moment.value}": LEAST for moment in Moment}
    wanted |= {f"crash_at_{window.__name__}": 1 for window in WINDOWS + MORE_WINDOWS}
    wanted |= {f"agent_{how}_in_{step.__name__}": 5 for how in ("dies", "stops") for step in STEPS}
    short = {kind: met[kind] for kind, least in wanted.items() if met[kind] < least}
    assert not short, f"met less often than wanted: {short}"


def transcript(
    blocks: Iterable[int], capsys: pytest.CaptureFixture[str]
) -> tuple[Counter[str], int]:
    """Return the counts of these blocks, and core steps; both are printed."""
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
    """Return the digests of these seeds from a separate process, with another order of its sets."""
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


@pytest.mark.parametrize("seed", [*range(5), 405])
def test_the_wall_clock_decides_nothing(seed: int) -> None:
    jumping, steady = Cluster(seed), Cluster(seed, wall_jumps=False)
    assert jumping.run().digest == steady.run().digest
