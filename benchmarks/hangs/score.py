"""Precision, recall and delay of the hang rules on the labelled traces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.hangs.traces import Case
from benchmarks.hangs.trial import Reported, Trial
from muster.protocol.observations.hangs import HangKind


@dataclass(slots=True)
class Score:
    """`delays` by the name of a kind of hang; the lists hold sentences."""

    cases: int = 0
    hangs: int = 0
    found: int = 0
    delays: dict[str, list[float]] = field(default_factory=dict)
    false_alarms: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    misnamed: list[str] = field(default_factory=list)
    misjudged_slow: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        alarms = self.found + len(self.false_alarms)
        return self.found / alarms if alarms else 1.0

    @property
    def recall(self) -> float:
        return self.found / self.hangs if self.hangs else 1.0

    def take(self, case: Case, reported: list[Reported]) -> None:
        """Add a case and the verdicts on it."""
        self.cases += 1
        self.hangs += case.hangs
        hung = [one for one in reported if one.verdict.kind is HangKind.HUNG]
        slow = [one for one in reported if one.verdict.kind is HangKind.SLOW]
        where = f"{case.name}, {case.ranks} ranks, at {case.at:.0f} s: " + (
            ", ".join(f"{one.verdict.text} ({one.at:.0f} s)" for one in reported) or "no report"
        )
        if not case.hangs:
            self.false_alarms += [where] * bool(hung)
            self.misjudged_slow += [where] * (bool(slow) is not case.slow)
            return
        if not hung or hung[0].at < case.at:
            self.missed.append(where)
            return
        self.found += 1
        self.delays.setdefault(case.name, []).append(hung[0].at - case.at)
        if case.odd is not None and hung[0].verdict.rank != case.odd:
            self.misnamed.append(f"{where}; it is rank {case.odd}")


def score(cases: Iterable[Case], *, stacks: bool = True) -> Score:
    """Play all cases."""
    found = Score()
    for case in cases:
        found.take(case, Trial(case, stacks=stacks).run())
    return found
