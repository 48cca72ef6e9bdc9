"""The reaping of children, however many there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# In a process of its own, as all children of a process are reaped.
MANY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from agent.shim.system.event_loop import Loop
from agent.shim.programs.runners import REAPED_MAX, Runners

count = 2 * REAPED_MAX + 10
for _ in range(count):
    if os.fork() == 0:
        os._exit(0)
ended, turns, timers = [], [], []
with Loop() as loop:
    runners = Runners(loop, None, None, lambda pid, how: ended.append(pid))

    def sweep():
        turns.append(len(ended))
        if runners.reap():
            loop.stop()
        else:
            loop.at("between", 0.0, lambda: timers.append(len(ended)))

    # All are dead before the first look.
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    loop.on_child(sweep)
    sweep()
    loop.run()
assert len(ended) == count, len(ended)
assert max(b - a for a, b in zip(turns, turns[1:])) <= REAPED_MAX, turns
assert timers, "nothing else had its turn"
"""


def test_many_dead_orphans_are_reaped_in_slices() -> None:
    """A job may make them faster than they are reaped; timers and orders go on meanwhile."""
    subprocess.run([sys.executable, "-c", MANY, str(ROOT)], check=True, timeout=300)
