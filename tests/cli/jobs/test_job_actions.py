"""The verbs that change a job after its submit, by the real coordinator: what they say and exit
with."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Muster
from tests.orchestrator.user import JOB


@pytest.fixture
def submit(muster: Muster, tmp_path: Path) -> Callable[..., str]:
    def one(**more: Any) -> str:
        (tmp_path / "job.json").write_text(json.dumps({**JOB, **more}))
        done = muster("submit", "-f", "job.json")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return one


def test_hold_and_release_several(muster: Muster, submit: Callable[..., str]) -> None:
    one, two = submit(), submit(name="second")
    held = muster("hold", one, "second", one, "--reason", "data")
    assert (held.returncode, held.stdout) == (0, "")
    assert held.stderr == f"muster: job {one} HELD\nmuster: job {two} HELD\n"
    again = muster("hold", one).stderr
    assert again == f"muster: job {one} is already held by admin-user\n"
    assert "held by admin-user: data" in muster("ps").stdout
    shown = muster("show", one).stdout
    assert f"by admin-user: muster release {one}" in shown
    free = muster("release", one, "999999", two)
    assert free.returncode == 125
    assert f"job {one} QUEUED: " in free.stderr
    assert "there is no job 999999" in free.stderr
    assert f"job {two} QUEUED: " in free.stderr
    assert f"job {two} is already released, QUEUED" in muster("release", two).stderr


def test_a_job_that_was_never_held_is_not_released(
    muster: Muster, submit: Callable[..., str]
) -> None:
    job = submit()
    done = muster("release", job)
    assert done.returncode == 125
    assert done.stderr == (
        f"muster: job {job} is not held: it is QUEUED\n"
        f"  why it does not run: muster explain {job}\n"
    )


def test_set(muster: Muster, submit: Callable[..., str]) -> None:
    job = submit(time_limit="1h")
    done = muster("set", job, "priority=80", "time_limit=none")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"muster: job {job} changed; QUEUED: ")
    view = json.loads(muster("show", job, "--json").stdout)
    assert (view["priority"], "time_limit" in view["spec"]) == (80, False)
    assert "unchanged" in muster("set", job, "priority=80").stderr
    assert "unchanged" in muster("set", job, "max_duration=none").stderr
    timeline = muster("show", job).stdout
    assert "changed by admin-user: priority 80, no time limit" in timeline


def test_changed_jobs_as_json(muster: Muster, submit: Callable[..., str]) -> None:
    job = submit()
    for words, expected in (
        (("hold", job, "999999"), {"state": "HELD", "held_by": "admin-user"}),
        (("release", job), {"state": "QUEUED"}),
        (("set", job, "priority=80"), {"priority": 80}),
    ):
        done = muster(*words, "--json")
        (found,) = json.loads(done.stdout)["jobs"]
        assert {**found, **expected} == found
        assert done.returncode == (125 if "999999" in words else 0)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("JOB", "priority=101"), 2, "0 to 100"),
        (("JOB", "nodes=4"), 2, "muster rerun JOB --set nodes=VALUE"),
        (("JOB", "prioriti=4"), 2, "did you mean `priority`?"),
        (("JOB",), 2, "change what?"),
        (("priority=4",), 2, "which job?"),
        (("JOB", "priority=4", "priority=5"), 2, "given twice"),
        (("JOB", "time_limit=1h", "time=2h"), 2, "another name of `time_limit`"),
    ],
)
def test_keys_that_cannot_be_set(
    muster: Muster,
    submit: Callable[..., str],
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    job = submit()
    done = muster("set", *(job if word == "JOB" else word for word in words))
    assert done.returncode == code
    assert said.replace("JOB", job) in done.stderr


def test_each_wrong_state_is_one_sentence_and_what_to_do(
    muster: Muster, submit: Callable[..., str]
) -> None:
    job = submit()
    for arguments, said, hint in (
        (("signal", job, "USR1"), f"job {job} is QUEUED: only the ranks", "muster cancel"),
        (("signal", job, "NOPE"), "signal: `NOPE`: is not a signal", ""),
        (("rerun", "999999"), "there is no job 999999", "muster ps -a"),
        (("explain", "999999"), "there is no job 999999", "muster ps -a"),
    ):
        done = muster(*arguments)
        assert done.returncode in (2, 125)
        assert said in done.stderr
        assert hint in done.stderr
        assert done.stdout == ""
    muster("cancel", job)
    for arguments in (("hold", job), ("set", job, "priority=1"), ("signal", job, "USR1")):
        done = muster(*arguments)
        assert done.returncode == 125
        assert f"job {job} has ended (CANCELLED)" in done.stderr
        assert f"muster rerun {job}" in done.stderr


def test_rerun_prints_the_id_alone(muster: Muster, submit: Callable[..., str]) -> None:
    job = submit(name="again", nodes=1)
    done = muster("rerun", "again", "--exclude", "c1", "--set", "time_limit=2h")
    assert done.returncode == 0
    number = done.stdout.strip()
    assert done.stdout == f"{int(number)}\n"
    assert done.stderr == f"muster: submitted job {number} (again, job {job} again), QUEUED\n"
    assert f"another run of job {job}" in muster("show", number).stdout
    same = [muster("rerun", job, "--idempotency-key", f"k{job}").stdout for _ in range(2)]
    assert same[0] == same[1]
    assert json.loads(muster("rerun", job, "--json").stdout)["rerun_of"] == int(job)


def test_a_rerun_prints_the_time_limit_that_it_takes_over(
    muster: Muster, submit: Callable[..., str]
) -> None:
    job = submit(nodes=1, time_limit="3h")
    number = muster("rerun", job).stderr
    assert f"its time limit is 3h, as job {job} had (another: --set time_limit=TIME)" in number
    assert "time limit" not in muster("rerun", job, "--set", "time_limit=2h").stderr


def test_explain(muster: Muster, submit: Callable[..., str]) -> None:
    submit(name="first", nodes=2, priority=99)
    job = submit(name="why", nodes=2, priority=98)
    said = muster("explain", job).stdout
    assert "in the queue of pool default, behind" in said
    assert "needs 2 nodes; 0 could be used now" in said
    assert "c1    no   is not connected: unreachable, last message" in said
    assert "waits for 2 nodes to come back" in said
    found = json.loads(muster("explain", "why", "--json").stdout)
    assert (found["wanted"], found["starts_now"]) == (2, False)
    assert {node["reason"]["code"] for node in found["nodes"]} == {"not_connected"}
    what_if = muster(
        "explain", "why", "--nodes", "1", "--time-limit", "2h", "--after", "drain", "c1"
    ).stdout
    assert "if it asked for 1 node and its time limit was 2h and c1 was drained:" in what_if
    assert "needs 1 node; 0 could be used now" in what_if
    assert "c1    no   would be drained" in what_if
    wrong = muster("explain", "why", "--after", "drain", "nobody")
    assert wrong.returncode == 2
    assert "'nobody' is not a node" in wrong.stderr
    assert muster("explain", "rdma", "why", "--nodes", "1").returncode == 2
    ended = submit(name="gone")
    muster("cancel", ended, "--reason", "typo")
    assert "cancelled by admin-user: typo" in muster("explain", ended).stdout


def test_several_are_asked_about_at_a_terminal_and_nowhere_else(
    muster: Muster, submit: Callable[..., str]
) -> None:
    jobs = [submit(), submit()]

    def at_terminal(typed: bytes, *arguments: str) -> subprocess.CompletedProcess[str]:
        ours, theirs = pty.openpty()
        try:
            os.write(ours, typed)
            return muster("cancel", *arguments, stdin=theirs)
        finally:
            os.close(ours)
            os.close(theirs)

    refused = at_terminal(b"n\n", *jobs)
    assert refused.returncode == 125
    assert "cancel these 2 jobs?" in refused.stderr
    assert "nothing was cancelled" in refused.stderr
    assert refused.stdout == ""
    assert "cancel these" not in at_terminal(b"", jobs[0]).stderr
    again = submit()
    assert at_terminal(b"y\n", jobs[1], again).returncode == 0
    more = [submit(), submit()]
    assert "cancel these" not in at_terminal(b"", "-y", *more).stderr
    last = [submit(), submit()]
    assert muster("cancel", *last).stderr == "".join(f"muster: job {j} CANCELLED\n" for j in last)
