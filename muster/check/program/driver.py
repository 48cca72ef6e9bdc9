"""The hub of a check, on its first node: starts the rounds and prints the results."""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from collections import defaultdict
from typing import Any, Dict, List, Set, Tuple

from muster.check.program.name_lookup import NAMES_S
from muster.check.program.round_robin import partner, rounds
from muster.check.program.sockets import HELLO_S, LINE_BYTES_MAX, Message, Result, in_words, send

# Failed peers after which a node is left out on a network, because each failure costs a timeout.
GIVE_UP = 3
AGAIN_MAX = 64


class Hub(threading.Thread):
    """Starts the rounds and prints the results."""

    def __init__(self, plan: Message, names: List[str], listener: socket.socket) -> None:
        super().__init__(daemon=True)
        self._plan = plan
        self._names = names
        self._listener = listener
        self._nodes: Dict[int, Tuple[socket.socket, Any]] = {}
        self._speeds: Dict[int, Dict[Tuple[int, int], float]] = defaultdict(dict)
        self._failing: Dict[Tuple[int, int], Set[int]] = defaultdict(set)
        self._well: Set[Tuple[int, int]] = set()
        self._without: Set[Tuple[int, int]] = set()
        self.failed = False

    def run(self) -> None:
        try:
            self._gather()
            self._tournament()
            self._slow_ones_again()
            for sock, _ in self._nodes.values():
                send(sock, {"do": "end"})
            _print({"end": True})
        except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 must not wait for it for ever
            self.failed = True
            print("the check ends: %s" % (in_words(error) if isinstance(error, OSError) else error))
            sys.stdout.flush()
            os._exit(1)

    def _gather(self) -> None:
        """Accept connections until all nodes have joined. The key authenticates them."""
        until = time.monotonic() + HELLO_S
        hellos: Dict[int, Message] = {}
        while len(hellos) < len(self._names):
            self._listener.settimeout(max(until - time.monotonic(), 0.1))
            try:
                sock, _ = self._listener.accept()
                sock.settimeout(NAMES_S + HELLO_S)
                lines = sock.makefile("rb")
                hello = json.loads(lines.readline(LINE_BYTES_MAX))
                if hello["key"] == self._plan["key"]:
                    hello["clock_s"] = round(hello["wall_s"] - time.time(), 1)
                    hellos[hello["rank"]] = hello
                    self._nodes[hello["rank"]] = (sock, lines)
            except socket.timeout:
                missing = [n for r, n in enumerate(self._names) if r not in hellos]
                raise RuntimeError("%s did not come" % ", ".join(missing[:5])) from None
            except (ValueError, KeyError, TypeError):
                continue
        _print({"nodes": self._names, "networks": list(self._plan["networks"])})
        for rank, name in enumerate(self._names):
            hello = hellos[rank]
            known = {key: hello[key] for key in ("facts", "names", "clock_s")}
            _print({"node": name, **known})
            for text in hello["names"]["wrong"]:
                print("%s: %s" % (name, text))
        ports = [hellos[rank]["port"] for rank in range(len(self._names))]
        for sock, _ in self._nodes.values():
            sock.settimeout(None)
            send(sock, {"ports": ports})

    def _tournament(self) -> None:
        count = len(self._names)
        for number in range(rounds(count)):
            for turn in (0, 1):
                orders = {}
                for rank in range(count):
                    other = partner(count, number, rank)
                    if other is not None and (rank < other) == (turn == 0):
                        orders[rank] = [other]
                self._step("%d/%d" % (2 * number + turn + 1, 2 * rounds(count)), orders)

    def _slow_ones_again(self) -> None:
        """Repeat slow pairs one at a time, because other traffic may have slowed them down."""
        slow = []
        for speeds in self._speeds.values():
            usual = statistics.median(speeds.values())
            slow += [(speed / usual, pair) for pair, speed in speeds.items() if 3 * speed < usual]
        for _, (sender, receiver) in sorted(slow)[:AGAIN_MAX]:
            self._step("again", {sender: [receiver]})

    def _step(self, step: str, orders: Dict[int, List[int]]) -> None:
        without = sorted(self._without)
        for rank, peers in orders.items():
            send(self._nodes[rank][0], {"do": step, "to": peers, "without": without})
        found: List[Result] = []
        for rank in orders:
            line = self._nodes[rank][1].readline(LINE_BYTES_MAX)
            if not line:
                raise RuntimeError("%s has left" % self._names[rank])
            found += json.loads(line)["found"]
        for one in found:
            self._learn(one)
        self._leave_out()
        _print({"step": step, "found": [[*x[:3], x[3] and round(x[3], 4), x[4]] for x in found]})

    def _learn(self, one: Result) -> None:
        sender, receiver, network, speed, why = one
        ends = (sender, network), (receiver, network)
        if speed is not None:
            before = self._speeds[network].get((sender, receiver), 0.0)
            self._speeds[network][sender, receiver] = max(before, speed)
            self._well.update(ends)
            return
        names, key = self._names, list(self._plan["networks"])[network]
        print("%s to %s on %s: %s" % (names[sender], names[receiver], key, why))
        for this, other in (ends, ends[::-1]):
            self._failing[this].add(other[0])

    def _leave_out(self) -> None:
        """Leave out nodes that reach no peer on a network, although others do; or all, if no node
        does."""
        for this in sorted(set(self._failing) - self._well - self._without):
            node, network = this
            peers = self._failing[this]
            if any(where == network for _, where in self._well):
                peers = {peer for peer in peers if (peer, network) in self._well}
            if len(peers) >= GIVE_UP:
                self._without.add(this)
                name, key = self._names[node], list(self._plan["networks"])[network]
                print("%s reaches nobody on %s: left out" % (name, key))


def _print(message: Message) -> None:
    print("# " + json.dumps(message, separators=(",", ":")), flush=True)
