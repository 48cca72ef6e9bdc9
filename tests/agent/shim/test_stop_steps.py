"""The steps of a task's end."""

from __future__ import annotations

import signal
import subprocess

import pytest

from agent.shim.programs.termination import Termination
from agent.shim.system import syscalls
from agent.shim.system.event_loop import Loop
from agent.shim.system.process_tree import ProcessTree


def test_a_signal_to_many_is_no_more_looks_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads about each of its processes: one a process would take minutes for thousands,
    in which the shim answers nobody."""
    looks = []

    def counted(root: int) -> dict[int, int]:
        looks.append(root)
        return syscalls.descendants(root)

    monkeypatch.setattr("agent.shim.system.process_tree.descendants", counted)
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(8)]
    try:
        # SIGTERM also reaches a stopped process.
        children[0].send_signal(signal.SIGSTOP)
        with Loop() as loop:
            ending = Termination(loop, ProcessTree(None), 60.0, lambda: None, lambda *_: None)
            ending.signal([child.pid for child in children], signal.SIGTERM)
        assert [child.wait(30.0) for child in children] == [-signal.SIGTERM] * 8
        assert len(looks) == 2
    finally:
        for child in children:
            child.kill()
            child.wait()
