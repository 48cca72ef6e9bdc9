"""A fresh look at this node's fabric for each launch, beside it: GID tables move after a flap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Never

import structlog

from agent.config import AgentConfig
from agent.core.inputs import NO_FABRIC, Input, RdmaObserved
from agent.core.probe_summary import node_fabric, node_rdma
from agent.probe.fabric.command import asked_by
from agent.probe.fabric.fs_root import Tree, Unread
from agent.probe.fabric.probe import lacks_driver, probe
from agent.probe.fabric.rdma_devices import CLASS
from muster.fabric.model import Probe, Severity
from muster.fabric.port_classes import cabled
from muster.protocol.fabric import NodeFabric, NodeRdma
from muster.protocol.ids import TaskId

LOOK_S: Final = 10.0
"""A driver that hangs holds up no launch for longer."""

LOOK_EVERY_S: Final = 60.0

_log = structlog.get_logger("agent.monitors.fabric")


class FabricMonitor:
    """Probes in a thread, tells the log and the owner of the state. `latest` is the last probe,
    None where this node has neither RDMA devices nor cards for them."""

    def __init__(
        self,
        config: AgentConfig,
        post: Callable[[Input], None] = lambda _: None,
        look_s: float = LOOK_S,
    ) -> None:
        """`post`: whom to tell what the node has for RDMA, after each look."""
        self._config = config
        self._post = post
        self._stirred = asyncio.Event()
        self._seen: NodeRdma | None = None
        self._root = config.fabric.root
        self._look_s = look_s
        self._looking: asyncio.Task[Probe | None] | None = None
        self._idle_cards: bool | None = None
        self.latest: Probe | None = None

    def there(self) -> bool:
        """Whether there are RDMA devices, one look at a folder, or cards that lack a driver: of
        those the PCI functions tell once in this agent's life."""
        names = Tree(self._root).names(CLASS)
        if not isinstance(names, Unread) or not names.absent:
            # Also a folder that cannot be looked into.
            return True
        if self._idle_cards is None:
            self._idle_cards = lacks_driver(self._root)
        return self._idle_cards

    def devices(self) -> bool:
        """Whether there is a folder of RDMA devices, which can be looked into."""
        return not isinstance(Tree(self._root).names(CLASS), Unread)

    def awaited(self) -> frozenset[str]:
        """The ports of the compute class by the last probe, which should be up: all but the ends
        that no card has in use."""
        latest = self.latest
        ports = [hca for hca in latest.hcas if hca.expected] if latest is not None else []
        return frozenset(hca.key for hca in cabled(ports))

    def stir(self) -> None:
        """Something has changed: look soon."""
        self._stirred.set()

    async def watch(self) -> Never:
        """Look again now and then while no task asks, until cancelled: nodes are chosen by it."""
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._stirred.wait()
            except TimeoutError:
                pass
            self._stirred.clear()
            await self.look()

    async def look(self, task: TaskId | None = None) -> NodeFabric:
        """Probe, for this task; those that come together share one look."""
        if self._looking is None or self._looking.done():
            probing = asyncio.to_thread(self._probed)
            self._looking = asyncio.get_running_loop().create_task(
                probing, name="agent.monitors.fabric"
            )
        try:
            async with asyncio.timeout(self._look_s):
                found = await asyncio.shield(self._looking)
        except TimeoutError:
            _log.error("fabric_not_read", task=task, waited_s=self._look_s)
            return NodeFabric(unseen=f"its probe has not ended in {self._look_s:g} s")
        self.latest = found
        known, self._seen = self._seen, node_rdma(found)
        self._post(RdmaObserved(self._seen))
        if found is None:
            return NO_FABRIC
        if task is None and self._seen == known:
            return self._told(found)
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
        return self._told(found)

    def _told(self, found: Probe) -> NodeFabric:
        own = self._config.fabric
        return node_fabric(found, own, own.variables)

    def _probed(self) -> Probe | None:
        """In a thread."""
        if not self.there():
            return None
        live = self._root.parent == self._root
        return probe(self._root, asked_by(self._config, live=live, agent=True))
