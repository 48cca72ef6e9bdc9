"""Verdict whether RDMA carried a gang's traffic, from NCCL's log lines and the port counters of
each node.

The lines show NCCL's choice, and the counters show that bytes took that path; both are needed.
Without lines (a gloo job, another library), counters decide only if the bytes sent by all nodes
equal the bytes received: reading a data set is not gang traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from muster.fabric.counters import NOISE_BYTES, carried, tcp_share
from muster.protocol.observations.traffic import (
    Carrier,
    FabricReport,
    NcclEvidence,
    PortFigures,
    SocketFigures,
)
from muster.protocol.text import named

COUNTED_BYTES: Final = 1 << 30
"""Bytes that a node must have carried before counters alone count, ..."""
COUNTED_S: Final = 60.0
"""... and seconds that it must have been observed."""
_CLOSED: Final = 0.15
_CLEARLY: Final = 0.9


class Proof(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict and its message. `firm`: it rests on NCCL's lines or closed counters, so a job
    that requires RDMA must stop. `node` is the responsible one if the nodes differ.
    """

    carrier: Carrier
    text: str
    firm: bool = False
    node: str | None = None


Gang = Sequence[tuple[str, FabricReport | None]]
"""Names of nodes and their reports, in node-rank order."""

_Seen = Sequence[tuple[str, FabricReport]]


def judge(gang: Gang) -> Proof:
    """Return the verdict from the reports so far."""
    if len(gang) < 2:
        return _unknown("a gang of one node has no traffic between nodes")
    seen = [(name, report) for name, report in gang if report is not None]
    if not seen:
        return _unknown("no node has said anything of its traffic")
    on_sockets = [(name, one) for name, one in seen if one.nccl.sockets]
    if on_sockets:
        return _sockets(on_sockets, seen)
    if any(one.nccl.over_nvlink for _, one in seen) and not _any_rdma(seen):
        return _unknown("NVLink between the nodes carried it (MNNVL): NCCL opened no network")
    undecided = [name for name, one in gang if one is None or not one.nccl.decided]
    if len(undecided) == len(gang):
        return _counted(gang, seen)
    if undecided:
        return _unknown(f"NCCL has logged no network on {named(undecided)}")
    return _chosen(seen)


def planned(report: FabricReport) -> tuple[PortFigures, ...]:
    """Return the relevant ports: those of the plan, else those of NCCL's own list, else all."""
    by_plan = tuple(port for port in report.ports if port.planned)
    if by_plan:
        return by_plan
    listed = tuple(port for port in report.ports if port.port in report.nccl.devices)
    return listed or report.ports


def summary(report: FabricReport) -> tuple[object, ...]:
    """Return everything that the verdict depends on, except the amounts."""
    nccl = report.nccl
    return (
        nccl.decided,
        nccl.sockets,
        nccl.network,
        nccl.reason,
        nccl.trouble,
        bool(nccl.over_rdma),
        bool(nccl.over_nvlink),
        carried(report.ports),
        sum(port.flaps or 0 for port in report.ports),
        report.gaps,
        report.shared,
    )


def reason_of(report: FabricReport) -> str:
    """Return why NCCL uses sockets there, in its own words if it logged any."""
    return report.nccl.reason or "NCCL logged no reason"


def _sockets(on_sockets: _Seen, seen: _Seen) -> Proof:
    names = [name for name, _ in on_sockets]
    name, first = on_sockets[0]
    why = f" ({reason_of(first)})"
    where = f"all {len(seen)} nodes" if len(names) == len(seen) and len(seen) > 1 else named(names)
    others = [other for other, one in seen if one.nccl.decided and other not in names]
    text = f"TCP: NCCL used NET/Socket on {where}{why}"
    if others:
        text += f", and RDMA on {named(others)}: such a gang may hang"
    return Proof(Carrier.TCP, text, firm=True, node=name if others else None)


def _chosen(seen: _Seen) -> Proof:
    """NCCL chose another network than sockets on every node."""
    network = next((one.nccl.network or one.nccl.plugin for _, one in seen), "")
    network = network or "NET/IB"
    trouble = next(
        ((name, one.nccl.trouble[0]) for name, one in seen if one.nccl.trouble),
        None,
    )
    failing = "" if trouble is None else f"; {trouble[0]} warns: {trouble[1]}"
    still: list[str] = []
    blind: list[str] = []
    moved: list[str] = []
    for name, one in seen:
        ports = planned(one)
        known = [port for port in ports if not port.why]
        (moved if carried(ports) else still if known else blind).append(name)
    if still:
        return _unknown(
            f"NCCL chose {network}, but no HCA of {named(still)} has carried traffic yet{failing}"
        )
    if moved and not blind:
        return Proof(Carrier.PROVED, f"RDMA proved: {figures(seen)}{failing}", firm=True)
    if all(one.nccl.over_rdma for _, one in seen):
        summary = f"NCCL's channels go over {network}"
        whose = "the HCAs" if not moved else f"those of {named(blind)}"
        return Proof(
            Carrier.PROVED, f"RDMA proved: {summary}; {whose} have no counters{failing}", firm=True
        )
    return _unknown(
        f"NCCL chose {network}, but has opened no channel, and the HCAs of {named(blind)} have no "
        f"counters{failing}"
    )


