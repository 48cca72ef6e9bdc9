"""What the program of a check prints, read."""

from __future__ import annotations

from typing import Final

import msgspec


class Names(msgspec.Struct, frozen=True):
    """What a node finds out by the names of others: `wrong` are sentences, `unknown` are names and
    addresses of which nothing is known there, `late` were not looked up in time.
    """

    wrong: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    late: int = 0


class NodeTold(msgspec.Struct, frozen=True):
    """A node by its own account. `clock_s`: how far its clock is ahead of the first node's."""

    node: str
    facts: dict[str, str]
    names: Names = Names()
    clock_s: float = 0.0


class Pair(msgspec.Struct, frozen=True):
    """What one node has sent to another: GB/s of verified bytes over one connection, or why not."""

    sender: str
    receiver: str
    network: str
    gb_s: float | None
    why: str = ""


class _Line(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    step: str = ""
    found: tuple[tuple[int, int, int, float | None, str], ...] = ()
    end: bool = False


_node: Final = msgspec.json.Decoder(NodeTold)
_line: Final = msgspec.json.Decoder(_Line)


class Output:
    """Takes the lines as they come. `end`: all of them have. `step`: of how many it was the last,
    in words."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeTold] = {}
        self.step = ""
        self.end = False
        self._names: tuple[str, ...] = ()
        self._networks: tuple[str, ...] = ()
        self._pairs: dict[tuple[str, str, str], Pair] = {}

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Of a pair that was tried again, the better."""
        return tuple(self._pairs.values())

    def take(self, line: str) -> None:
        """What is for people only is passed over, as is what this version cannot read."""
        if not line.startswith("# {"):
            return
        try:
            if line.startswith('# {"node"'):
                told = _node.decode(line[2:])
                self.nodes[told.node] = told
                return
            found = _line.decode(line[2:])
            self._names = found.nodes or self._names
            self._networks = found.networks or self._networks
            for one in found.found:
                self._learn(*one)
        except (msgspec.DecodeError, IndexError):
            return
        self.step = found.step or self.step
        self.end = self.end or found.end

    def _learn(self, sender: int, receiver: int, at: int, gb_s: float | None, why: str) -> None:
        pair = Pair(self._names[sender], self._names[receiver], self._networks[at], gb_s, why)
        place = (pair.sender, pair.receiver, pair.network)
        before = self._pairs.get(place)
        if before is None or (gb_s or 0.0) >= (before.gb_s or 0.0):
            self._pairs[place] = pair
