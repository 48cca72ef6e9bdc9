"""Claims of tables: which ones in this network namespace are of agents that live.

An agent listens on an abstract Unix socket: such names belong to one network namespace, as tables
do, and end with their process. The end of a name is random, so that nobody takes it before, and a
socket of another user than this one is no claim.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SOCKETS: Final = Path("/proc/thread-self/net/unix")
_CREDENTIALS: Final = struct.Struct("3i")


def claim(table: str) -> socket.socket:
    """A socket that claims this table until it is closed. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(f"\0{table}.{secrets.token_hex(8)}")
        # Nobody is accepted: the kernel answers who it is.
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def claimed() -> set[str]:
    """Return the claimed tables. Blocks. Raises OSError."""
    return {name.rpartition(".")[0] for name in _names() if _is_ours(name)}


def _names() -> Iterator[str]:
    for line in _SOCKETS.read_text(errors="replace").splitlines():
        name = line.partition("@muster_")[2]
        if name:
            yield f"muster_{name}"


def _is_ours(name: str) -> bool:
    """True if a process of this user listens there, or has more connections than it can hold."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asks:
        asks.setblocking(False)
        try:
            asks.connect(f"\0{name}")
            found = asks.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except BlockingIOError:
            return True
        except OSError:
            return False
    uid: int = _CREDENTIALS.unpack(found)[1]
    return uid == os.geteuid()
