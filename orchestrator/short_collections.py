"""Short garbage collections: what has survived a full one is frozen, so that the next skips it.

A full collection visits all objects. With 10,000 waiting jobs, it stops the loop for 50 ms or more.
Frozen objects are freed as all others when their last reference goes. Only garbage in cycles stays,
until a whole collection, which begins when the frozen objects have doubled in number.
"""

import gc
from typing import Any, Final, Self

GENERATIONS: Final = (700, 10, 3)
"""Thresholds of the collector: a full collection visits the survivors of about 20,000 objects."""
SLACK: Final = 250_000
"""Number of objects that are frozen before the first whole collection."""
COUNTED_EVERY: Final = 16
"""Number of full collections until the frozen objects are counted, which visits all of them."""


class ShortCollections:
    """`with ShortCollections():` freezes what survives. One at a time in a process."""

    def __init__(self, slack: int = SLACK, counted_every: int = COUNTED_EVERY) -> None:
        self.whole = 0  # number of whole collections so far
        self._slack, self._counted_every = slack, counted_every
        self._full = 0
        self._is_whole = False
        self._kept = 0
        self._before = gc.get_threshold()

    def __enter__(self) -> Self:
        gc.freeze()
        self._kept = gc.get_freeze_count()
        self._before = gc.get_threshold()
        gc.set_threshold(*GENERATIONS)
        gc.callbacks.append(self._collected)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop" or info["generation"] < len(GENERATIONS) - 1:
            return
        gc.freeze()
        self._full += 1
        if self._is_whole:
            self._is_whole = False
            self.whole += 1
            self._kept = gc.get_freeze_count()
        elif self._full % self._counted_every == 0 and self._has_doubled():
            # The next full collection visits everything.
            self._is_whole = True
            gc.unfreeze()

    def _has_doubled(self) -> bool:
        return gc.get_freeze_count() > 2 * self._kept + self._slack
