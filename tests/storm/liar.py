"""A launcher that lies: a job's `python` is any program, and so any program may speak to a shim.

The name under which this file is started says how it lies. It needs the standard library alone, as
it runs with the rights of the job's user. What it has done stands in `file` in its folder, a line
for each step; then it stays until it is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANNEL_FD = 60
PACKET_BYTES_MAX = 65536
ASKED_MAX = 8192
"""More ranks than any shim, coordinator or job has; two streams each."""
REFUSED_MAX = 64
"""After so many refusals in a row nothing more is to be had."""


class Liar:
    """The channel to the shim."""

    def __init__(self) -> None:
        self.channel = socket.socket(fileno=CHANNEL_FD)
        self.folder = ""

    def note(self, text: str) -> None:
        with Path("noted").open("a") as file:
            file.write(f"{text}\n")

    def say(self, message: Any) -> None:
        self.send(json.dumps(message).encode())

    def send(self, packet: bytes) -> None:
        self.channel.send(packet)

    def begin(self) -> None:
        """Begin like a launcher that does not lie, up to the point at which its job runs."""
        self.say({"t": "hello", "versions": {}})
        _, fds, _, _ = socket.recv_fds(self.channel, PACKET_BYTES_MAX, 1)
        with open(fds[0], "rb") as file:
            env = json.load(file)["env"]
        self.folder = env.get("MUSTER_SCRATCH", "")
        self.say({"t": "running"})
        # An answer comes in a millisecond on a machine that is not busy.
        self.channel.settimeout(20.0)

    def ask(self, rank: int, local_rank: int) -> bool:
        """Ask for the files of a rank; whether there were any. Local rank 0 begins a new round."""
        self.say({"t": "open", "rank": rank, "local_rank": local_rank})
        fds = socket.recv_fds(self.channel, PACKET_BYTES_MAX, 2)[1]
        for fd in fds:
            with contextlib.suppress(OSError):
                os.write(fd, b"a line of rank %d\n" % rank)
            os.close(fd)
        return len(fds) == 2


def endless(liar: Liar) -> None:
    """Asks for the files of ranks for as long as it gets some. Each is the first of a new round, so
    that they are never too many at once."""
    liar.begin()
    given = refused = last = 0
    for rank in range(ASKED_MAX):
        if liar.ask(rank, 0):
            given, refused, last = given + 1, 0, rank
        else:
            refused += 1
        if refused == REFUSED_MAX:
            break
    liar.note(f"given {given}, the last to rank {last}")


def pids(liar: Liar) -> None:
    """Says that its ranks are processes of others: the agent, process 1, its own shim."""
    liar.begin()
    liar.ask(0, 0)
    liar.say({"t": "rank", "rank": 0, "pid": os.getpid()})
    liar.note(f"own {os.getpid()}")
    for rank, pid in enumerate(_others(), 1):
        liar.ask(rank, rank)
        liar.say({"t": "rank", "rank": rank, "pid": pid})
        liar.note(f"other {pid}")


def _others() -> list[int]:
    """Process 1, and whatever of Muster's can be seen."""
    found = {1, os.getppid()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                name = (entry / "comm").read_text()
                command = (entry / "cmdline").read_bytes()
                if name.startswith("muster") or b"muster" in command:
                    found.add(int(entry.name))
    return sorted(found - {os.getpid()})[:16]


def garbage(liar: Liar) -> None:
    """Send bytes that are no message, half of one, or one whose fields have wrong types."""
    liar.begin()
    values: list[Any] = [None, True, -1, 1 << 70, 1.5, "1", [], {}, "\0"]
    for _ in range(200):
        for packet in (
            b"{",
            b"\xff" * 1000,
            b"[]",
            b"null",
            b"[" * 30_000,
            b'{"t":' * 10_000,
            b'{"t": "open", "rank": 1e999, "local_rank": NaN}',
            b'{"t": "exit", "rank": ' + b"9" * 4000 + b"}",
            b'{"t": "exit", "rank": 0, "code": 0, "error": "\\ud800"}',
            b'{"t": "hello", "versions": {"torch": 5, "cuda": []}}',
        ):
            liar.send(packet)
        for value in values:
            liar.say({"t": value, "rank": value, "pid": value, "code": value, "signal": value})
            for kind in ("rank", "exit", "hello", "failed", "closing-"):
                liar.say({"t": kind, "rank": value, "pid": value, "code": value, "error": value})
    liar.note("said")


def huge(liar: Liar) -> None:
    """Fill every field that holds text with as much as a packet holds."""
    text = "x\u2028" * 8000
    liar.say({"t": "hello", "versions": {f"{n}": "y" * 50 for n in range(500)} | {"torch": text}})
    liar.begin()
    for _ in range(500):
        liar.say({"t": "failed", "code": "no_torch", "text": text})
    for rank in range(64):
        liar.ask(rank, rank)
        liar.say({"t": "rank", "rank": rank, "pid": os.getpid()})
    liar.note("said")
    for rank in range(64):
        liar.say({"t": "exit", "rank": rank, "code": 1, "signal": None, "error": text})


def silent(liar: Liar) -> None:
    """Never answers."""
    liar.note("silent")


def twice(liar: Liar) -> None:
    """Says everything twice, and takes back what it said."""
    liar.note("begins")
    liar.say({"t": "hello", "versions": {}})
    liar.say({"t": "running"})
    liar.begin()
    liar.say({"t": "running"})
    liar.say({"t": "hello", "versions": {}})
    for _ in range(2):
        liar.ask(0, 0)
        liar.say({"t": "rank", "rank": 0, "pid": os.getpid()})
        for code in (0, 1, 0):
            liar.say({"t": "exit", "rank": 0, "code": code, "signal": None, "error": None})
    liar.say({"t": "failed", "code": "bootstrap_failed", "text": "not at all"})
    liar.note("said")


def early(liar: Liar) -> None:
    """Runs before it was started, with a rank of its own."""
    liar.say({"t": "hello", "versions": {}})
    liar.say({"t": "running"})
    liar.say({"t": "open", "rank": 0, "local_rank": 0})
    liar.say({"t": "rank", "rank": 0, "pid": float(os.getpid())})
    liar.note("said")


def ghosts(liar: Liar) -> None:
    """Ends of ranks that there never were."""
    liar.begin()
    for rank in (*range(2000), -1, 1 << 24, 1 << 40):
        liar.say({"t": "rank", "rank": rank, "pid": 1})
        liar.say({"t": "exit", "rank": rank, "code": rank % 300, "signal": None, "error": "gone"})
        liar.say({"t": "exit", "rank": rank, "code": None, "signal": 99, "error": None})
    liar.note("said")


def thief(liar: Liar) -> None:
    """Moves a file of another owner from a folder of its own to where root reads NCCL's lines."""
    liar.begin()
    scratch = Path(liar.folder)
    liar.note(f"waits {scratch}")
    while not (scratch / "secret").exists():
        time.sleep(0.01)
    # Whole, before it is moved: it is written under another name.
    (scratch / "secret").rename(scratch.parent / "nccl" / "nccl.1.log")
    liar.note("moved")


LIES: dict[str, Callable[[Liar], None]] = {
    lie.__name__: lie for lie in (endless, pids, garbage, huge, silent, twice, early, ghosts, thief)
}


def main() -> None:
    liar = Liar()
    try:
        LIES[Path(sys.argv[0]).name](liar)
    except OSError as error:
        liar.note(f"cut off: {error}")
    while True:
        time.sleep(60.0)


if __name__ == "__main__":
    main()
