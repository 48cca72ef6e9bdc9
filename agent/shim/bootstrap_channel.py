"""The shim's side of the bootstrap: what it is given, what it says, and the gate at which it waits.

The bootstrap runs as the job's user and is believed in nothing that would let a job harm others:
numbers are checked, pids are compared with the tree before any signal.

Messages (one JSON document a packet), from the bootstrap: hello {versions}, failed {code, text},
running, open {rank, local_rank} (answered by "files" with two descriptors), rank {rank, pid}, exit
{rank, code, signal, error}, closing {}. From the shim: start (argv and environment in a memory
file, its descriptor attached), files.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Callable, Sequence

from agent.shim.commands import RANKS_MAX
from agent.shim.event_loop import Loop, close_quietly

# Descriptors of the bootstrap. High, so that a script's own `exec 3>` meets none of them.
CHANNEL_FD, SOURCE_FD, FLAG_FD, LOG_FOLDER_FD = 60, 61, 62, 63
# A folder that the job's user could not reach by its path.
LOG_FOLDER = f"/proc/self/fd/{LOG_FOLDER_FD}"
EXIT_TOO_OLD = 93
# -c leaves the current folder first in sys.path: a logging.py there would be imported in place of
# Python's.
PRELUDE = (
    f"import sys; sys.path[:1] = []; sys.version_info >= (3, 9) or sys.exit({EXIT_TOO_OLD}); "
    f"exec(compile(open({SOURCE_FD}, 'rb').read(), 'muster-bootstrap', 'exec'))"
)
PACKET_BYTES_MAX = 65536
# Of one turn of the loop: who speaks without end must not have it alone.
TURN_PACKETS = 64
# Of the dead all that they can have said, and no end of what is said in their name.
LAST_PACKETS = 4 * RANKS_MAX


class Gate:
    """One bootstrap's channel. `on_message` gets every document; broken ones are dropped."""

    def __init__(self, loop: Loop, source: bytes, log_folder_fd: int) -> None:
        self._loop = loop
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._source = _memory_file("muster-bootstrap", source)
        # One byte, "1" once we have begun to stop the job: torchrun must then signal nobody.
        self._flag = _memory_file("muster-stop", b"0")
        self._log_folder_fd = log_folder_fd
        self.on_message: Callable[[dict[str, object]], None] = lambda _: None

    def descriptors(self) -> dict[int, int]:
        """What the bootstrap inherits: its number to ours."""
        return {
            CHANNEL_FD: self._theirs.fileno(),
            SOURCE_FD: self._source,
            FLAG_FD: self._flag,
            LOG_FOLDER_FD: self._log_folder_fd,
        }

    def opened(self) -> None:
        """The child has its copies: drop ours, listen."""
        self._theirs.close()
        close_quietly(self._source)
        close_quietly(self._log_folder_fd)
        self._loop.watch(self._ours.fileno(), self.receive)

    def receive(self, most: int = TURN_PACKETS) -> None:
        """Take messages that are there; after the bootstrap's death the last ones."""
        for _ in range(most):
            try:
                data = self._ours.recv(PACKET_BYTES_MAX)
            except (BlockingIOError, OSError):
                return
            if not data:
                self._loop.forget(self._ours.fileno())
                return
            try:
                message = json.loads(data)
            except (ValueError, RecursionError):
                continue
            if isinstance(message, dict):
                self.on_message(message)

    def start(self, argv: Sequence[str], env: dict[str, str], grace_s: float) -> bool:
        """Open the gate; False where nobody waits there any more."""
        document = {"argv": list(argv), "env": env, "grace_s": grace_s}
        fd = _memory_file("muster-start", json.dumps(document).encode())
        try:
            return self._send({"t": "start"}, [fd])
        finally:
            os.close(fd)

    def give_files(self, fds: Sequence[int]) -> None:
        self._send({"t": "files"}, fds)

    def stopping(self) -> None:
        """From this on torchrun leaves the ranks to us."""
        os.pwrite(self._flag, b"1", 0)

    def close(self) -> None:
        self._loop.forget(self._ours.fileno())
        self._ours.close()
        close_quietly(self._flag)

    def _send(self, message: dict[str, object], fds: Sequence[int]) -> bool:
        rights = array.array("i", fds)
        try:
            self._ours.sendmsg(
                [json.dumps(message).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else [],
            )
        except OSError:
            return False
        return True


def _memory_file(name: str, content: bytes) -> int:
    fd = os.memfd_create(name)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
