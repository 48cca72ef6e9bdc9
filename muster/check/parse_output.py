"""Parser of the check program's output."""

from __future__ import annotations

from typing import Final

import msgspec


class NameLookups(msgspec.Struct, frozen=True):
    """A node's name lookups: `wrong` are sentences, `unknown` are names and addresses that the node
    cannot resolve, and `late` counts lookups that did not finish in time."""

    wrong: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    late: int = 0


class NodeReport(msgspec.Struct, frozen=True):
    """A node's report about itself. `clock_s`: seconds by which its clock is ahead of the first
    node's."""

    node: str
    facts: dict[str, str]
    names: NameLookups = NameLookups()
    clock_s: float = 0.0


class Transfer(msgspec.Struct, frozen=True):
    """A transfer from one node to another: GB/s of verified bytes over one connection, or the
    error."""

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


_node: Final = msgspec.json.Decoder(NodeReport)
_line: Final = msgspec.json.Decoder(_Line)


class CheckOutput:
    """Parses lines as they arrive. `end`: all have arrived. `step`: the last step and the total, as
    text."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeReport] = {}
        self.step = ""
        self.end = False
        self._names: tuple[str, ...] = ()
        self._networks: tuple[str, ...] = ()
        self._pairs: dict[tuple[str, str, str], Transfer] = {}

    @property
    def pairs(self) -> tuple[Transfer, ...]:
        """The results by pair; for a pair that was tried again, the better one."""
        return tuple(self._pairs.values())

    def take(self, line: str) -> None:
        """Parse one line. Ignores lines for people, and lines that this version cannot read."""
        if not line.startswith("# {"):
            return
        try:
            if line.startswith('# {"node"'):
                report = _node.decode(line[2:])
                self.nodes[report.node] = report
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
        pair = Transfer(self._names[sender], self._names[receiver], self._networks[at], gb_s, why)
        place = (pair.sender, pair.receiver, pair.network)
        before = self._pairs.get(place)
        if before is None or (gb_s or 0.0) >= (before.gb_s or 0.0):
            self._pairs[place] = pair
