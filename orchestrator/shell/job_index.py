"""Index of the jobs in the state, so that a list never scans all of them."""

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from typing import Final

from muster.protocol.ids import JobId
from muster.protocol.states import ENDED_STATES, JobState
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import Job, State
from orchestrator.core.model.status import job_state

_Key = tuple[str, str]
_ALL: Final = ("all", "")
_OPEN: Final = ("open", "")


class JobIndex:
    """Job ids in ascending order, by user, name and state.

    A lookup may return jobs that no longer match (a renamed job is found by both names), but never
    misses one.
    """

    def __init__(self, state: State) -> None:
        self._ids: dict[_Key, list[JobId]] = {_ALL: [], _OPEN: []}
        self._keys: dict[JobId, list[_Key]] = {}  # the keys of each job
        for number in sorted(state.jobs):
            job = state.jobs[number]
            self._add(job)
            if job.phase is JobPhase.ENDED:
                self._end(job)

    def observe(self, state: State, facts: Sequence[f.Fact]) -> None:
        """Index facts that are already applied to `state`."""
        for fact in facts:
            match fact:
                case f.JobSubmitted(number):
                    self._add(state.jobs[number])
                case f.JobChanged(number):
                    self._put(("name", state.jobs[number].spec.name), number)
                case f.JobEnded(number):
                    self._end(state.jobs[number])
                case f.JobForgotten(number):
                    for key in self._keys.pop(number):
                        self._take_out(key, number)
                case _:
                    pass

    @property
    def open(self) -> Sequence[JobId]:
        """Jobs that have not ended."""
        return self._ids[_OPEN]

    def ended(self, state: JobState) -> int:
        """Return how many jobs ended in `state`."""
        return len(self._ids.get(("ended", state.value), ()))

    def candidates(
        self,
        *,
        states: Collection[JobState] | None = None,
        user: str | None = None,
        name: str | None = None,
    ) -> Sequence[JobId]:
        """Return the smallest known list that contains every job matching all filters."""
        found: list[Sequence[JobId]] = [self._ids[_ALL]]
        for kind, value in (("user", user), ("name", name)):
            if value is not None:
                found.append(self._ids.get((kind, value), ()))
        if states is not None:
            over = [state for state in states if state in ENDED_STATES]
            if not over:
                found.append(self._ids[_OPEN])
            elif len(over) == len(set(states)) == 1:
                found.append(self._ids.get(("ended", over[0].value), ()))
        return min(found, key=len)

    def _add(self, job: Job) -> None:
        for key in (_ALL, _OPEN, ("user", job.user), ("name", job.spec.name)):
            self._put(key, job.id)

    def _end(self, job: Job) -> None:
        self._take_out(_OPEN, job.id)
        self._put(("ended", job_state(job).value), job.id)

    def _put(self, key: _Key, number: JobId) -> None:
        ids = self._ids.setdefault(key, [])
        place = bisect_left(ids, number)
        if place == len(ids) or ids[place] != number:
            insort(ids, number)
            self._keys.setdefault(number, []).append(key)

    def _take_out(self, key: _Key, number: JobId) -> None:
        ids = self._ids.get(key, [])
        place = bisect_left(ids, number)
        if place < len(ids) and ids[place] == number:
            del ids[place]
            if not ids and key not in (_ALL, _OPEN):
                del self._ids[key]
