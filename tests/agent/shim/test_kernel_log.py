"""Kernel log lines attached to a failed rank: only those about that rank."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent.shim.exit_record import Logs
from agent.shim.messages import ShimExit
from agent.shim.programs.ranks import Ranks
from agent.shim.status import Status
from agent.shim.system import kernel_log
from agent.shim.system.kernel_log import KernelLog
from tests.descriptors import open_under

KILLED = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB"
OF_RANK = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 8"
OF_GPU = "NVRM: Xid (PCI:0000:3b:00): 48, DBE (double bit error) ECC Error"
CGROUP = "/sys/fs/cgroup/agent/muster/shim-4026531836-700-1"
OF_CGROUP = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/agent,task_memcg={},task=python,pid=4711,uid=9"
)
NOISE = "eth0: link becomes ready"


class Records:
    """In the place of the kernel's: one record a read."""

    def __init__(self, *records: tuple[float, str]) -> None:
        self._records = [
            f"4,{n},{int(at * 1e6)},-,caller=T1;{text}\n SUBSYSTEM=pci\n".encode()
            for n, (at, text) in enumerate(records)
        ]

    def __call__(self, fd: int, count: int) -> bytes:
        assert count >= kernel_log.RECORD_BYTES_MAX
        if not self._records:
            raise BlockingIOError
        record = self._records.pop(0)
        if b"overwritten" in record:
            raise BrokenPipeError
        return record


@pytest.fixture
def log() -> KernelLog:
    return KernelLog(CGROUP, "/dev/null")


def about(
    log: KernelLog,
    monkeypatch: pytest.MonkeyPatch,
    *lines: str,
    pid: int = 4711,
    said: str = "",
    age_s: float = 0.0,
) -> list[str]:
    now = time.monotonic() - age_s
    monkeypatch.setattr(os, "read", Records(*((now, line) for line in lines)))
    found = log.about(pid, said)
    monkeypatch.undo()
    return found.splitlines()


def test_lines_that_name_the_rank_or_no_process(
    log: KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (NOISE, KILLED, "overwritten", OF_RANK, OF_GPU)
    assert about(log, monkeypatch, *lines) == [KILLED, OF_RANK, OF_GPU]
    assert about(log, monkeypatch, *lines, pid=471) == [OF_GPU]


SAID = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."


@pytest.mark.parametrize("below", ["", "/job"])
def test_a_child_that_the_rank_names(
    log: KernelLog, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    lines = (OF_CGROUP.format(f"/agent/muster/shim-4026531836-700-1{below}"), KILLED)
    assert about(log, monkeypatch, *lines, pid=9, said=SAID) == [KILLED]
    assert about(log, monkeypatch, *lines, pid=9, said="worker (pid 47112)") == []
    assert about(log, monkeypatch, *lines) == [KILLED]


@pytest.mark.parametrize(
    "cgroup",
    [
        None,
        "/agent",
        "/agent/muster/shim-4026531836-700-2",
        "/agent/muster/shim-4026531836-700-11",
        "/eve/x,task_memcg=/agent/muster/shim-4026531836-700-1",
    ],
)
def test_a_rank_that_names_a_process_of_others_learns_nothing_of_it(
    log: KernelLog, monkeypatch: pytest.MonkeyPatch, cgroup: str | None
) -> None:
    before = () if cgroup is None else (OF_CGROUP.format(cgroup),)
    lines = (*before, KILLED, OF_RANK)
    assert about(log, monkeypatch, *lines, pid=9, said=SAID) == []
    without = KernelLog(None, "/dev/null")
    assert about(without, monkeypatch, *lines, pid=9, said=SAID) == []


def test_a_pid_that_a_launcher_reports_is_looked_up_if_it_is_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    asked: list[int | None] = []

    def kernel(pid: int | None, _: str) -> str:
        asked.append(pid)
        return ""

    ranks = Ranks(Status("7.1.0", "/logs"), Logs(folder, None), kernel=kernel)
    try:
        for rank in range(2):
            for fd in ranks.open(rank, rank):
                os.close(fd)
            ranks.began(rank, 4711, ours=bool(rank))
            ranks.ended(rank, ShimExit(1), None)
    finally:
        os.close(folder)
    assert asked == [None, 4711]


def test_names_that_users_choose_are_no_lines_of_the_kernel(
    log: KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"process '/home/eve/{line}' started with executable stack" for line in (KILLED, OF_GPU)
    ]
    assert about(log, monkeypatch, *lines) == []


def test_lines_older_than_the_task_are_ignored(
    log: KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert about(log, monkeypatch, OF_GPU, age_s=60.0) == []


def test_a_storm_is_cut(log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    found = about(log, monkeypatch, *[OF_GPU + "x" * 4000] * 500)
    assert len(found) == kernel_log.LINES_MAX
    assert max(map(len, found)) <= kernel_log.LINE_CHARS_MAX


def test_a_log_that_may_not_be_read_says_nothing() -> None:
    assert KernelLog(path="/nowhere/kmsg").about(1, "") == ""


@pytest.mark.root
def test_the_kernel_s_own() -> None:
    """Its clock is ours, and no descriptor stays."""
    try:
        kmsg = os.open(kernel_log.PATH, os.O_WRONLY)
    except OSError as error:
        pytest.skip(f"{kernel_log.PATH} cannot be written: {error.strerror}")
    log = KernelLog()
    line = KILLED.replace("4711", "4194399")  # more than any process has
    os.write(kmsg, f"<4>{line}\n".encode())
    os.close(kmsg)
    assert log.about(4194399, "").splitlines()[-1:] == [line]
    assert open_under(Path(kernel_log.PATH)) == []
