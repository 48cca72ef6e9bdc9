"""A job's fabric plan for people: `muster show --fabric` and `muster explain rdma`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.cli.output.format import print_line, safe
from muster.cli.output.table import Column, print_table
from muster.cli.output.traffic_view import print_traffic
from muster.http.fabric import FabricView, NodeFabricView, PlanView, RailView
from muster.protocol.text import named

_RAILS: Final = (
    Column("RAIL", right=True),
    Column("HCA"),
    Column("PCI", drop=2),
    Column("LINK"),
    Column("GBIT/S", right=True),
    Column("NETDEV", elastic=True),
    Column("GID", right=True, drop=1),
    Column("NUMA", right=True, drop=3),
    Column("NEAREST TO GPU", elastic=True, wraps=True),
)
_SETTINGS: Final = (
    Column("SET"),
    Column("WHY", elastic=True, wraps=True),
)
_NAMES: Final = 4


def print_fabric(view: FabricView) -> None:
    """Print the whole plan. Nodes with the same plan are shown together."""
    attempt = "" if view.attempt is None else f", attempt {view.attempt}"
    print(f"job {view.job}{attempt}  rdma: {view.rdma}")
    if view.plan is None and view.refused is not None:
        print_line(view.refused, "the gang was refused: ")
        return
    if view.plan is None:
        print_line("there is no plan yet: it is created when all nodes of the gang are ready")
        return
    print_line(view.plan.text)
    for note in view.plan.notes:
        print_line(note, "note: ")
    if view.plan.network:
        print_line(f"network {view.plan.network}")
    for group in _same_plans(view.plan):
        _print_group(group, view.plan)
    if view.proof is not None:
        print_traffic(view.proof)


def _same_plans(plan: PlanView) -> list[list[NodeFabricView]]:
    groups: dict[object, list[NodeFabricView]] = {}
    for node in plan.nodes:
        ports = tuple((port.hca, port.pci, port.netdev, port.gid_index) for port in node.ports)
        key = ports, node.missing, node.settings, node.nccl
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _print_group(group: Sequence[NodeFabricView], plan: PlanView) -> None:
    first = group[0]
    names = named([safe(node.node) for node in group], _NAMES)
    print(f"\n{'node' if len(group) == 1 else 'nodes'} {names}")
    versions = [f"NCCL {first.nccl}" if first.nccl else "", _gpudirect(first)]
    versions += [f"{name} {version}" for name, version in sorted(first.versions.items())]
    if any(versions):
        print_line(", ".join(text for text in versions if text))
    if first.ports:
        rows = [_row(first, at, plan.rails) for at in range(len(first.ports))]
        print_table(_RAILS, rows, indent="  ")
    for text in first.missing:
        print_line(text, "missing: ")
    if first.settings:
        rows = []
        for setting in first.settings:
            plan_s = "" if setting.planned is None else f" (the plan's: {setting.planned})"
            rows.append([f"{setting.name}={setting.value}", f"{setting.why}{plan_s}"])
        print_table(_SETTINGS, rows, indent="  ")


def _gpudirect(node: NodeFabricView) -> str:
    return f"GPUDirect by {node.gpudirect}" if node.gpudirect not in (None, "none") else ""


def _row(node: NodeFabricView, at: int, rails: Sequence[RailView]) -> list[str]:
    port = node.ports[at]
    rail = rails[at] if at < len(rails) else None
    link = "" if rail is None else " ".join(word for word in (rail.link_layer, rail.model) if word)
    return [
        str(port.rail),
        port.hca,
        port.pci or "-",
        link or "-",
        "-" if port.rate_gbps is None else f"{port.rate_gbps:g}",
        port.netdev or "-",
        "-" if port.gid_index is None else str(port.gid_index),
        "-" if port.numa_node is None else str(port.numa_node),
        ", ".join(map(str, port.gpus)),
    ]
