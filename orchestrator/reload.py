"""Settings that are read again while the coordinator runs, at SIGHUP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Never

import structlog
from msgspec.structs import replace

from muster.daemon.errors import ConfigError
from orchestrator.config import CoordinatorConfig
from orchestrator.core.facts.inputs import SettingsRead
from orchestrator.shell.coordinator import Coordinator

# Settings of agents. All others need a restart, through which jobs run on.
_IN_FORCE: Final = frozenset({"nodes"})

_log = structlog.get_logger("muster.coordinator")


class Reload:
    """Reads the configuration when `asked` is set, and puts into force what can change without a
    restart. If the file is not valid, everything stays as it is.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        read: Callable[[], CoordinatorConfig],
        coordinator: Coordinator,
    ) -> None:
        self._config = config
        self._read = read
        self._coordinator = coordinator
        self.asked = asyncio.Event()

    async def run(self) -> Never:
        while True:
            await self.asked.wait()
            self.asked.clear()
            try:
                self._use(await asyncio.to_thread(self._read))
            except ConfigError as error:
                done = "the settings before stay in force"
                _log.error("settings_refused", why=str(error), done=done)

    def _use(self, config: CoordinatorConfig) -> None:
        limits = self._coordinator.limits
        self._coordinator.limits = replace(limits, node_settings=config.nodes.central)
        # Agents that are connected get them at once, the others when they connect.
        self._coordinator.put_now(SettingsRead(limits.node_settings))
        _log.info("settings_read", in_force=sorted(_IN_FORCE))
        names = config.__struct_fields__
        waiting = [
            name
            for name in names
            if name not in _IN_FORCE and getattr(config, name) != getattr(self._config, name)
        ]
        if waiting:
            done = "restart the coordinator to use them: jobs run on"
            _log.warning("settings_need_restart", changed=waiting, done=done)
