"""The findings of a check, worst first: sentences that name nodes, pairs and networks."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from muster.check.parse_output import NodeReport, Transfer
from muster.http.fabric import PlanView

SLOW: Final = 1 / 3
"""A pair below this share of its network's median is slow."""
CLOCK_S: Final = 5.0
NAMED_MAX: Final = 5
PAIRS_MAX: Final = 20
"""Number of pairs per network that are reported individually."""
_MUST_AGREE: Final = frozenset({"torch", "CUDA", "NCCL", "machine"})
_NONE: Final = "none"
_OPEN: Final = "open"
_RDMA: Final = "rdma"


class FindingSeverity(Enum):
    FAULT = "fault"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """A problem that a check found. `kind` is a stable code."""

    severity: FindingSeverity
    kind: str
    nodes: tuple[str, ...]
    text: str


class NetworkFound(msgspec.Struct, frozen=True):
    """A network: the number of pairs that share it, the number of failed transfers (one in each
    direction), and the speed of the others."""

    network: str
    pairs: int
    failed: int
    median_gb_s: float | None
    worst: Transfer | None


class CheckReport(msgspec.Struct, frozen=True):
    """The report of a check. `skipped`: reason by node; `facts`: each node's report about
    itself."""

    nodes: tuple[str, ...]
    skipped: dict[str, str]
    jobs: tuple[int, ...]
    findings: tuple[Finding, ...]
    networks: tuple[NetworkFound, ...]
    facts: dict[str, dict[str, str]]
    pairs: tuple[Transfer, ...]

    @property
    def exit_code(self) -> int:
        """The exit code, as for `muster doctor`: 0, 1 (warnings), 2 (faults)."""
        worst = {finding.severity for finding in self.findings}
        return 2 if FindingSeverity.FAULT in worst else 1 if FindingSeverity.WARNING in worst else 0


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort the findings by severity, otherwise stable."""
    order = list(FindingSeverity)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def differences(reports: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Find facts that differ between nodes: the odd nodes, and the value of the majority."""
    found = []
    for fact in dict.fromkeys(fact for mine in reports.values() for fact in mine):
        by_value: dict[str, list[str]] = defaultdict(list)
        for node, mine in reports.items():
            by_value[mine.get(fact, _NONE)].append(node)
        if len(by_value) < 2:
            continue
        value, most = max(by_value.items(), key=lambda item: len(item[1]))
        odd = {
            v: nodes for v, nodes in by_value.items() if v != value or 2 * len(most) <= len(reports)
        }
        parts = [f"{named(nodes)} {_has(nodes)} {v}" for v, nodes in odd.items()]
        if value not in odd:
            parts.append(f"the other {len(most)} {_has(most)} {value}")
        severity = FindingSeverity.FAULT if fact in _MUST_AGREE else FindingSeverity.WARNING
        names = tuple(sorted(node for nodes in odd.values() for node in nodes))
        found.append(Finding(severity, "differs", names, f"{fact}: {'; '.join(parts)}"))
    return found


def names_and_clocks(reports: Mapping[str, NodeReport]) -> list[Finding]:
    """Return findings on the nodes' name lookups and clocks."""
    found = []
    for node, its in reports.items():
        found += [
            Finding(FindingSeverity.FAULT, "names", (node,), f"{node}: {text}")
            for text in its.names.wrong
        ]
        if its.names.late:
            text = (
                f"{node}: {its.names.late} names of others were not looked up in time: does its "
                "name server answer?"
            )
            found.append(Finding(FindingSeverity.WARNING, "names", (node,), text))
    unknowing = [node for node, its in reports.items() if its.names.unknown]
    if unknowing:
        text = (
            f"{named(unknowing)} {'knows' if len(unknowing) == 1 else 'know'} no names of the "
            "others, not even while a job runs: `hosts.mode` of the agent is off, or it is not root"
        )
        found.append(Finding(FindingSeverity.NOTE, "names", tuple(unknowing), text))
    usual = statistics.median(its.clock_s for its in reports.values()) if reports else 0.0
    for node, its in reports.items():
        if abs(its.clock_s - usual) > CLOCK_S:
            how = "ahead of" if its.clock_s > usual else "behind"
            text = f"the clock of {node} is {abs(its.clock_s - usual):.0f} s {how} the others'"
            found.append(Finding(FindingSeverity.WARNING, "clock", (node,), text))
    return found


def fabric(plan: PlanView | None) -> list[Finding]:
    """Return findings from the coordinator's fabric plan for these nodes: obstacles to RDMA,
    differences, and missing ports."""
    if plan is None or plan.transport == _OPEN:
        return []
    can = plan.transport == _RDMA
    found = [
        Finding(FindingSeverity.NOTE if can else FindingSeverity.WARNING, "fabric", (), plan.text)
    ]
    found += [Finding(FindingSeverity.WARNING, "fabric", (), text) for text in plan.notes]
    for node in plan.nodes:
        found += [
            Finding(FindingSeverity.WARNING, "fabric", (node.node,), f"{node.node}: {text}")
            for text in node.missing
        ]
    return found