def _counted(gang: Gang, seen: _Seen) -> Proof:
    """NCCL logged nothing: judge by the counters."""
    why = next((one.unheard for _, one in seen if one.unheard), "")
    silence = why or "no line of NCCL's was seen (gloo and other libraries write none)"
    reports = [one for _, one in gang if one is not None]
    ports = [port for one in reports for port in planned(one)]
    if len(reports) < len(gang):
        absent = [name for name, one in gang if one is None]
        return _unknown(f"{silence}, and {named(absent)} has said nothing yet")
    if any(one.shared for one in reports):
        return _unknown(f"{silence}, and other jobs share the nodes: counters are theirs, too")
    if not ports or any(port.why for port in ports):
        return _unknown(f"{silence}, and not all HCAs have counters")
    if min(one.seconds for one in reports) < COUNTED_S:
        return _unknown(f"{silence}; its counters are judged after {COUNTED_S:.0f} s")
    rdma, tcp = _closed_rdma(reports), _closed_tcp(reports)
    if rdma and _all_carried(reports) and (_share(reports) or 0.0) <= 1.0 - _CLEARLY:
        return Proof(
            Carrier.PROVED, f"RDMA proved by counters alone: {figures(seen)} ({silence})", firm=True
        )
    if tcp and not any(carried(one.ports) for one in reports):
        names = dict.fromkeys(
            each.name for one in reports for each in one.sockets if each.bytes >= NOISE_BYTES
        )
        return Proof(
            Carrier.TCP,
            f"TCP: the nodes sent each other {_amount(_sent(reports))} over "
            f"{named(list(names))}, and no HCA carried anything ({silence})",
            firm=True,
        )
    return _unknown(f"{silence}, and the counters alone do not tell: {figures(seen)}")


def _closed_rdma(reports: Sequence[FabricReport]) -> bool:
    return _closed([planned(one) for one in reports])


def _closed_tcp(reports: Sequence[FabricReport]) -> bool:
    return _closed([one.sockets for one in reports])


def _closed(nodes: Sequence[Sequence[PortFigures | SocketFigures]]) -> bool:
    """True if enough bytes went over each node, and the bytes sent equal the bytes received."""
    if any(sum(each.bytes for each in node) < COUNTED_BYTES for node in nodes):
        return False
    sent = sum(each.sent or 0 for node in nodes for each in node)
    received = sum(each.received or 0 for node in nodes for each in node)
    return abs(sent - received) <= _CLOSED * max(sent, received)


def _all_carried(reports: Sequence[FabricReport]) -> bool:
    return all(carried(planned(one)) for one in reports)


def _share(reports: Sequence[FabricReport]) -> float | None:
    ports = [port for one in reports for port in planned(one)]
    return tcp_share(ports, [each for one in reports for each in one.sockets])


def _sent(reports: Sequence[FabricReport]) -> int:
    return sum(each.sent or 0 for one in reports for each in one.sockets)


def _any_rdma(seen: _Seen) -> bool:
    return any(one.nccl.over_rdma or carried(planned(one)) for _, one in seen)


def figures(seen: _Seen) -> str:
    """Return `8/8 HCAs, 41 GB/s peak, TCP 0.1 %`: of each node if all are alike, else of the gang.
    The peak is that of one node in one direction.
    """
    reports = [one for _, one in seen]
    counts = {(carried(planned(one)), len(planned(one))) for one in reports}
    if len(counts) == 1:
        ((used, of),) = counts
        summary = f"{used}/{of} HCAs"
    else:
        used = sum(carried(planned(one)) for one in reports)
        of = sum(len(planned(one)) for one in reports)
        summary = f"{used}/{of} HCAs of {len(reports)} nodes"
    parts = [summary, f"{_amount(max(one.peak for one in reports))}/s peak"]
    share = _share(reports)
    if share is not None:
        parts.append(f"TCP {_percent(share)}")
    if any(one.shared for one in reports):
        parts.append("with other jobs on the nodes")
    return ", ".join(parts)


def _amount(count: float) -> str:
    """Return bytes in decimal units: 1 GB is 10^9."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return (
                f"{count / size:.3g} {unit}" if count < 100 * size else f"{count / size:.0f} {unit}"
            )
    return f"{count:.0f} B"


def _percent(share: float) -> str:
    if share and share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"


def _unknown(why: str) -> Proof:
    return Proof(Carrier.UNKNOWN, f"unknown, because {why}")


def evidence_text(nccl: NcclEvidence) -> str:
    """Describe NCCL's lines of one node."""
    if not nccl.processes:
        return "no lines"
    if not nccl.decided:
        return "no line about a network"
    parts = [nccl.network or nccl.plugin or "a list of HCAs"]
    if nccl.over_rdma:
        copies = f", {nccl.gdr} of them GPUDirect" if nccl.gdr else ", none of them GPUDirect"
        parts.append(f"{nccl.over_rdma} channels over RDMA{copies}")
    if nccl.over_tcp:
        parts.append(f"{nccl.over_tcp} channels over sockets")
    if nccl.over_nvlink:
        parts.append(f"{nccl.over_nvlink} channels over NVLink")
    if nccl.version:
        parts.append(f"NCCL {nccl.version}")
    return "; ".join(parts)
