"""One agent serves a machine: the second is refused, and told who the first is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from agent.config import AgentConfig
from muster.daemon.errors import DaemonError

# In the abstract namespace: it goes with the process, and no file is left behind.
_CLAIM: Final = "\0muster-agent"
_PEER: Final = struct.Struct("3i")
_WORDS_MAX: Final = 200


class SecondAgentError(DaemonError):
    """Another agent serves this machine, and neither was told to share it."""


@contextlib.asynccontextmanager
async def alone(config: AgentConfig) -> AsyncIterator[None]:
    """Hold this machine (this network namespace) alone, unless the configuration shares it.

    Raises SecondAgentError.
    """
    if config.shared_host:
        yield
        return
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        claim.bind(_CLAIM)
    except OSError as error:
        claim.close()
        raise SecondAgentError(
            f"another agent already serves this machine: {_holder()}; this one is process "
            f"{os.getpid()}, node {config.node} in {config.state_dir}. Stop one of them, or set "
            "shared_host: true in the configuration of both to try things out"
        ) from error
    server = await asyncio.get_running_loop().create_unix_server(_HangUp, sock=claim)
    try:
        yield
    finally:
        server.close()


class _HangUp(asyncio.Protocol):
    """Whoever asks has been told our pid by the kernel. Left to wait, a few would keep out all who
    ask later."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _holder() -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_CLAIM)
            peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:
            # Of another version, or asked by many at this moment.
            return "one that does not say who it is (`ss -xp src @muster-agent` does)"
    pid, _, _ = _PEER.unpack(peer)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (OSError, UnicodeDecodeError):
        return f"process {pid}"
    return f"process {pid} ({command[:_WORDS_MAX]})"
