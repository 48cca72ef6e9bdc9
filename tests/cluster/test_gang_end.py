"""The end of a gang on several machines: which rank failed first, which ones were stopped, and
when."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from examples.namespace_cluster import NamespaceCluster
from muster.http.views import JobView
from muster.protocol.states import JobState
from tests.cluster.jobs import await_file, pid_of, submit, until, wait

pytestmark = pytest.mark.root

TWO_EACH: dict[str, Any] = {"launcher": "processes", "nodes": 2, "nproc_per_node": 2}
# The grace period is an hour.
NAMED_WITHIN_S = 60.0


def view(cluster: NamespaceCluster, job: str) -> JobView:
    return cluster.client().job(int(job))


def at(cluster: NamespaceCluster, job: str, kind: str) -> float:
    """Return the time (UTC seconds) at which the coordinator recorded the one fact of this kind of
    a job."""
    (found,) = [e.at for e in cluster.client().events(int(job)).events if e.kind == kind]
    return found.timestamp()


# All refuse to go. The culprit fails once every rank is there, and notes when.
STUBBORN = """
trap '' TERM
echo $$ > pid.$RANK
until [ -s pid.0 ] && [ -s pid.1 ] && [ -s pid.2 ] && [ -s pid.3 ]; do sleep 0.02; done
[ $RANK = 2 ] || exec sleep 1000
echo 'Traceback (most recent call last):' >&2
echo '  File "train.py", line 7, in <module>' >&2
echo 'ValueError: the loss is not a number' >&2
date +%s.%N > failed
exit 3
"""


def test_the_first_failure_is_named_while_the_others_refuse_to_go(
    machines: NamespaceCluster, tmp_path: Path
) -> None:
    job = submit(machines, tmp_path, run=["bash", "-c", STUBBORN], stop={"grace": "1h"}, **TWO_EACH)
    until(lambda: view(machines, job).state is JobState.STOPPING, "stopping")
    shown = json.loads(machines.muster("show", "--json", job).stdout)
    (attempt,) = shown["attempts"]
    cause = attempt["cause"]
    assert (cause["rank"], cause["node"], cause["exit"]["code"]) == (2, "node-2", 3)
    assert cause["kind"] == shown["failure"] == "exception"
    assert cause["tail"].splitlines()[-1] == "ValueError: the loss is not a number"
    assert shown["state"] == "STOPPING"
    kill_at = datetime.fromisoformat(shown["kill_at"]).timestamp()
    assert kill_at - at(machines, job, "StopRequested") == pytest.approx(3600, abs=1)
    late_s = at(machines, job, "StopRequested") - float(await_file(tmp_path / "failed"))
    print(f"the gang got the stop {late_s * 1000:.0f} ms after the rank had ended")
    assert 0 <= late_s < NAMED_WITHIN_S

    machines.muster("cancel", "--force", "--wait", job)
    (attempt,) = json.loads(machines.muster("show", "--json", job).stdout)["attempts"]
    ranks = {r["rank"]: (r["stopped"], r["exit"]) for t in attempt["tasks"] for r in t["ranks"]}
    assert ranks.pop(2) == (False, cause["exit"])
    assert {rank: stopped for rank, (stopped, _) in ranks.items()} == dict.fromkeys((0, 1, 3), True)
    assert {ended["signal"] for _, ended in ranks.values()} == {9}


# The memory is touched: the kernel counts no other.
EATS = """
import os, pathlib, time
while not os.path.exists("go"):
    time.sleep(0.02)
if os.environ["RANK"] == "3":
    eaten = bytearray(b"x" * (1 << 28))
time.sleep(1000)
"""
MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT = 64 << 20


@pytest.fixture
def tight() -> Iterator[Path]:
    """A cgroup with little memory. Of version 1, as one can be made beside those of the rig, which
    stay as they are."""
    made = MEMORY / f"muster-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no memory controller of cgroup v1 that can be written: {error.strerror}")
    (made / "memory.limit_in_bytes").write_text(str(LIMIT))
    yield made
    until(lambda: (made / "cgroup.procs").read_text() == "", "nothing runs there")
    made.rmdir()


def test_a_rank_that_the_kernel_kills_for_memory(
    machines: NamespaceCluster, tight: Path, tmp_path: Path
) -> None:
    (tmp_path / "eats.py").write_text(EATS)
    job = submit(machines, tmp_path, run="eats.py", time_limit="10m", **TWO_EACH)
    until(lambda: view(machines, job).state is JobState.RUNNING, "running")
    (tight / "cgroup.procs").write_text(str(pid_of(machines, job, 3)))
    (tmp_path / "go").touch()
    assert wait(machines, job) == 137
    assert "oom_kill 1" in (tight / "memory.oom_control").read_text()
    ended = view(machines, job)
    assert ended.failure == "killed"
    assert "rank 3 on node-2 was killed by SIGKILL" in ended.reason.text
    assert "out-of-memory killer" in ended.reason.text


# Notes each signal with a clock that all machines of one kernel share, then beats until its end.
BEATS = """
import os, signal, time
rank = os.environ["RANK"]
with open(f"said.{rank}", "a", buffering=1) as said:
    def note(number, frame):
        print(signal.Signals(number).name, time.monotonic_ns(), file=said)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, note)
    while True:
        print("beat", time.monotonic_ns(), file=said)
        time.sleep(0.02)
"""
LIMIT_S, WARN_S, GRACE_S = 10.0, 4.0, 4.0


def heard(file: Path) -> dict[str, list[float]]:
    """The seconds at which a rank noted each word."""
    found: dict[str, list[float]] = {}
    for line in file.read_text().splitlines():
        word, moment = line.split()
        found.setdefault(word, []).append(int(moment) / 1e9)
    return found


def test_the_ladder_is_climbed_on_all_machines_together(
    machines: NamespaceCluster, tmp_path: Path
) -> None:
    (tmp_path / "beats.py").write_text(BEATS)
    job = submit(
        machines,
        tmp_path,
        run="beats.py",
        time_limit=f"{LIMIT_S:g}s",
        stop={"warn": f"USR1@{WARN_S:g}s", "signal": "USR2", "grace": f"{GRACE_S:g}s"},
        **TWO_EACH,
    )
    assert wait(machines, job) == 124
    ranks = [heard(tmp_path / f"said.{rank}") for rank in range(4)]
    assert [set(words) for words in ranks] == [{"beat", "SIGUSR1", "SIGUSR2"}] * 4
    assert {len(words["SIGUSR1"]) for words in ranks} == {1}, "warned once"
    warned = [words["SIGUSR1"][0] for words in ranks]
    stopped = [words["SIGUSR2"][0] for words in ranks]
    last = [words["beat"][-1] for words in ranks]
    for what, moments in (("warned", warned), ("stopped", stopped), ("killed", last)):
        print(f"{what} {(max(moments) - min(moments)) * 1000:.1f} ms apart")
    # Seconds lie between the rungs, so a busy machine may delay a rank by a part of them.
    assert max(warned) < min(stopped)
    assert max(stopped) < min(last)
    for warning, stop, end in zip(warned, stopped, last, strict=True):
        assert stop - warning > WARN_S / 4
        assert end - stop > GRACE_S / 4
