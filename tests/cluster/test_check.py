"""`muster check` on machines of their own: what is cut or wrong is named, the rest is checked."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.local_cluster import LocalCluster
from examples.namespace_cluster import NamespaceCluster
from examples.rig.rig import missing
from tests.cluster.jobs import submit, until

NET = "10.77.0.0/24"


@pytest.fixture(scope="module")
def rigged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceCluster]:
    """Three machines."""
    if why := missing():
        pytest.skip(why)
    with NamespaceCluster(tmp_path_factory.mktemp("check"), agents=3) as made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def check(cluster: LocalCluster, *arguments: str, code: int) -> dict[str, Any]:
    """Return the report of `muster check --json` without speeds, which depend on the load here."""
    done = cluster.muster("check", "--json", "--mib", "1", *arguments, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    report["findings"] = [f for f in report["findings"] if f["kind"] != "slow"]
    assert done.returncode == code or (code, done.returncode) == (0, 1), report["findings"]
    return report


def faults(report: dict[str, Any]) -> list[tuple[str, list[str]]]:
    found = [f for f in report["findings"] if f["severity"] == "fault"]
    return [(f["kind"], f["nodes"]) for f in found]


@pytest.mark.root
def test_every_pair_meets_both_ways_and_names_are_looked_up(rigged: NamespaceCluster) -> None:
    report = check(rigged, code=0)
    assert report["findings"] == []
    assert report["nodes"] == ["node-1", "node-2", "node-3"]
    ways = {(pair["sender"], pair["receiver"]) for pair in report["pairs"]}
    assert len(ways) == len(report["pairs"]) == 6
    assert all(pair["network"] == NET and pair["gb_s"] > 0 for pair in report["pairs"])
    assert report["facts"]["node-1"] == report["facts"]["node-3"]


@pytest.mark.root
@pytest.mark.parametrize(
    "ends",
    [
        ("node-2", "node-3"),
        # The agents themselves try that for ten seconds.
        pytest.param(("node-1", "node-3"), marks=pytest.mark.long),
    ],
    ids="-".join,
)
def test_a_pair_that_is_cut_is_named_and_no_other(
    rigged: NamespaceCluster, ends: tuple[str, str]
) -> None:
    one, other = (rigged.machines[name] for name in ends)
    one.cut_from(other)
    try:
        report = check(rigged, "--timeout", "5s", code=2)
    finally:
        one.mend()
    (fault,) = [f for f in report["findings"] if f["severity"] == "fault"]
    assert fault["kind"] == "tcp"
    assert all(name in fault["text"] for name in ends)
    if "node-1" not in ends:
        assert fault["nodes"] == list(ends)
        assert fault["text"].endswith(f"do not reach each other on {NET}: no answer in 5 s")
        (network,) = report["networks"]
        assert (network["pairs"], network["failed"]) == (3, 2)
    else:
        # The launcher meets the others before the start, so the rest is checked without that one.
        assert len(report["jobs"]) == 2
        assert report["nodes"] == ["node-1", "node-2"]


@pytest.mark.root
def test_a_node_that_finds_another_under_a_name_is_named(rigged: NamespaceCluster) -> None:
    machine = rigged.machines["node-2"]
    before = machine.hosts()
    machine.write("/etc/hosts", f"10.77.0.99 node-3\n{before}")
    try:
        report = check(rigged, code=2)
    finally:
        machine.write("/etc/hosts", before)
    assert faults(report) == [("names", ["node-2"])]
    text = next(f["text"] for f in report["findings"] if f["kind"] == "names")
    assert "/etc/hosts gives the name node-3 to 10.77.0.99" in text
    assert report["nodes"] == ["node-1", "node-3"]


def test_a_busy_node_is_named_and_left_out(cluster: LocalCluster, tmp_path: Path) -> None:
    run = "touch up; until [ -e go ]; do sleep 0.05; done"
    job = submit(cluster, tmp_path, nodes=1, run=run)
    until((tmp_path / "up").exists, "the job runs")
    try:
        report = check(cluster, code=0)
        alone = cluster.muster("check", "node-1", check=False)
    finally:
        (tmp_path / "go").touch()
    cluster.muster("wait", job)
    assert report["skipped"] == {"node-1": f"runs job {job}"}
    assert report["nodes"] == ["node-2", "node-3"]
    assert alone.returncode == 1
    assert "node-1 is left out: runs job" in alone.stdout
    assert "no node could be checked" in alone.stdout


def test_a_busy_node_is_waited_for(cluster: LocalCluster, tmp_path: Path) -> None:
    run = "touch up; until [ -e go ]; do sleep 0.05; done"
    submit(cluster, tmp_path, nodes=1, run=run)
    until((tmp_path / "up").exists, "the job runs")
    with_all = cluster.client()

    def check_is_queued() -> bool:
        newest = with_all.jobs(limit=1).jobs[0]
        return newest.name == "check" and newest.state.value == "QUEUED"

    waiting = subprocess.Popen(
        cluster.command("check", "--wait", "--json", "--mib", "1"),
        env=cluster.base_env(),
        stdout=subprocess.PIPE,
    )
    try:
        until(check_is_queued, "the check waits for the node")
    finally:
        (tmp_path / "go").touch()
    said, _ = waiting.communicate(timeout=300)
    assert json.loads(said)["nodes"] == ["node-1", "node-2", "node-3"]


def test_ctrl_c_cancels_the_job(cluster: LocalCluster, tmp_path: Path) -> None:
    run = "touch up; until [ -e go ]; do sleep 0.05; done"
    blocker = submit(cluster, tmp_path, nodes=1, run=run)
    until((tmp_path / "up").exists, "a node is busy")
    checking = subprocess.Popen(
        cluster.command("check", "--wait"),
        env=cluster.base_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert checking.stderr is not None
    try:
        assert "checks 3 nodes; Ctrl-C cancels it" in checking.stderr.readline()
        checking.send_signal(signal.SIGINT)
        _, said = checking.communicate(timeout=300)
    finally:
        (tmp_path / "go").touch()
    job = cluster.client().job(cluster.client().find_job("check"))
    assert checking.returncode == 130
    assert f"interrupted; job {job.id} was cancelled" in said
    assert job.state.value == "CANCELLED"
    cluster.muster("wait", blocker)


def test_in_words_and_eighty_columns(cluster: LocalCluster) -> None:
    done = cluster.muster("check", "--mib", "1", check=False)
    assert done.returncode in (0, 1), done.stdout
    assert "127.0.0.0/8" in done.stdout
    assert "3 nodes checked" in done.stdout
    assert done.stdout.startswith(("note ", "warning "))


def test_a_node_that_is_not_there_is_a_usage_error(cluster: LocalCluster) -> None:
    done = cluster.muster("check", "node-9", check=False)
    assert done.returncode == 2
    assert "there is no node node-9; `muster nodes` lists them" in done.stderr
