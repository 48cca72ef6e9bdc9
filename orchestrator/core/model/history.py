"""What happened, in words and with its moment: the last of it, and how much there was before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

LINES_KEPT: Final = 100


@dataclass(slots=True)
class Lines:
    """Whoever adds lines may do so without end: the oldest go. Moments are UTC seconds."""

    kept: list[tuple[float, str]] = field(default_factory=list)
    gone: int = 0
    gone_at: float = 0.0  # the moment of the last of those

    def add(self, at: float, text: str) -> None:
        self.kept.append((at, text))
        for old_at, _ in self.kept[:-LINES_KEPT]:
            self.gone, self.gone_at = self.gone + 1, old_at
        del self.kept[:-LINES_KEPT]

    def told(self) -> list[tuple[float, str]]:
        """The oldest first; what is gone is counted in a line of its own, which comes before."""
        if not self.gone:
            return list(self.kept)
        lines = "1 earlier line is" if self.gone == 1 else f"{self.gone} earlier lines are"
        return [(self.gone_at, f"{lines} not kept"), *self.kept]
