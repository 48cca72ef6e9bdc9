"""Time, order, chance and the record of a simulated run: the same seed is the same run, always."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.crashes import Crashes

LINES_KEPT = 80
WALL_BEGINS = 1_760_000_000.0
COMPARED = 5
"""Runs whose seed is a multiple of this are compared with one whose wall clock does not jump."""


class Violation(AssertionError):
    """Something has happened that must not; the text says what."""


class World:
    """A virtual clock (seconds from 0), its events in order, one source of chance, a transcript.

    `met` counts what happened of each kind (faults above all), `steps` the turns of real cores.
    """

    def __init__(self, seed: int, *, wall_jumps: bool = False, verbose: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.rng = random.Random(seed)
        self.met: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()  # invariants, each time that one is
        self.crashes: Crashes | None = None  # where a process is to die at one point
        self.steps = 0
        self.verbose = verbose
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = 0
        self._digest = hashlib.blake2b(digest_size=12)
        # Its own chance: whether the wall clock jumps must change nothing else.
        self._wall_rng = random.Random(f"wall {seed}") if wall_jumps else None
        self._wall_offset = 0.0

    @property
    def digest(self) -> str:
        """Identifies everything that happened so far."""
        return self._digest.hexdigest()

    def at(self, delay_s: float, call: Callable[[], None]) -> None:
        """Let `call` happen `delay_s` from now, after everything due at the same moment."""
        self._tie += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._tie, call))

    def run(self, until: float) -> None:
        """Let everything happen that is due up to the moment `until`."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, call = heapq.heappop(queue)
            call()
        self.now = until

    def log(self, line: str) -> None:
        """Add a line to the transcript."""
        text = f"{self.now:.6f} {line}"
        self._digest.update(text.encode())
        self.lines.append(text)
        if self.verbose:
            print(text)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def wall(self) -> float:
        """UTC seconds as a machine shows them; where the seed says so, they jump by days."""
        if self._wall_rng is not None and self._wall_rng.random() < 0.01:
            self._wall_offset = self._wall_rng.uniform(-90_000.0, 90_000.0)
        return WALL_BEGINS + self.now + self._wall_offset
