"""A bounded history: the newest lines with their times, and a count of the dropped ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

LINES_KEPT: Final = 100


@dataclass(slots=True)
class BoundedLines:
    """Any number of lines may be added: the oldest are dropped. Times are UTC seconds."""

    kept: list[tuple[float, str]] = field(default_factory=list)
    gone: int = 0
    gone_at: float = 0.0  # time of the newest dropped line

    def add(self, at: float, text: str) -> None:
        self.kept.append((at, text))
        for old_at, _ in self.kept[:-LINES_KEPT]:
            self.gone, self.gone_at = self.gone + 1, old_at
        del self.kept[:-LINES_KEPT]

    def entries(self) -> list[tuple[float, str]]:
        """Return the lines, oldest first. If lines were dropped, the first line counts them."""
        if not self.gone:
            return list(self.kept)
        lines = "1 earlier line is" if self.gone == 1 else f"{self.gone} earlier lines are"
        return [(self.gone_at, f"{lines} not kept"), *self.kept]
