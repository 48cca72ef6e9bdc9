"""A node of a check: answers its peers, and sends to the peers that the hub names."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
import zlib
from typing import List, Optional, Set, Tuple

from muster.check.program.name_lookup import NAMES_S, NameProof
from muster.check.program.node_facts import facts
from muster.check.program.sockets import (
    LINE_BYTES_MAX,
    STALL_S,
    Message,
    Result,
    connect_patiently,
    family_of,
    fill,
    in_words,
    line_of,
    listen,
    send,
)

CHUNK = 1 << 18
TRANSFER_S = 60.0


class Peer:
    """A node's part in a check: answers peers, and follows the hub's orders."""

    def __init__(self, plan: Message, names: List[str], rank: int) -> None:
        self._plan = plan
        self._names = names
        self._rank = rank
        self._networks = list(plan["networks"])
        self._data = _pattern(plan["bytes"], rank)
        self._crc = zlib.crc32(self._data)
        self._ports: List[int] = []
        self._listener = listen("", 0)

    def serve(self, address: Tuple[str, int]) -> None:
        names = NameProof(self._plan, self._names, self._rank)
        names.start()
        threading.Thread(target=self._answer_all, daemon=True).start()
        hub = connect_patiently(address)
        lines = hub.makefile("rb")
        names.join(NAMES_S)
        hello = {
            "key": self._plan["key"],
            "rank": self._rank,
            "port": self._listener.getsockname()[1],
            "facts": facts(),
            "names": names.problems(),
            "wall_s": time.time(),
        }
        send(hub, hello)
        self._ports = json.loads(lines.readline(LINE_BYTES_MAX))["ports"]
        for line in lines:
            order = json.loads(line)
            if order["do"] == "end":
                break
            without = {tuple(pair) for pair in order["without"]}
            send(hub, {"found": [x for p in order["to"] for x in self._meet(p, without)]})

    def _meet(self, peer: int, without: Set[Tuple[int, ...]]) -> List[Result]:
        """Send to a node on every network that both have."""
        found: List[Result] = []
        for network, key in enumerate(self._networks):
            addresses = self._plan["networks"][key]
            own = addresses.get(self._names[self._rank])
            other = addresses.get(self._names[peer])
            if own is None or other is None or {(self._rank, network), (peer, network)} & without:
                continue
            speed, why = self._send(peer, own, other)
            found.append([self._rank, peer, network, speed, why])
        return found

    def _send(self, peer: int, own: str, other: str) -> Tuple[Optional[float], str]:
        """Send the data. Returns GB/s, or None and the error."""
        sock = socket.socket(family_of(other), socket.SOCK_STREAM)
        sent = -1
        try:
            sock.settimeout(self._plan["timeout_s"])
            sock.bind((own, 0))
            sock.connect((other, self._ports[peer]))
            sock.settimeout(STALL_S)
            sent = 0
            about = {"key": self._plan["key"], "to": self._names[peer], "bytes": len(self._data)}
            send(sock, about)
            lines = sock.makefile("rb")
            answer = json.loads(lines.readline(LINE_BYTES_MAX) or b"{}")
            if answer.get("node") != self._names[peer]:
                return None, "%s answers there" % (answer.get("node") or "another program")
            until = time.monotonic() + TRANSFER_S
            view = memoryview(self._data)
            while sent < len(view):
                if time.monotonic() > until:
                    return None, "only %d of %d bytes in %g s" % (sent, len(view), TRANSFER_S)
                sent += sock.send(view[sent : sent + CHUNK])
            sock.settimeout(TRANSFER_S)  # data in flight may take longer than the next byte
            answer = json.loads(lines.readline(LINE_BYTES_MAX))
            if answer["crc"] != self._crc:
                return None, "the bytes that arrive are not those that were sent"
            return len(view) / max(answer["s"], 1e-9) / 1e9, ""
        except socket.timeout:
            if sent < 0:
                return None, "no answer in %g s" % self._plan["timeout_s"]
            return None, "it connects, and then nothing gets through (is its MTU smaller there?)"
        except (OSError, ValueError, KeyError) as error:
            return None, in_words(error)
        finally:
            sock.close()

    def _answer_all(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with sock:
            try:
                sock.settimeout(STALL_S)
                about = json.loads(line_of(sock))
                if about["key"] != self._plan["key"]:
                    return
                right = about["to"] == self._names[self._rank]
                began = time.perf_counter()
                send(sock, {"node": self._names[self._rank]})
                if right:
                    data = bytearray(min(int(about["bytes"]), self._plan["bytes"]))
                    fill(sock, data)
                    took = time.perf_counter() - began
                    send(sock, {"crc": zlib.crc32(data), "s": took})
            except (OSError, ValueError, KeyError, TypeError):
                pass  # the sender reports the error


def _pattern(size: int, rank: int) -> bytes:
    """Return bytes in which no two cache lines are equal, different on each node."""
    block = os.urandom(min(size, (1 << 20) - 1))
    return struct.pack("<I", rank) + (block * (size // len(block) + 1))[: size - 4]
