"""A fresh look at this node's fabric for each launch, beside it: GID tables move after a flap."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from agent.config import AgentConfig
from agent.probe.fabric.command import asked_by
from agent.probe.fabric.ib import CLASS
from agent.probe.fabric.probe import probe
from muster.daemon.tasks import TaskOwner
from muster.fabric.types import Probe, Severity
from muster.protocol.ids import TaskId

_ROOT: Final = Path("/")

_log = structlog.get_logger("agent.fabric")


class Fabric:
    """Probes in a thread and tells the log; a launch does not wait for it. `latest` is the last
    probe, None where this node has no RDMA devices."""

    def __init__(self, config: AgentConfig, owner: TaskOwner, root: Path = _ROOT) -> None:
        self._config = config
        self._owner = owner
        self._root = root
        self.latest: Probe | None = None

    def look(self, task: TaskId) -> asyncio.Task[None]:
        """Probe for this task; nobody needs to wait for it."""
        return self._owner.spawn(self._look(task), name=f"fabric.{task}")

    async def _look(self, task: TaskId) -> None:
        found = await asyncio.to_thread(self._probed)
        self.latest = found
        if found is None:
            return
        errors = [one.what for one in found.problems if one.severity is Severity.ERROR]
        tell = _log.warning if errors else _log.info
        tell(
            "fabric",
            task=task,
            compute=found.fabric.name,
            used=found.fabric.used,
            expected=found.fabric.expected,
            fingerprint=found.fingerprint,
            errors=errors,
        )

    def _probed(self) -> Probe | None:
        """In a thread. A node without devices costs one look at a folder."""
        if not (self._root / CLASS).is_dir():
            return None
        return probe(self._root, asked_by(self._config, agent=True))