def networks_found(pairs: Sequence[Transfer]) -> tuple[NetworkFound, ...]:
    """Summarise each network. The worst pair is a failed one, if any, else the slowest."""
    made = []
    for network, mine in _by_network(pairs).items():
        good = [pair.gb_s for pair in mine if pair.gb_s is not None]
        worst = min(mine, key=lambda pair: -1.0 if pair.gb_s is None else pair.gb_s, default=None)
        median = statistics.median(good) if good else None
        met = len({frozenset((pair.sender, pair.receiver)) for pair in mine})
        made.append(NetworkFound(network, met, len(mine) - len(good), median, worst))
    return tuple(made)


def between(pairs: Sequence[Transfer]) -> list[Finding]:
    """Find pairs that do not reach each other, and slow pairs. A node that reaches no peer on a
    network is reported once."""
    found = []
    for network, mine in _by_network(pairs).items():
        found += _unreached(network, mine) + _slow(network, mine)
    return found


def _unreached(network: str, pairs: Sequence[Transfer]) -> list[Finding]:
    bad = [pair for pair in pairs if pair.gb_s is None]
    if not bad:
        return []
    good = {
        node for pair in pairs if pair.gb_s is not None for node in (pair.sender, pair.receiver)
    }
    everyone = {node for pair in pairs for node in (pair.sender, pair.receiver)}
    alone = sorted(everyone - good)
    if not good and len(everyone) > 2:
        text = f"no node reaches another on {network}: {_why(bad)}"
        return [Finding(FindingSeverity.FAULT, "tcp", tuple(alone), text)]
    found = []
    if good:
        for node in alone:
            its = [pair for pair in bad if node in (pair.sender, pair.receiver)]
            text = f"{node} reaches nobody on {network}: {_why(its)}"
            found.append(Finding(FindingSeverity.FAULT, "tcp", (node,), text))
        bad = [pair for pair in bad if not {pair.sender, pair.receiver} & set(alone)]
    both = {frozenset((pair.sender, pair.receiver)) for pair in bad}
    sorted_pairs = sorted(tuple(sorted(ends)) for ends in both)
    for one, other in sorted_pairs[:PAIRS_MAX]:
        ways = [pair for pair in bad if {pair.sender, pair.receiver} == {one, other}]
        first = ways[0]
        text = (
            f"{one} and {other} do not reach each other on {network}: {_why(ways)}"
            if len(ways) == 2
            else f"{first.sender} does not reach {first.receiver} on {network}, though it is "
            f"reached from there: {first.why}"
        )
        found.append(Finding(FindingSeverity.FAULT, "tcp", (one, other), text))
    if len(sorted_pairs) > PAIRS_MAX:
        rest = tuple(sorted({node for ends in sorted_pairs[PAIRS_MAX:] for node in ends}))
        text = f"and {len(sorted_pairs) - PAIRS_MAX} more pairs on {network}, of {named(rest)}"
        found.append(Finding(FindingSeverity.FAULT, "tcp", rest, text))
    return found


def _slow(network: str, pairs: Sequence[Transfer]) -> list[Finding]:
    speeds = {pair: pair.gb_s for pair in pairs if pair.gb_s is not None}
    if len(speeds) < 3:
        return []
    usual = statistics.median(speeds.values())
    slow = sorted((item for item in speeds.items() if item[1] < SLOW * usual), key=lambda x: x[1])
    found = []
    for pair, speed in slow[:PAIRS_MAX]:
        text = (
            f"{pair.sender} to {pair.receiver} on {network}: {speed:.2f} GB/s, and half of all "
            f"pairs have {usual:.2f} or more"
        )
        found.append(Finding(FindingSeverity.WARNING, "slow", (pair.sender, pair.receiver), text))
    return found


def named(nodes: Sequence[str]) -> str:
    """Join names as `a, b and c`; shortens long lists."""
    if len(nodes) > NAMED_MAX:
        return f"{', '.join(nodes[:NAMED_MAX])} and {len(nodes) - NAMED_MAX} more"
    return " and ".join(filter(None, [", ".join(nodes[:-1]), nodes[-1]])) if nodes else "none"


def _has(nodes: Sequence[str]) -> str:
    return "has" if len(nodes) == 1 else "have"


def _why(pairs: Sequence[Transfer]) -> str:
    """Return the most frequent reason."""
    return Counter(pair.why for pair in pairs).most_common(1)[0][0]


def _by_network(pairs: Sequence[Transfer]) -> dict[str, list[Transfer]]:
    made: dict[str, list[Transfer]] = {}
    for pair in pairs:
        made.setdefault(pair.network, []).append(pair)
    return made
