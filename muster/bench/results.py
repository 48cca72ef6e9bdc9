"""Parsing and assessment of the all-reduce program's output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from muster.http.fabric import PlanView
from muster.protocol.observations.traffic import Carrier

PASS_FRACTION: Final = 0.8
"""Fraction of the combined rate of a node's chosen HCAs that a ring over them must reach."""
_FIELDS: Final = 11


class RunInfo(msgspec.Struct, frozen=True):
    """A description of the measurement. `why` is the reason for not using NCCL, if any."""

    ranks: int
    nodes: int
    backend: str
    device: str
    torch: str
    collective: str = "all_reduce"
    why: str = ""
    nccl: str = ""
    warmups: int = 0
    iterations: int = 0


class Row(msgspec.Struct, frozen=True):
    """The result of one size. Times are microseconds, averaged over the ranks; bandwidths are 1e9
    bytes/s, from the mean time. `wrong` counts elements with a wrong sum on all ranks."""

    size: int
    count: int
    iterations: int
    time_us: float
    p50_us: float
    min_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int


class PassLine(msgspec.Struct, frozen=True):
    """The pass line: the minimum bus bandwidth, in GB/s, of the largest size. `gb_s` and `passed`
    are None if there is no pass line. `text` says why."""

    gb_s: float | None
    passed: bool | None
    text: str


class Run(msgspec.Struct, frozen=True):
    """A job of the benchmark. `rdma` is the job's setting and `plan` the gang's fabric plan.
    `verdict` is the coordinator's traffic verdict (for gloo always TCP), and `transport` its
    text."""

    job: int
    rdma: str
    nodes: tuple[str, ...]
    about: RunInfo | None
    rows: tuple[Row, ...]
    plan: str
    verdict: Carrier
    transport: str
    line: PassLine

    @property
    def largest(self) -> Row | None:
        return max(self.rows, key=lambda row: row.size, default=None)

    @property
    def wrong(self) -> int:
        return sum(row.wrong for row in self.rows)


def read_line(line: str) -> RunInfo | Row | None:
    """Parse a line of the program's output. Returns None for lines that are for people only."""
    if line.startswith("# {"):
        try:
            return msgspec.json.decode(line[2:], type=RunInfo)
        except msgspec.DecodeError:
            return None
    words = line.split()
    if len(words) != _FIELDS or line.startswith("#"):
        return None
    size, count, _, _, iterations, mean, p50, least, algbw, busbw, wrong = words
    try:
        return Row(
            int(size),
            int(count),
            int(iterations),
            float(mean),
            float(p50),
            float(least),
            float(algbw),
            float(busbw),
            int(wrong),
        )
    except ValueError:
        return None


def rates_of(plan: PlanView | None) -> dict[str, float]:
    """Return the combined rate of each node's planned HCAs, in Gbit/s. Returns {} if the plan has
    none or a rate is unknown."""
    if plan is None or plan.transport != "rdma":
        return {}
    rates: dict[str, float] = {}
    for node in plan.nodes:
        ports = [port.rate_gbps for port in node.ports]
        known = [rate for rate in ports if rate is not None]
        if len(known) < len(ports):
            return {}
        rates[node.node] = sum(known)
    return rates


def pass_line(
    about: RunInfo | None,
    rows: Iterable[Row],
    rates_gbps: Mapping[str, float],
    *,
    tcp: bool = False,
) -> PassLine:
    """Compute the pass line from the chosen HCAs. `rates_gbps`: combined rate of each node in
    Gbit/s, empty if no plan names HCAs. `tcp`: the transport is known to be TCP."""
    largest = max(rows, key=lambda row: row.size, default=None)
    if about is None or largest is None:
        return PassLine(None, None, "nothing was measured")
    if about.nodes < 2:
        return PassLine(None, None, "no pass line: one node, whose HCAs are not used")
    if about.backend != "nccl":
        why = f" ({about.why})" if about.why else ""
        return PassLine(None, None, f"no pass line: {about.backend} over TCP{why}, no HCA is used")
    least = min(rates_gbps.values(), default=0.0)
    if not least:
        return PassLine(None, None, "no pass line: the plan has no HCAs whose rates are known")
    wanted = PASS_FRACTION * least / 8
    passed = largest.busbw_gb_s >= wanted and not tcp
    over = " over TCP" if tcp else ""
    return PassLine(
        wanted,
        passed,
        f"{largest.busbw_gb_s:.1f} GB/s{over}, and {wanted:.1f} GB/s is the line: "
        f"{PASS_FRACTION:.0%} of the {least:g} Gbit/s that the HCAs of a node have",
    )


def factors(fast: Iterable[Row], slow: Iterable[Row]) -> dict[int, float]:
    """Return the ratio of `fast` to `slow` bus bandwidth, by size."""
    base = {row.size: row.busbw_gb_s for row in slow}
    return {
        row.size: row.busbw_gb_s / base[row.size] for row in fast if base.get(row.size, 0.0) > 0.0
    }
