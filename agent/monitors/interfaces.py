"""Monitor of this node's network interfaces, through kernel notifications."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from typing import Final, Never

import structlog

from agent.core.inputs import Input, NodeObserved
from agent.monitors.monitor import Monitor
from agent.probe import netlink
from agent.probe.network import NetworkProbe
from muster.protocol.link.control_channel import NodeChanges

# An interface that comes up sends many notifications and gets its addresses one by one.
SETTLE_S: Final = 1.0

_log = structlog.get_logger("agent.monitors.interfaces")


class InterfaceMonitor(Monitor):
    """Posts the interfaces after every change, once it has settled."""

    def __init__(
        self, probe: NetworkProbe, post: Callable[[Input], None], settle_s: float = SETTLE_S
    ) -> None:
        super().__init__(post, math.inf, at_once=False)
        self._probe = probe
        self._settle_s = settle_s

    async def run(self) -> Never:
        try:
            sock = netlink.subscribe()
        except OSError as error:
            # The kernel sends no notifications. Each task still brings a fresh reading.
            _log.warning("network_not_watched", why=str(error))
            await super().run()
        with sock:
            loop = asyncio.get_running_loop()
            loop.add_reader(sock, self._drain, sock)
            try:
                await super().run()
            finally:
                loop.remove_reader(sock)

    def _drain(self, sock: socket.socket) -> None:
        self.stir()
        try:
            while sock.recv(1 << 16):
                pass
        except OSError:
            # Either all is read or the socket's buffer overflowed: read the interfaces in both
            # cases.
            pass

    async def look(self) -> None:
        await asyncio.sleep(self._settle_s)
        self._stirred.clear()
        try:
            interfaces = await asyncio.to_thread(self._probe.interfaces)
        except OSError as error:
            _log.warning("network_not_read", why=str(error))
            return
        self._post(NodeObserved(NodeChanges(interfaces=interfaces)))
