"""Monitor of this node's RDMA ports between launches: ports that are down, and link flaps.

Reads two small files per port every few seconds. A port should stay as it was at the start, and the
ports that the last probe expects should be up. Other ports that were never up are ignored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from agent.core.inputs import Input, NodeObserved
from agent.monitors.monitor import Monitor
from agent.monitors.traffic.counters import names_of_ports
from agent.probe.fabric import sysfs_formats
from agent.probe.fabric.fs_root import FsRoot, Read, Unread
from agent.probe.fabric.rdma_devices import CLASS
from muster.daemon.clock import Clock
from muster.fabric.counters import LINK_DOWNED
from muster.fabric.model import ACTIVE
from muster.protocol.link.control_channel import NodeChanges
from muster.protocol.observations.traffic import PortHealth

PERIOD_S: Final = 5.0
SHOWN_S: Final = 3600.0
"""Seconds for which a flap is shown."""
_FLAPS_MAX: Final = 1000

_log = structlog.get_logger("agent.monitors.traffic.rdma_ports")


@dataclass(slots=True)
class _Port:
    worked: bool
    downed: int | None
    down: bool = False
    flaps: deque[float] = field(default_factory=lambda: deque(maxlen=_FLAPS_MAX))


class RdmaPorts:
    """History of each port since the first poll."""

    def __init__(
        self,
        root: Path = Path("/"),
        read: Read | None = None,
        awaited: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`awaited` returns the ports that should be up, as far as they are known."""
        self._root = root
        self._awaited = awaited
        self._read = read
        self._ports: dict[str, _Port] = {}

    def look(self, now: float) -> tuple[PortHealth, ...]:
        """Return the abnormal ports at `now` (monotonic seconds). May block in a driver."""
        tree = FsRoot(self._root, self._read)
        seen = {f"{name}:{port}": (name, port) for name, port in names_of_ports(tree)}
        found = []
        for key, (name, port) in seen.items():
            folder = f"{CLASS}/{name}/ports/{port}"
            health = self._judge(key, _state(tree, folder), _downed(tree, folder), now)
            if health is not None:
                found.append(health)
        gone = [key for key, port in self._ports.items() if port.worked and key not in seen]
        found += [PortHealth(key, down=True, state="gone, with its device") for key in gone]
        return tuple(found)

    def _judge(
        self, key: str, state: tuple[str, str] | None, downed: int | None, now: float
    ) -> PortHealth | None:
        active = state is not None and state[0] == ACTIVE
        port = self._ports.get(key)
        if port is None:
            port = self._ports[key] = _Port(active, downed)
        if not port.worked and key in self._awaited():
            # The port has never been up here, so being down is no flap.
            port.worked, port.down = True, state is not None and not active
        port.worked = port.worked or active
        went_down = state is not None and not active and port.worked and not port.down
        counted = 0
        if downed is not None:
            if port.downed is not None:
                # A counter that has decreased was reset with its driver.
                counted = downed - port.downed if downed >= port.downed else downed
            port.downed = downed
        port.flaps.extend([now] * min(counted or int(went_down and downed is None), _FLAPS_MAX))
        while port.flaps and now - port.flaps[0] > SHOWN_S:
            port.flaps.popleft()
        if state is not None:
            port.down = port.worked and not active
        if not port.down and not port.flaps:
            return None
        words = ", ".join(filter(None, state)) if state is not None and port.down else ""
        return PortHealth(key, port.down, words, len(port.flaps))


class RdmaPortMonitor(Monitor):
    """Posts the abnormal ports after each change."""

    def __init__(
        self,
        ports: RdmaPorts,
        clock: Clock,
        post: Callable[[Input], None],
        period_s: float = PERIOD_S,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called after each change."""
        super().__init__(post, period_s)
        self._ports = ports
        self._clock = clock
        self._changed = changed

    async def look(self) -> None:
        found = await asyncio.to_thread(self._ports.look, self._clock.now().mono)
        if self._is_news("ports", found):
            _log.warning("ports_changed", ports=[port.text for port in found])
            self._post(NodeObserved(NodeChanges(ports=found)))
            self._changed()


def _state(tree: FsRoot, folder: str) -> tuple[str, str] | None:
    text, phys = tree.text(f"{folder}/state"), tree.text(f"{folder}/phys_state")
    state = None if isinstance(text, Unread) else sysfs_formats.port_state(text)
    if state is None:
        return None
    return state, "" if isinstance(phys, Unread) else sysfs_formats.phys_state(phys) or ""


def _downed(tree: FsRoot, folder: str) -> int | None:
    text = tree.text(f"{folder}/counters/{LINK_DOWNED}")
    return None if isinstance(text, Unread) else sysfs_formats.counter(text)
