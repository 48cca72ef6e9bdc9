"""The benchmark of backfill: gangs wait less than in a strict queue, and no promise is broken."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.queue.__main__ import main
from benchmarks.queue.plot import PANELS, plot
from benchmarks.queue.quality import (
    CONSERVATIVE,
    EASY,
    FIFO,
    LOADS,
    POLICIES,
    SHORTEST,
    Kind,
    Score,
    mean,
    measure,
    missed,
    rows,
    table,
)
from benchmarks.queue.replay import GPUS, Replay, Wanted
from benchmarks.queue.workloads import WORKLOADS, work, workload
from muster.protocol.ids import JobId
from orchestrator.core.model.plan import MoveCause

NODES, LOAD = 8, 0.9


@cache
def found() -> dict[Kind, list[Score]]:
    return measure(1, jobs=80, nodes=NODES, loads=(LOAD,), workers=1)


@pytest.mark.parametrize("policy", [CONSERVATIVE, EASY, SHORTEST])
def test_jobs_wait_less_with_backfill_than_in_a_strict_queue(policy: str) -> None:
    strict, ours = found()["lublin", LOAD, FIFO], found()["lublin", LOAD, policy]
    assert mean(ours).wait_s < mean(strict).wait_s
    assert mean(ours).slowdown < mean(strict).slowdown


def test_backfill_makes_promises_and_breaks_none() -> None:
    assert found()["lublin", LOAD, CONSERVATIVE][0].promised > 0
    assert found()["lublin", LOAD, FIFO][0].promised == 0
    for scores in found().values():
        assert scores[0].late == scores[0].unnamed == 0
    for name in WORKLOADS:  # no job outlives its limit and none overtakes another by priority
        assert found()[name, LOAD, CONSERVATIVE][0].moved == 0


def test_the_command_prints_the_table_and_writes_all_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    options = ["--quality", "--seeds", "1", "--jobs", "20", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["queue", *options])
    main()
    assert "| lublin | 1.1 | shortest first |" in capsys.readouterr().out
    assert len(json.loads(file.read_text())) == len(WORKLOADS) * len(LOADS) * len(POLICIES)


def test_the_table_has_a_line_for_each_workload_and_policy() -> None:
    assert len(table(found()).splitlines()) == 2 + len(WORKLOADS) * len(POLICIES)


def test_the_plot_has_a_bar_for_each_workload_policy_and_figure() -> None:
    drawn = ET.fromstring(plot(rows(found())))
    bars = [it for it in drawn if it.tag.endswith("rect")]
    background_and_legend = 1 + len(POLICIES)
    assert len(bars) == background_and_legend + len(PANELS) * len(WORKLOADS) * len(POLICIES)


def test_a_missed_goal_and_a_broken_promise_are_named() -> None:
    bad = Score(1.0, 1.0, 50.0, 0.5, 1.0, promised=3, moved=1, late=1, unnamed=1)
    good = bad._replace(slowdown=100.0, late=0, unnamed=0)
    scores: dict[Kind, list[Score]] = {
        ("lublin", 0.9, FIFO): [good],
        ("lublin", 0.9, CONSERVATIVE): [bad],
        ("lublin", 0.9, EASY): [good._replace(slowdown=40.0)],
    }
    assert missed(scores) == [
        "lublin, conservative: the slowdown is 0.50 of FIFO's, not 0.4",
        "lublin, load 0.9, conservative: 2 promises were broken",
    ]


def test_a_start_after_the_promised_one_is_counted() -> None:
    cluster = Replay()
    cluster.add_nodes(1)
    first, second = JobId(cluster.state.next_job), JobId(cluster.state.next_job + 1)
    cluster.add(Wanted(0.0, 500.0, 600.0, 1, 0))
    cluster.begin(first)
    cluster.add(Wanted(0.0, 10.0, 60.0, 1, 0))
    assert cluster.promised[second] is not None
    cluster.promised[second] = cluster.now.wall + 100.0
    cluster.placed.clear()
    cluster.run(())
    assert cluster.late == [second]


def test_a_job_that_outlives_its_plan_moves_a_promise_by_a_named_event() -> None:
    cluster = Replay()
    cluster.add_nodes(1)
    cluster.run([Wanted(0.0, 500.0, 60.0, 1, 0), Wanted(1.0, 10.0, 60.0, 1, 0)])
    assert {it.event.cause for it in cluster.moved} == {MoveCause.OVERRUN}
    assert cluster.late == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_the_wanted_load(name: str) -> None:
    jobs = workload(name, 3, 200, 64, 0.9)
    assert [it.at for it in jobs] == sorted(it.at for it in jobs)
    assert sum(map(work, jobs)) / (64 * GPUS * jobs[-1].at) == pytest.approx(0.9, rel=0.1)
    assert jobs == workload(name, 3, 200, 64, 0.9)
    assert max(it.nodes for it in jobs) <= 64
    assert all(it.limit_s >= it.runs_s for it in jobs)
