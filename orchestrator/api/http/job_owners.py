"""Owners of jobs, in the state or in the archive."""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from muster.protocol.ids import JobId
from orchestrator.shell.coordinator import Coordinator

_KEPT: Final = 16_384


class JobOwners:
    """Owner by job. The owner of a job never changes, so those of archived jobs are kept."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._kept: OrderedDict[JobId, str] = OrderedDict()

    async def of(self, jobs: Collection[JobId]) -> dict[JobId, str]:
        """Return the owners of those jobs that exist. Raises CoordinatorStoppedError and
        JournalError.
        """
        state = await self._coordinator.durable_state()
        found = {name: state.jobs[name].user for name in jobs if name in state.jobs}
        missing = {name for name in jobs if name not in found and not self.forgot(name)}
        found |= {name: self._kept[name] for name in missing if name in self._kept}
        archived = sorted(missing - found.keys())
        if archived:
            read = await self._coordinator.archive.owners(archived)
            self._kept.update(read)
            found |= read
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def forgot(self, job: JobId) -> bool:
        return self._coordinator.forgot(job)
