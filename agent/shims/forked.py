"""Agent's side of the fork server: one small process from which every shim is forked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent.shims.backend import ShimOptions, SpawnError, request_of
from agent.shims.limits import NO_LIMITS, TaskLimits

ROOT = Path(__file__).resolve().parents[2]
ANSWER_BYTES_MAX = 65536
# A fork takes a millisecond; a swapping machine gets a lot more time.
ANSWER_S = 10.0
# An interpreter starts in 50 ms, but a booting node is busy.
START_S = 60.0
END_S = 5.0
# Request number of the fork server's first message.
READY = 0


class ForkServer:
    """Forks shims. A fork server that has died is replaced for the next shim."""

    gives = True

    def __init__(self, options: ShimOptions | None = None) -> None:
        self._options = options or ShimOptions()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._asked = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def use(self, options: ShimOptions) -> None:
        """Start later shims with these options."""
        self._options = options

    async def start(self) -> None:
        """Ensure that a fork server answers. Raises SpawnError."""
        async with self._turn:
            await self._ensure()

    async def spawn(
        self, task_dir: Path, given: socket.socket | None = None, limits: TaskLimits = NO_LIMITS
    ) -> int:
        """Implement `Shims.spawn` of agent/shims/backend.py."""
        request = request_of(task_dir, self._options, limits)
        async with self._turn:
            for last in (False, True):
                try:
                    await self._ensure()
                    answer = await self._ask(request, given)
                except (OSError, EOFError, TimeoutError) as error:
                    # It has died, now or earlier: try once more with a new one.
                    await self._end()
                    if last:
                        text = f"the fork server does not answer: {_words(error)}"
                        raise SpawnError(text) from error
                    continue
                if "error" in answer:
                    raise SpawnError(f"no shim for task {task_dir.name}: {answer['error']}")
                return int(answer["pid"])
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Stop the fork server; its shims live on."""
        async with self._turn:
            await self._end()

    async def _ensure(self) -> None:
        if self._channel is not None:
            return
        try:
            channel, self._process = await asyncio.to_thread(_launch)
            self._channel = channel
            # Register for the first message before it can arrive.
            first = self._awaited(READY)
            asyncio.get_running_loop().add_reader(channel, self._receive)
            ready = await self._answer(READY, first, START_S)
        except (OSError, EOFError, TimeoutError) as error:
            await self._end()
            raise SpawnError(f"the fork server did not start: {_words(error)}") from error
        if not ready.get("ready"):
            raise SpawnError(f"the fork server answered {ready!r} instead of ready")

    async def _ask(self, request: dict[str, object], given: socket.socket | None) -> dict[str, Any]:
        assert self._channel is not None
        self._asked += 1
        # A packet is sent whole or not at all; the fork server has at most one unread packet.
        packet = json.dumps({**request, "id": self._asked}).encode()
        if given is None:
            self._channel.send(packet)
        else:
            socket.send_fds(self._channel, [packet], [given.fileno()])
        return await self._answer(self._asked, self._awaited(self._asked), ANSWER_S)

    def _awaited(self, number: int) -> asyncio.Future[dict[str, Any]]:
        """Register for the answer with that number."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        return answer

    async def _answer(
        self, number: int, answer: asyncio.Future[dict[str, Any]], patience_s: float
    ) -> dict[str, Any]:
        """Wait for the answer. Raises TimeoutError and EOFError."""
        try:
            async with asyncio.timeout(patience_s):
                return await answer
        finally:
            del self._answers[number]

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(ANSWER_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._channel)
        answer: dict[str, Any] = json.loads(data) if data else {}
        for number, waiting in self._answers.items():
            if waiting.done():
                continue
            if not data:
                waiting.set_exception(EOFError("it has exited"))
            elif answer.get("id", READY) == number:
                # A cancelled request has no waiter any more.
                waiting.set_result(answer)

    async def _end(self) -> None:
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        if channel is not None:
            asyncio.get_running_loop().remove_reader(channel)
            channel.close()
        if process is None:
            return
        # It exits when its channel closes; a hung one is killed.
        try:
            await asyncio.to_thread(process.wait, END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.to_thread(process.wait)


def _words(error: Exception) -> str:
    """Return the message of an error. A TimeoutError has none."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or "it takes too long; is this node overloaded?"


def _launch() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a new fork server. Returns our end of its channel and its process. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r});"
        f" from agent.shim.fork_server import main; main({theirs.fileno()})"
    )
    with theirs:
        # -I and -S: ignore the environment, and skip site-packages, which take longer than ten
        # forks.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return ours, process
