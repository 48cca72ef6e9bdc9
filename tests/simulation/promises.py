"""Answers to users, and the records that must be on disk because of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from muster.protocol.ids import JobId
from orchestrator.core.facts import effects as a
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import State
from tests.simulation.disk import Disk
from tests.simulation.world import Violation


@dataclass
class Promises:
    """Every method raises Violation where a promise is not kept."""

    disk: Disk
    submits: dict[str, JobId] = field(default_factory=dict)  # acknowledged, by name
    cancels: set[JobId] = field(default_factory=set)  # acknowledged before the end
    holds: set[JobId] = field(default_factory=set)  # acknowledged, and no release asked for since
    settings: dict[JobId, dict[str, float]] = field(default_factory=dict)  # acknowledged
    others: list[Callable[[State], None]] = field(default_factory=list)

    @property
    def durable(self) -> State:
        return self.disk.shadow

    def fail(self, text: str) -> NoReturn:
        raise Violation(text)

    def answered(self, result: a.Result) -> None:
        """An answer leaves: what it promises is on disk at this moment."""
        match result:
            case a.Submitted(job, _):
                if job not in self.durable.jobs:
                    self.fail(f"I1: job {job} is acknowledged and not on disk")
            case a.Cancelled(job, already_ended):
                known = self.durable.jobs[job]
                if known.phase is not JobPhase.ENDED and (already_ended or known.cancel is None):
                    self.fail(f"I1: the cancel of job {job} is acknowledged and not on disk")
            case a.Changed(job, _):
                if job not in self.durable.jobs:
                    self.fail(f"I1: the change of job {job} is acknowledged and not on disk")
            case a.Signalled(job, _, _):
                if not any(attempt.signals for attempt in self.durable.jobs[job].attempts):
                    self.fail(f"I1: the signal to job {job} is acknowledged and not on disk")
            case a.NodeServiceChanged() | a.PeopleChanged() | a.Stacks() | a.Declined():
                pass

    def submit_acked(self, name: str, job: JobId) -> None:
        if self.submits.setdefault(name, job) != job:
            self.fail(f"I1: {name} is job {self.submits[name]} and job {job}")

    def cancel_acked(self, job: JobId, *, already_ended: bool) -> None:
        if not already_ended:
            self.cancels.add(job)

    def change_asked(self, job: JobId, wanted: dict[str, int | float | bool]) -> None:
        """From here on what was acknowledged before may be otherwise."""
        if "hold" in wanted:
            self.holds.discard(job)
        for field_name in wanted:
            self.settings.get(job, {}).pop(field_name, None)

    def change_acked(self, job: JobId, wanted: dict[str, int | float | bool]) -> None:
        if wanted.get("hold"):
            self.holds.add(job)
            if self.durable.jobs[job].phase not in (JobPhase.HELD, JobPhase.ENDED):
                self.fail(f"I1: the hold of job {job} is acknowledged and not on disk")
        kept = {name: value for name, value in wanted.items() if name != "hold"}
        self.settings.setdefault(job, {}).update(kept)

    def restored(self) -> None:
        self.submits.clear()
        self.cancels.clear()
        self.holds.clear()
        self.settings.clear()

    def restarted(self, state: State) -> None:
        """A new process has read the disk: all that was promised is there."""
        for promised in self.others:
            promised(state)
        for name, job in self.submits.items():
            if job not in state.jobs or state.jobs[job].as_submitted.name != name:
                self.fail(f"I1: {name} was acknowledged as job {job}, and that is lost")
        for job in self.cancels:
            known = state.jobs[job]
            if known.cancel is None and known.phase is not JobPhase.ENDED:
                self.fail(f"I1: the cancel of job {job} was acknowledged and is lost")
        for job in self.holds:
            if state.jobs[job].phase not in (JobPhase.HELD, JobPhase.ENDED):
                self.fail(f"I1: the hold of job {job} was acknowledged and is lost")
        for job, wanted in self.settings.items():
            for name, value in wanted.items():
                if getattr(state.jobs[job].spec, name) != value:
                    self.fail(f"I1: {name} {value} of job {job} was acknowledged and is lost")
