"""Garbage collections skip what has survived one, and no garbage in cycles stays for ever."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import gc
from orchestrator.short_collections import ShortCollections

before = gc.get_threshold()

class Cycle:
    def __init__(self):
        self.itself = self

def collected(cycles):
    before = frozen()
    kept = [Cycle() for _ in range(cycles)]
    gc.collect()
    return frozen() - before

frozen = gc.get_freeze_count
with ShortCollections():
    state = [[number] for number in range(50_000)]
    gc.collect()
    assert len(gc.get_objects()) < 5_000, "the state is skipped"
    held = frozen()
    del state
    assert frozen() < held - 45_000, "what has no reference is freed at once"
assert frozen() == 0
with ShortCollections(slack=2_000, counted_every=2) as collections:
    start = most = frozen()
    # What survives a collection as part of a cycle is garbage afterwards.
    while collections.whole < 3:
        collected(1_000)
        most = max(most, frozen())
    collected(0)
    assert start + 2_000 < most < 2 * start + 12_000, (start, most)
    assert frozen() < most
assert gc.get_threshold() == before
"""


def test_the_number_of_frozen_objects_is_bounded() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
