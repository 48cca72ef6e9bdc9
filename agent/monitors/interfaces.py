"""Monitor of this node's network interfaces, through kernel notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Never

import structlog

from agent.core.inputs import Input, NodeObserved
from agent.probe import netlink
from agent.probe.network import NetworkProbe
from muster.protocol.control_channel import NodeChanges

# An interface that comes up sends many notifications and gets its addresses one by one.
SETTLE_S: Final = 1.0

_log = structlog.get_logger("agent.monitors.interfaces")


async def watch(
    probe: NetworkProbe, post: Callable[[Input], None], settle_s: float = SETTLE_S
) -> Never:
    """Post the interfaces after every change, once it has settled, until cancelled."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    try:
        sock = netlink.subscribe()
    except OSError as error:
        # The kernel sends no notifications. Each task still brings a fresh reading.
        _log.warning("network_not_watched", why=str(error))
        await asyncio.Event().wait()
        raise AssertionError from error

    def drain() -> None:
        changed.set()
        try:
            while sock.recv(1 << 16):
                pass
        except OSError:
            # Either all is read or the socket's buffer overflowed: read the interfaces in both
            # cases.
            pass

    with sock:
        loop.add_reader(sock, drain)
        try:
            while True:
                await changed.wait()
                await asyncio.sleep(settle_s)
                changed.clear()
                try:
                    interfaces = await asyncio.to_thread(probe.interfaces)
                except OSError as error:
                    _log.warning("network_not_read", why=str(error))
                    continue
                post(NodeObserved(NodeChanges(interfaces=interfaces)))
        finally:
            loop.remove_reader(sock)
