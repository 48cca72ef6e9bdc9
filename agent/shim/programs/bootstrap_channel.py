"""The shim's end of the channel to the bootstrap: descriptors, messages and the start gate.

The bootstrap runs as the job's user, so the shim does not trust it. The shim checks numbers, and
compares pids with the process tree before any signal.

Messages (one JSON document a packet), from the bootstrap: hello {versions}, failed {code, text},
running, open {rank, local_rank} (answered by "files" with two descriptors), rank {rank, pid}, exit
{rank, code, signal, error}, closing {}, start_method {method, why, import_s, preload_s, check_s,
fork_s}. From the shim: start (argv and environment in a memory file, its descriptor attached),
files.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Callable, Sequence

from agent.shim.commands import RANKS_MAX
from agent.shim.system.event_loop import Loop, close_quietly

# Descriptors of the bootstrap. High, so that they do not collide with a script's own `exec 3>`.
CHANNEL_FD, SOURCE_FD, FLAG_FD, LOG_FOLDER_FD = 60, 61, 62, 63
# The job's user could not reach this folder by its path.
LOG_FOLDER = f"/proc/self/fd/{LOG_FOLDER_FD}"
EXIT_TOO_OLD = 93
# -c leaves the current folder first in sys.path: a logging.py there would be imported in place of
# Python's.
PRELUDE = (
    f"import sys; sys.path[:1] = []; sys.version_info >= (3, 9) or sys.exit({EXIT_TOO_OLD}); "
    f"import json; PARTS = json.load(open({SOURCE_FD})); "
    "exec(compile(PARTS['main'], 'muster-bootstrap', 'exec'))"
)
PACKET_BYTES_MAX = 65536
# Limit per turn of the loop, so that a bootstrap that sends without end does not block it.
TURN_PACKETS = 64
# After the bootstrap's death: enough for everything it can have sent, but bounded.
LAST_PACKETS = 4 * RANKS_MAX


class Gate:
    """A bootstrap's channel. `on_message` gets every document; malformed ones are dropped."""

    def __init__(self, loop: Loop, source: bytes, log_folder_fd: int) -> None:
        self._loop = loop
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._source = _memory_file("muster-bootstrap", source)
        # One byte: "1" once the shim has begun to stop the job. torchrun must then signal no rank.
        self._flag = _memory_file("muster-stop", b"0")
        self._log_folder_fd = log_folder_fd
        self.on_message: Callable[[dict[str, object]], None] = lambda _: None

    def descriptors(self) -> dict[int, int]:
        """Descriptors for the bootstrap to inherit: its number to ours."""
        return {
            CHANNEL_FD: self._theirs.fileno(),
            SOURCE_FD: self._source,
            FLAG_FD: self._flag,
            LOG_FOLDER_FD: self._log_folder_fd,
        }

    def opened(self) -> None:
        """Drop our copies of the child's descriptors, and start to receive."""
        self._theirs.close()
        close_quietly(self._source)
        close_quietly(self._log_folder_fd)
        self._loop.watch(self._ours.fileno(), self.receive)

    def receive(self, most: int = TURN_PACKETS) -> None:
        """Receive up to `most` pending messages; also called for the last ones after the
        bootstrap's death.
        """
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
        """Open the gate; returns False if the bootstrap is gone."""
        document = {"argv": list(argv), "env": env, "grace_s": grace_s}
        fd = _memory_file("muster-start", json.dumps(document).encode())
        try:
            return self._send({"t": "start"}, [fd])
        finally:
            os.close(fd)

    def give_files(self, fds: Sequence[int]) -> None:
        self._send({"t": "files"}, fds)

    def stopping(self) -> None:
        """Set the stop flag. From then on torchrun leaves the ranks to the shim."""
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
