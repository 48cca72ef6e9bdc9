"""Removal of code that no live job names and that nobody has used for long."""

import asyncio
from typing import Final, Never

import structlog

from muster.daemon.errors import DaemonError
from orchestrator.shell.bundles.store import BundleStore
from orchestrator.shell.coordinator import Coordinator

SWEEP_EVERY_S: Final = 3600.0

_log = structlog.get_logger("muster.bundles")


class BundleCollector:
    """Sweeps the store from time to time."""

    def __init__(self, coordinator: Coordinator, store: BundleStore) -> None:
        self._coordinator = coordinator
        self._store = store

    async def run(self) -> Never:
        """Sweep periodically, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                await self.sweep()
            except (DaemonError, OSError) as error:
                _log.error("bundles_not_collected", why=str(error), again_in_s=SWEEP_EVERY_S)

    async def sweep(self) -> int:
        """Remove what is old, and return how many chunks. While the clock is in doubt, nothing is
        removed."""
        if not self._coordinator.may_remove_by_age():
            return 0
        state = await self._coordinator.durable_state()
        live = [job.spec.bundle for job in state.jobs.values() if job.spec.bundle is not None]
        now = self._coordinator.now().wall
        removed = await asyncio.to_thread(self._store.collect, live, now)
        if removed:
            _log.info("bundles_collected", chunks=removed)
        return removed
