"""`muster stacks` and `muster evidence`, by the real coordinator."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from muster.cli.output.stacks_view import heading, stack_lines, verdict_lines
from muster.protocol.observations.hangs import (
    Doing,
    Frame,
    HangKind,
    HangVerdict,
    RankActivity,
    RankStacks,
    RecordedRank,
    StackGroup,
    StacksView,
    ThreadStack,
)
from tests.cli.conftest import Muster
from tests.orchestrator.user import JOB

SECRET = "hunter2-hunter2"
STEP = Frame("step\x1b[31m", "/w/train.py", 41)
GROUPS = (
    StackGroup((3,), ("n2",), "data.py:17", frames=(Frame("augment", "/w/data.py", 17),)),
    StackGroup((0, 1, 2), ("n1", "n2"), "train.py:41", waits=True, frames=(STEP,)),
)


@pytest.fixture
def job(muster: Muster, tmp_path: Path) -> str:
    spec = {
        **JOB,
        "run": ["/bin/true", "--api-token", SECRET],
        "setup": f"export API_TOKEN={SECRET}",
        "env": {"API_TOKEN": SECRET},
        "workdir": "none",
    }
    (tmp_path / "job.json").write_text(json.dumps(spec))
    return muster("submit", "-f", "job.json").stdout.strip()


def test_stacks_that_cannot_be_had(muster: Muster, job: str) -> None:
    done = muster("stacks", job)
    assert done.returncode == 125
    assert f"job {job} is QUEUED: only running ranks have stacks" in done.stderr
    assert "Traceback" not in done.stderr


def test_evidence_of_a_job(muster: Muster, job: str, tmp_path: Path) -> None:
    done = muster("evidence", job)
    path = tmp_path / f"muster-job-{job}.tar.gz"
    assert (done.returncode, done.stdout) == (0, f"{path.name}\n")
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        texts = [
            file.read().decode()
            for entry in tar.getmembers()
            if (file := tar.extractfile(entry)) is not None
        ]
    assert names == {
        "job.json",
        "events.json",
        "verdicts.json",
        "verdicts.txt",
        "fabric.json",
        "environment.json",
        "explain.json",
        "versions.json",
        "nodes.json",
        "logs.txt",
    }
    assert not any(SECRET in text for text in texts)
    before = path.read_bytes()
    again = muster("evidence", job)
    assert again.returncode == 125
    assert "exists: name another file, or use --force" in again.stderr
    assert path.read_bytes() == before
    written = json.loads(muster("evidence", job, "--force", "--json").stdout)
    assert written["path"] == path.name
    assert sorted(written["files"]) == sorted(names)
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_evidence_of_what_is_not_there(muster: Muster, job: str) -> None:
    assert muster("evidence").returncode == 2
    assert muster("evidence", job, "--node", "n1").returncode == 2
    done = muster("evidence", "--node", "n1")
    assert done.returncode == 125
    assert "there is no node 'n1'" in done.stderr


def test_the_heading_counts_ranks() -> None:
    assert heading(StacksView(1, 2, GROUPS[:1])) == "job 1, attempt 2  1 rank"
    assert heading(StacksView(1, 2, GROUPS)) == "job 1, attempt 2  4 ranks"


def test_stacks_as_text() -> None:
    text = "\n".join(stack_lines(GROUPS))
    assert text.splitlines()[1] == "rank 3 on n2  data.py:17"
    assert "ranks 0, 1, 2 on n1, n2  train.py:41  (waits for other ranks)" in text
    assert "\x1b" not in text


def test_a_verdict_as_text_has_all_its_signals() -> None:
    threads = (
        ThreadStack("MainThread", (STEP,)),
        ThreadStack("pin", (Frame("loop", "/w/pin.py", 3),), gil=True),
    )
    verdict = HangVerdict(
        HangKind.HUNG,
        "hung: rank 3 at data.py:17",
        70.0,
        60.0,
        ranks=(RankActivity(3, True, 70.0, 70.0, 12.0, 5.0, Doing.STOPPED, "do_signal_stop"),),
        groups=GROUPS,
        threads=(RankStacks(3, 17, threads),),
        recorded=(RecordedRank(3, 7, 6, "all_reduce"),),
        notes=("n1: py-spy is not installed",),
    )
    text = "\n".join(verdict_lines(verdict))
    for said in (
        "hung: rank 3 at data.py:17",
        "no progress for 70 s; reported after 60 s",
        "rank 3: no bytes for 70 s, no CPU for 70 s; stopped in do_signal_stop",
        "last collective all_reduce; 6 of 7 completed",
        "n1: py-spy is not installed",
        "rank 3, thread pin, holds the GIL",
        "loop  /w/pin.py:3",
    ):
        assert said in text
