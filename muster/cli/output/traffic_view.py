"""Traffic evidence of a job for people: the second half of `muster show --fabric`."""

from __future__ import annotations

from typing import Final

from muster.cli.output.format import print_line, safe
from muster.cli.output.table import Column, print_table
from muster.protocol.observations.traffic import JobProof, NodeProof, PortFigures

_PORTS: Final = (
    Column("HCA"),
    Column("SENT", right=True),
    Column("RECEIVED", right=True),
    Column("PEAK/S", right=True),
    Column("FLAPS", right=True),
    Column("FAULTS", elastic=True, wraps=True),
)
_UNEVEN: Final = 0.2
"""Imbalance from which it is reported: the share by which the least busy rail is below the mean."""


def print_traffic(proof: JobProof) -> None:
    """Print the verdict, then each node's figures."""
    print("\ntraffic")
    print_line(proof.text)
    for node in proof.nodes:
        _print_node(node)


def _print_node(node: NodeProof) -> None:
    print(f"\n  node {safe(node.node)}")
    parts = [f"observed for {node.seconds:.0f} s", f"NCCL: {node.said}"]
    if node.ports:
        parts.insert(1, f"peak {amount(node.peak)}/s")
    if node.tcp_share is not None:
        parts.append(f"TCP {100 * node.tcp_share:.1f} %")
    print_line("; ".join(parts), "  ")
    if node.gaps:
        times = "once" if node.gaps == 1 else f"{node.gaps} times"
        print_line(
            f"not sampled {times}, for {node.gap_s:.0f} s in all; the totals are whole", "  "
        )
    if node.shared:
        print_line("other jobs ran on the node: their traffic is counted, too", "  ")
    if node.imbalance is not None and node.imbalance >= _UNEVEN:
        print_line(
            f"uneven: the least busy HCA carried {100 * node.imbalance:.0f} % less than the mean",
            "  ",
        )
    for text in node.nccl.trouble:
        print_line(text, "  NCCL warns: ")
    if len(node.ports) > 1 and all(port.why and not port.flaps for port in node.ports):
        why = "; ".join(dict.fromkeys(port.why for port in node.ports))
        print_line(f"no counters of its {len(node.ports)} HCAs: {why}", "  ")
    elif node.ports:
        print_table(_PORTS, [_row(port) for port in node.ports], indent="    ")
    for socket in node.sockets:
        if socket.sent is not None and socket.received is not None:
            print_line(
                f"{socket.name}: sent {amount(socket.sent)}, received {amount(socket.received)}, "
                f"peak {amount(socket.peak)}/s, all traffic of the node there",
                "  ",
            )


def _row(port: PortFigures) -> list[str]:
    if port.why:
        return [port.port, "-", "-", "-", _or_dash(port.flaps), f"unknown: {port.why}"]
    faults = ", ".join(f"{name} {count}" for name, count in port.errors.items())
    return [
        port.port,
        "-" if port.sent is None else amount(port.sent),
        "-" if port.received is None else amount(port.received),
        amount(port.peak),
        _or_dash(port.flaps),
        faults
        if port.planned or not port.bytes
        else ", ".join(filter(None, ("unplanned", faults))),
    ]


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def amount(count: float) -> str:
    """Format bytes in decimal units: 1 GB is 10^9."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
