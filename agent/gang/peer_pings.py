"""Ping the machines of a gang's neighbours every few seconds.

A ping is a TCP connection to a port on which nobody listens. The kernel of a running machine
refuses it at once, whatever its programs do. A machine without power or network does not answer.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Final, Never

from agent.core.inputs import Input, TaskChanges, TaskObserved
from agent.core.peers import PeerAnswers, peers_of
from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask
from muster.protocol.observations.peer_ping import ANSWER_S, PERIOD_S

_PORT: Final = 9
"""The port of the discard service, which nobody runs; a machine that does has answered as well."""
_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a local shortage, which say nothing about the peer."""


class PeerPings:
    """Carries out WatchPeers: posts every change."""

    def __init__(
        self,
        node: str,
        post: Callable[[Input], None],
        owner: TaskOwner,
        ask: Callable[[str], Awaitable[bool | None]] | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        """`ask` is `answers`, except in tests."""
        self._node = node
        self._post = post
        self._owner = owner
        self._ask = ask or answers
        self._period_s = period_s
        self._watched: dict[TaskId, asyncio.Task[Never]] = {}

    def watch(self, task: TaskId, plan: ArrangeTask) -> None:
        """Ping the task's neighbours until `end`."""
        self.end(task)
        addresses = peers_of(plan, self._node)
        if addresses:
            watching = self._watch(task, addresses)
            self._watched[task] = self._owner.spawn(watching, name=f"neighbours.{task}")

    def end(self, task: TaskId) -> None:
        """Stop the pings of a task; harmless if there are none."""
        watching = self._watched.pop(task, None)
        if watching is not None:
            watching.cancel()

    async def _watch(self, task: TaskId, addresses: tuple[str, ...]) -> Never:
        seen = PeerAnswers()
        reported: tuple[str, ...] = ()
        # Let orders given in the same turn go first: the start of the gang's program.
        await asyncio.sleep(0)
        while True:
            asked = await asyncio.gather(*(self._ask(address) for address in addresses))
            for address, answered in zip(addresses, asked, strict=True):
                if answered is not None:
                    seen.heard(address, answered=answered)
            if seen.silent != reported:
                reported = seen.silent
                self._post(TaskObserved(task, TaskChanges(silent=reported)))
            await asyncio.sleep(self._period_s)


async def answers(address: str) -> bool | None:
    """True if the machine at this address answers. Returns None if this machine cannot ask."""
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(address, _PORT)
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        return False
    except OSError as error:
        return None if error.errno in _OWN else False
    writer.transport.abort()
    return True
