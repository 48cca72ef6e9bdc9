"""Monitor of this node's fabric: probes periodically and for each launch, because GID tables change
after a link flap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from agent.config import AgentConfig
from agent.core.inputs import NO_FABRIC, Input, NodeObserved
from agent.core.probe_summary import node_fabric, node_rdma
from agent.monitors.monitor import Monitor
from agent.probe.fabric.command import asked_by
from agent.probe.fabric.fs_root import FsRoot, Unread
from agent.probe.fabric.probe import lacks_driver, probe
from agent.probe.fabric.rdma_devices import CLASS
from muster.daemon.abandoned_thread import BlockingCall
from muster.fabric.model import Probe, Severity
from muster.fabric.port_classes import cabled
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import NodeChanges
from muster.protocol.observations.fabric import NodeFabric

LOOK_S: Final = 10.0
"""A launch does not wait longer for a driver that hangs."""

LOOK_EVERY_S: Final = 60.0

_log = structlog.get_logger("agent.monitors.fabric")


class FabricMonitor(Monitor):
    """Probes the fabric periodically, because the scheduler depends on it, and for each launch;
    logs and posts the result. `latest` is the last probe, None if
    this node has neither RDMA devices nor cards for them."""

    def __init__(
        self,
        config: AgentConfig,
        post: Callable[[Input], None] = lambda _: None,
        look_s: float = LOOK_S,
    ) -> None:
        """`post` receives the node's RDMA equipment after each probe."""
        super().__init__(post, LOOK_EVERY_S, at_once=False)
        self._config = config
        self._root = config.fabric.root
        self._look_s = look_s
        self._probing = BlockingCall(self._probed, "agent.monitors.fabric")
        self._idle_cards: bool | None = None
        self.latest: Probe | None = None

    def there(self) -> bool:
        """True if the node has RDMA devices, or cards without a driver. Such cards are looked up
        only once per agent process."""
        names = FsRoot(self._root).names(CLASS)
        if not isinstance(names, Unread) or not names.absent:
            # True also if the directory exists but cannot be read.
            return True
        if self._idle_cards is None:
            self._idle_cards = lacks_driver(self._root)
        return self._idle_cards

    def devices(self) -> bool:
        """True if the directory of RDMA devices exists and can be read."""
        return not isinstance(FsRoot(self._root).names(CLASS), Unread)

    def awaited(self) -> frozenset[str]:
        """The ports of the compute class that should be up by the last probe, without unused
        uncabled ones."""
        latest = self.latest
        ports = [hca for hca in latest.hcas if hca.expected] if latest is not None else []
        return frozenset(hca.key for hca in cabled(ports))

    async def look(self, task: TaskId | None = None) -> NodeFabric:
        """Probe the fabric, for `task` if given; concurrent callers share one probe."""
        try:
            found = await self._probing.result(self._look_s)
        except TimeoutError:
            _log.error("fabric_not_read", task=task, waited_s=self._look_s)
            return NodeFabric(unseen=f"its probe has not ended within {self._look_s:g} s")
        self.latest = found
        rdma = node_rdma(found)
        is_news = self._is_news("rdma", rdma)
        self._post(NodeObserved(NodeChanges(rdma=rdma)))
        if found is None:
            return NO_FABRIC
        if task is None and not is_news:
            return self._node_fabric(found)
        errors = [one.what for one in found.problems if one.severity is Severity.ERROR]
        log = _log.warning if errors else _log.info
        log(
            "fabric",
            task=task,
            compute=found.fabric.name,
            used=found.fabric.used,
            expected=found.fabric.expected,
            fingerprint=found.fingerprint,
            errors=errors,
        )
        return self._node_fabric(found)

    def _node_fabric(self, found: Probe) -> NodeFabric:
        own = self._config.fabric
        return node_fabric(found, own, own.variables)

    def _probed(self) -> Probe | None:
        """Probe the fabric; runs in a thread."""
        if not self.there():
            return None
        live = self._root.parent == self._root
        return probe(self._root, asked_by(self._config, live=live, agent=True))
