"""A fork server survives the death of its agent at any moment."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import agent

ROOT = Path(agent.__file__).parents[1]


@pytest.mark.parametrize("unread", [b"", b'{"id": 1, "task_dir": "/nowhere"}'])
def test_an_agent_that_is_gone_already_is_no_error(unread: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if unread:
        ours.send(unread)
    ours.close()
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from agent.shim.fork_server import main"
    with theirs:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"{code}; main({theirs.fileno()})"],
            pass_fds=(theirs.fileno(),),
            capture_output=True,
            timeout=300,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_template_loads_little() -> None:
    """Each fork copies the pages that it and its parent touch: modules lie between those."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import agent.shim.fork_server"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{code}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "agent.shim.programs.runner" in loaded
    assert not loaded & {
        "typing",
        "dataclasses",
        "traceback",
        "contextlib",
        "inspect",
        "subprocess",
        "asyncio",
    }
