"""Observations of nodes by their agents, within bounds."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import NodeChanges, merge_inventory
from muster.protocol.link.inventory_bounds import inventory_problem
from muster.protocol.observations.disks import DiskHealth, sound
from muster.protocol.observations.gpus import problem as gpu_problem
from muster.protocol.observations.interfaces import problem
from muster.protocol.observations.node_settings import NodeSetting
from muster.protocol.observations.traffic import PortHealth
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.model.state import State
from orchestrator.core.nodes.hardware import hardware_facts
from orchestrator.core.nodes.registration import described

_DISKS_MAX: Final = 8
_WHY_MAX: Final = 1000


def change_facts(state: State, name: NodeName, changes: NodeChanges, now: Instant) -> list[f.Fact]:
    """Return the facts for changes that a connected node reports."""
    return [
        *_inventory_facts(state, name, changes, now),
        *health_facts(state, name, changes),
        *hardware_facts(state, name, changes.hardware, now),
        *settings_facts(state, name, changes.settings),
    ]


def health_facts(state: State, name: NodeName, changes: NodeChanges) -> list[f.Fact]:
    """Return the facts for a node's RDMA ports, its disks, and whether it takes jobs."""
    node = state.nodes.get(name)
    known: tuple[tuple[PortHealth, ...], tuple[DiskHealth, ...], str, str] = ((), (), "", "")
    if node is not None:
        known = (node.ports, node.disks, node.refuses_jobs, node.no_torch)
    ports = known[0] if changes.ports is None else changes.ports
    disks = known[1] if changes.disks is None else changes.disks
    refuses = known[2] if changes.refuses_jobs is None else _one_line(changes.refuses_jobs)
    no_torch = known[3] if changes.no_torch is None else _one_line(changes.no_torch)[:_WHY_MAX]
    disks = tuple(disk for disk in disks[:_DISKS_MAX] if sound(disk))
    if (ports, disks, refuses, no_torch) == known:
        return []
    return [lf.NodeHealthReported(name, ports, disks, refuses, no_torch)]


def settings_facts(
    state: State, name: NodeName, settings: tuple[NodeSetting, ...] | None
) -> list[f.Fact]:
    """Return the fact for the settings of a node's agent, if they are reported and new."""
    if settings is None:
        return []
    shown = tuple(
        NodeSetting(_one_line(it.name), _one_line(it.value), _one_line(it.origin))
        for it in settings
    )
    node = state.nodes.get(name)
    if shown == (() if node is None else node.settings):
        return []
    return [lf.NodeSettingsReported(name, shown)]


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _inventory_facts(
    state: State, name: NodeName, changes: NodeChanges, now: Instant
) -> list[f.Fact]:
    """Describe the node again if its interfaces, GPUs or RDMA hardware have changed."""
    node = state.nodes[name]
    inventory = merge_inventory(node.inventory, _usable(changes))
    if inventory is not node.inventory and inventory_problem(inventory):
        inventory = node.inventory
    if inventory is node.inventory and not node.unrecorded:
        return []
    return described(state, node, node.version, inventory, now)


def _usable(changes: NodeChanges) -> NodeChanges:
    """Drop interfaces and GPUs that are unusable or too many: the node keeps its last ones."""
    if changes.interfaces is not None and problem(changes.interfaces):
        changes = replace(changes, interfaces=None)
    if changes.devices is not None and gpu_problem(changes.devices):
        changes = replace(changes, devices=None)
    return changes
