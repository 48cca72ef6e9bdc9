"""The site's programs on a cluster of real daemons: what they keep off a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from tests.cluster.jobs import submit, until, wait


class Hooked(LocalCluster):
    """Two nodes, of which the first has a prolog and the second an epilog. Each fails while there
    is a file `fault` of the program's name."""

    def program(self, name: str) -> str:
        path = self.root / name
        fault = self.root / f"{name}.fault"
        path.write_text(f"#!/bin/sh\ncat {fault} 2>/dev/null && exit 1\necho {name} is content\n")
        path.chmod(0o755)
        return str(path)

    def _place(self, number: int) -> dict[str, object]:
        name = "prolog" if number == 1 else "epilog"
        return {**super()._place(number), name: self.program(name)}


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hooked]:
    made = Hooked(tmp_path_factory.mktemp("hooked"), agents=2)
    with made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def test_a_failing_prolog_keeps_a_job_off_its_node_and_a_failing_epilog_drains(
    hooked: Hooked, tmp_path: Path
) -> None:
    (hooked.root / "prolog.fault").write_text("/scratch is not mounted\n")
    job = submit(hooked, tmp_path, run="true", retry={"backoff": "0.1s"})
    assert wait(hooked, job) == 0
    tried = hooked.client().job(int(job)).attempts
    assert [task.node for each in tried for task in each.tasks] == ["node-1", "node-2"]
    said = " ".join(hooked.muster("events", job).stdout.split())
    assert "prolog failed with exit code 1: /scratch is not mounted" in said
    (hooked.root / "epilog.fault").write_text("a mount is stuck\n")
    placed = {"include": ["node-2"]}
    unhappy = submit(hooked, tmp_path, run="true", placement=placed)
    assert wait(hooked, unhappy) == 0

    def drained() -> bool:
        return hooked.client().node("node-2").drain is not None

    until(drained, "the node is drained")
    drain = hooked.client().node("node-2").drain
    assert drain is not None
    assert drain.user == "muster"
    assert drain.reason.endswith("epilog failed with exit code 1: a mount is stuck")
    failed = "nothing is left on the node; epilog: failed with exit code 1: a mount is stuck"
    assert failed in " ".join(hooked.muster("events", unhappy).stdout.split())
    (hooked.root / "epilog.fault").unlink()
    assert hooked.muster("node", "resume", "node-2").returncode == 0
    assert wait(hooked, submit(hooked, tmp_path, run="true", placement=placed)) == 0
    assert hooked.client().node("node-2").drain is None


def test_the_last_line_of_a_prolog_is_in_the_jobs_timeline(hooked: Hooked, tmp_path: Path) -> None:
    (hooked.root / "prolog.fault").unlink(missing_ok=True)
    job = submit(hooked, tmp_path, run="true", placement={"include": ["node-1"]})
    assert wait(hooked, job) == 0
    assert "arranged; prolog: prolog is content" in hooked.muster("events", job).stdout
    shown = hooked.muster("show", job).stdout
    assert "  node-1: prolog: prolog is content" in shown.splitlines()


def test_the_last_line_of_an_epilog_is_in_the_jobs_timeline(hooked: Hooked, tmp_path: Path) -> None:
    (hooked.root / "epilog.fault").unlink(missing_ok=True)
    hooked.muster("node", "resume", "node-2", check=False)
    job = submit(hooked, tmp_path, run="true", placement={"include": ["node-2"]})
    assert wait(hooked, job) == 0
    said = "nothing is left on the node; epilog: epilog is content"
    assert said in hooked.muster("events", job).stdout
    shown = hooked.muster("show", job).stdout
    assert "  node-2: epilog: epilog is content" in shown.splitlines()
