"""Leftovers of earlier agents other than processes are named by `doctor` and at each start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.config import AgentConfig, Hosts
from agent.daemon import _name_traces
from agent.leftovers.inventory import list_leftovers
from agent.probe.fabric import host_problems
from agent.shim.system import cgroup
from muster.protocol.hosts_file import with_block

FOREIGN = b"127.0.0.1 localhost\n"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "tasks" / "8.1.0").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    file = tmp_path / "hosts"
    file.write_bytes(FOREIGN)
    return file


def of_this(found: tuple[str, ...]) -> list[str]:
    """Without cgroups: other tests leave such while they run."""
    return [text for text in found if not text.startswith("cgroups")]


def test_nothing_is_named_of_tasks_that_are_there(state: Path, hosts: Path) -> None:
    hosts.write_bytes(with_block(FOREIGN, "8.1", [("node-1", "10.0.0.1")]))
    assert of_this(list_leftovers(state, hosts)) == []
    assert of_this(list_leftovers(state / "none", state / "none")) == []


def test_names_and_folders_are_reported_with_what_they_are_of(
    state: Path, hosts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write_bytes(with_block(FOREIGN, "7.2", [("node-1", "10.0.0.1")]))
    (state / "tasks" / ".gone-7.2.0").mkdir()
    found = of_this(list_leftovers(state, hosts))
    assert found == [
        f"names of the gangs of attempts 7.2 in {hosts}",
        f"folders that were not made or removed whole, .gone-7.2.0 in {state / 'tasks'}",
    ]
    # Beside an agent that runs, such a folder may be on its way.
    assert of_this(list_leftovers(state, hosts, 0.0)) == found[:1]
    assert [problem.what for problem in host_problems.of_traces(found)] == [
        f"left by an earlier agent process: {text}" for text in found
    ]
    _name_traces(AgentConfig(node="n1", state_dir=state, hosts=Hosts(file=hosts)))
    printed = capsys.readouterr()
    assert "attempts 7.2" in printed.out + printed.err


@pytest.mark.cgroup
def test_cgroups_of_the_dead_are_named(state: Path, hosts: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    made = cgroup.Cgroup.make(None, f"{cgroup.prefix_of(child.pid)}1")
    mine = cgroup.Cgroup.make(None, f"{cgroup.prefix_of(os.getpid())}1")
    if made is None or mine is None:
        pytest.skip("no cgroup v2 can be written here")
    try:
        assert made.path in cgroup.dead()
        assert mine.path not in cgroup.dead()
        assert any(text.startswith("cgroups of shims") for text in list_leftovers(state, hosts))
    finally:
        made.remove()
        mine.remove()


def test_mount_points_with_odd_names_hide_nothing_and_stop_nobody(
    state: Path, hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may mount something of their own at a name of any bytes."""
    left = state / "tasks" / "7.1.0" / "scratch"
    mounts = state / "mounts"
    odd = "none /home/ada/\u2028\u2028 fuse rw 0 0\n".encode() + b"none /home/\xff\r fuse rw 0 0\n"
    mounts.write_bytes(odd + f"none {left} tmpfs rw 0 0\n".encode())
    monkeypatch.setattr("agent.leftovers.inventory._MOUNTS", mounts)
    assert of_this(list_leftovers(state, hosts)) == [f"mounts at {left}"]


MOUNTS_ODDLY = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir(sys.argv[1].encode() + b"/\\xff")
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 16384 | 1 << 18, None):
    sys.exit(3)
if libc.mount(b"none", sys.argv[1].encode() + b"/\\xff", b"tmpfs", 0, None):
    sys.exit(3)
from agent.shim.system.cgroup import own_cgroup
own_cgroup()
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_mount_point_that_is_not_utf_8_keeps_no_shim_from_its_cgroup(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MOUNTS_ODDLY, str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == 3:
        pytest.skip("this container allows no mounts")
    assert (done.returncode, done.stderr) == (0, "")
