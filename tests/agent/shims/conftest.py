"""Real shims of a real fork server, and the proof after each test that no process of it is left."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from agent.core.shim_protocol import (
    ShimCommand,
    ShimKill,
    ShimPhase,
    ShimPrepare,
    ShimRelease,
    ShimStart,
    ShimStatus,
)
from agent.shim.system.cgroup import Cgroup
from agent.shims.backend import ShimOptions
from agent.shims.connection import ShimConnection, ShimUnreachable, connect, speak
from agent.shims.forked import ForkServer
from agent.tasks.adoption import FoundTask, Ownership, examine

# A bound for a broken build, not for a slow machine.
PATIENCE_S = 180.0


def cgroup_writable() -> bool:
    probe = Cgroup.make(None, f"probe-{os.getpid()}")
    return probe is not None and probe.remove()


class Dialogue:
    """A connection whose statuses are read one after the other."""

    connection: ShimConnection

    def __init__(self) -> None:
        self._received: asyncio.Queue[ShimStatus | None] = asyncio.Queue()

    @classmethod
    async def begin(cls, folder: Path, given: socket.socket | None = None) -> Dialogue:
        """`given`: over a connection that the shim has already. Raises ShimUnreachable."""
        dialogue = cls()
        heard = dialogue._received.put_nowait
        connecting = connect(folder, heard) if given is None else speak(folder, given, heard)
        dialogue.connection = await connecting
        dialogue.connection.ended.add_done_callback(lambda _: dialogue._received.put_nowait(None))
        return dialogue

    async def statuses(self) -> AsyncIterator[ShimStatus]:
        """Every document from now on; ends when the shim closes the connection."""
        while (status := await self._received.get()) is not None:
            yield status
        self.connection.ended.result()


class Spoken:
    """A task with a connection to its shim; keeps every status received."""

    def __init__(self, dialogue: Dialogue, pid: int) -> None:
        self.dialogue = dialogue
        self.connection = dialogue.connection
        self.pid = pid
        self.dir = self.connection.task_dir
        self.received: list[ShimStatus] = []
        self._statuses = dialogue.statuses()

    @property
    def last(self) -> ShimStatus:
        return self.received[-1]

    async def send(self, command: ShimCommand) -> None:
        if not self.connection.send(command):
            raise ShimUnreachable(f"the shim of {self.dir.name} is gone")

    async def until(self, holds: Callable[[ShimStatus], object], why: str = "") -> ShimStatus:
        """Return the first status since the last call for which `holds` is true."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for status in self._statuses:
                    self.received.append(status)
                    if holds(status):
                        return status
        except TimeoutError:
            pytest.fail(f"never {why or 'so'}; last said: {self.received[-1:]}")
        raise EOFError(f"the shim closed the connection before {why or 'that'}")

    async def phase(self, *phases: ShimPhase) -> ShimStatus:
        return await self.until(lambda status: status.phase in phases, f"in {phases}")

    async def prepared(self, **given: object) -> ShimStatus:
        """Prepare the task and return the status PREPARED or REFUSED."""
        await self.send(ShimPrepare(**{"allow_root": True, "cwd": "/", **given}))  # type: ignore[arg-type]
        return await self.phase(ShimPhase.PREPARED, ShimPhase.REFUSED)

    async def run(self, *argv: str, env: dict[str, str] | None = None, **given: object) -> None:
        """Prepare and start a program."""
        status = await self.prepared(**given)
        assert status.phase is ShimPhase.PREPARED, status.refusal
        await self.send(ShimStart(argv=list(argv), env=env or {}))

    async def ended(self) -> ShimStatus:
        return await self.phase(ShimPhase.CLEANED, ShimPhase.REFUSED)

    async def gone(self) -> None:
        """Read until the shim closes the connection."""
        with pytest.raises(EOFError):
            await self.until(lambda _: False, "closed")

    def read(self, path: str) -> bytes:
        return (self.dir / path).read_bytes()


class Node:
    """A state folder and a fork_server."""

    def __init__(self, state_dir: Path, fork_server: ForkServer) -> None:
        self.state_dir = state_dir
        self.fork_server = fork_server
        self.dialogues: list[Dialogue] = []
        (state_dir / "tasks").mkdir()

    async def task(self, name: str = "7.1.0") -> Spoken:
        folder = self.state_dir / "tasks" / name
        return await self.speak(folder, await self.fork_server.spawn(folder))

    async def given(self, name: str = "7.1.0") -> Spoken:
        """A task whose shim gets its first connection with it, as an agent does it."""
        folder = self.state_dir / "tasks" / name
        ours, theirs = socket.socketpair()
        with theirs:
            pid = await self.fork_server.spawn(folder, theirs)
        return await self.speak(folder, pid, ours)

    async def speak(self, folder: Path, pid: int, given: socket.socket | None = None) -> Spoken:
        """Connect to a shim that exists there."""
        self.dialogues.append(await Dialogue.begin(folder, given))
        return Spoken(self.dialogues[-1], pid)

    async def again(self, task: Spoken) -> Spoken:
        """A second connection to the same shim."""
        return await self.speak(task.dir, task.pid)


Story = Callable[[Node], Awaitable[None]]


class Stage:
    """Plays a test's story on a node of the chosen backend."""

    def __init__(self, folder: Path, options: ShimOptions) -> None:
        self.folder = folder
        self.options = options

    def play(self, story: Story, **options: object) -> None:
        chosen = msgspec.structs.replace(self.options, **options)

        async def whole() -> None:
            async with self._node(chosen) as node:
                await story(node)

        asyncio.run(whole())

    @asynccontextmanager
    async def _node(self, options: ShimOptions) -> AsyncIterator[Node]:
        fork_server = ForkServer(options)
        node = Node(self.folder, fork_server)
        try:
            yield node
        finally:
            for dialogue in node.dialogues:
                dialogue.connection.close()
            await fork_server.close()


def found_in(state_dir: Path) -> list[FoundTask]:
    """Every task in `state_dir`/tasks. What a dead shim left running is killed and recorded."""
    folders = sorted(it for it in (state_dir / "tasks").glob("*") if it.is_dir())
    return [examine(folder) for folder in folders]


def _end_all(state_dir: Path) -> list[str]:
    """End what a failed test left; returns the tasks that were still alive."""
    left = []
    for found in found_in(state_dir):
        if found.ownership is Ownership.ALIVE:
            left.append(found.task)
            asyncio.run(_kill(found.task_dir))
    return left


async def _kill(task_dir: Path) -> None:
    dialogue = await Dialogue.begin(task_dir)
    dialogue.connection.send(ShimKill())
    async for status in dialogue.statuses():
        if status.phase.terminal:
            dialogue.connection.send(ShimRelease())


@pytest.fixture(params=["cgroup", "subreaper"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """Both ways to own a process tree."""
    if request.param == "cgroup" and not cgroup_writable():
        pytest.skip("no cgroup v2 can be written here")
    yield Stage(tmp_path, ShimOptions(cgroup=request.param == "cgroup"))
    _end_all(tmp_path)


@pytest.fixture
def any_stage(tmp_path: Path) -> Iterator[Stage]:
    """For what has nothing to do with the process tree."""
    yield Stage(tmp_path, ShimOptions())
    _end_all(tmp_path)
