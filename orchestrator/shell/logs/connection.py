"""State of one bulk connection of an agent."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.log_channel import LogCommand, StreamAt, StreamId
from orchestrator.shell.logs.sync_rounds import Synced

UNSAID_MAX: Final = 1024  # pending answers before the agent is read no further


@dataclass(slots=True)
class LogConnection:
    """Pending messages to one agent. A newer acknowledgement of a stream replaces an older one.

    `asked`, `held` and `holds` belong to the store's writer, everything else to the loop.
    """

    socket: web.WebSocketResponse
    node: NodeName
    acks: dict[StreamId, int] = field(default_factory=dict)
    others: list[LogCommand] = field(default_factory=list)
    asked: dict[StreamId, int] = field(default_factory=dict)
    # Streams that could not be stored; not retried before `again` fires.
    held: dict[StreamId, None] = field(default_factory=dict)  # in order, the longest held first
    holds: Counter[TaskId] = field(default_factory=Counter)  # number of held streams by task
    missed: dict[StreamId, None] = field(default_factory=dict)  # frames were dropped
    held_ends: dict[TaskId, int] = field(default_factory=dict)
    ending: set[TaskId] = field(default_factory=set)
    queued: int = 0  # frames that wait for the writer
    queued_bytes: int = 0
    worked: asyncio.Event = field(default_factory=asyncio.Event)
    error: BaseException | None = None  # of the writer
    again: asyncio.TimerHandle | None = None
    strangers: set[TaskId] = field(default_factory=set)
    late: set[TaskId] = field(default_factory=set)  # tasks of archived jobs
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    broken: bool = False
    # Calls back on the loop.
    post: Callable[..., None] = field(default=lambda callback, *args: callback(*args))
    # Passed to the store with bytes of this agent.
    synced: Synced = field(default=lambda _stream, _offset: None)

    def acknowledge(self, stream: StreamId, offset: int) -> None:
        self.acks[stream] = offset
        self.filled.set()

    def say(self, command: LogCommand) -> None:
        self.others.append(command)
        self.filled.set()

    def ask(self, stream: StreamId, offset: int) -> None:
        """Ask for bytes from `offset`, once: bytes already in flight will not fit either."""
        if self.asked.get(stream) != offset:
            self.asked[stream] = offset
            self.post(self.say, StreamAt(stream, offset))

    async def room(self) -> None:
        """Wait until the agent has read its answers, so that they do not pile up here."""
        while not self.broken and len(self.others) + len(self.acks) >= UNSAID_MAX:
            self.emptied.clear()
            await self.emptied.wait()
