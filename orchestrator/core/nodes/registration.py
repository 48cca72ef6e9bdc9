"""Registration of nodes in the journal, at a bounded rate.

The state has what an agent says at once. The journal has it within minutes, without what changes
all the time: after a restart of the coordinator, each agent's hello brings that again. A new name
and a new identity (agent, boot) are different: later verdicts rest on them, so that they are in the
journal first or the agent is refused.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Hello, Inventory, Refused
from muster.spec.units import duration_text
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.registrations import (
    CONNECTION_EVERY_S,
    REGISTRATION_EVERY_S,
    REGISTRATIONS_AT_ONCE,
    connection_wait_s,
    registration_wait_s,
)
from orchestrator.core.model.state import Node, State

_CHANGES_AT_ONCE: Final = REGISTRATIONS_AT_ONCE // 2
"""The other half is for new identities, as an agent with one is refused beyond that."""


def refuse_registration(state: State, hello: Hello, now: Instant, limits: Limits) -> Refused | None:
    """Return why the journal takes no registration that this hello needs now, or None."""
    node = state.nodes.get(hello.node)
    if node is not None and connection_wait_s(node.connect_due, now.mono):
        return Refused(
            "connects_often",
            f"{hello.node} connects too often: one connection in "
            f"{duration_text(CONNECTION_EVERY_S)} is accepted; it retries without help; find out "
            "why its connections break",
            soon=True,
        )
    if node is not None and not _new_identity(node, hello):
        return None
    if state.disk_full:
        return Refused(
            "disk_full",
            f"{hello.node} is new, or has rebooted, and cannot be registered now: "
            f"{state.disk_full}; it retries without help",
        )
    if node is not None:
        if not registration_wait_s(node.record_due, now.mono):
            return None
        return Refused(
            "registers_often",
            f"{hello.node} connects with another boot or identity too often: one registration in "
            f"{duration_text(REGISTRATION_EVERY_S)} is accepted; it retries without help; find out "
            "why its machine reboots so often",
        )
    if len(state.nodes) >= limits.nodes_max:
        return Refused(
            "too_many_nodes",
            f"{hello.node} is new, and {limits.nodes_max} nodes are known, the limit: remove those "
            "that are gone (muster node remove), or raise limits.agents_max of the coordinator",
        )
    if state.new_nodes.counted(now.mono).number >= limits.new_nodes_per_hour:
        return Refused(
            "too_many_new_nodes",
            f"{hello.node} is new, and so were {limits.new_nodes_per_hour} others within an hour, "
            "the limit: it retries without help; if they are yours, raise "
            "limits.new_nodes_per_hour of the coordinator",
        )
    return None


def registered(state: State, hello: Hello, now: Instant) -> list[f.Fact]:
    """Return the facts for what a hello that was not refused says of its node."""
    node = state.nodes.get(hello.node)
    if node is None or _new_identity(node, hello):
        who = hello.node, hello.agent_id, hello.boot_id, hello.version
        return _recorded(*who, hello.inventory, now, new=node is None)
    return described(state, node, hello.version, hello.inventory, now)


def described(
    state: State, node: Node, version: str, inventory: Inventory, now: Instant
) -> list[f.Fact]:
    """Return the facts for what a known node has now, its identity being the same."""
    steady = lasting(inventory)
    same = version == node.version and inventory == node.inventory
    news = node.unrecorded or (
        not same and (version, steady) != (node.version, lasting(node.inventory))
    )
    wait_s = registration_wait_s(node.record_due, now.mono, _CHANGES_AT_ONCE)
    if news and not state.disk_full and not wait_s:
        return _recorded(node.name, node.agent_id, node.boot_id, version, inventory, now)
    return [] if same else [lf.NodeDescribed(node.name, version, inventory, unrecorded=news)]


def _recorded(
    name: NodeName,
    agent_id: str,
    boot_id: str,
    version: str,
    inventory: Inventory,
    now: Instant,
    *,
    new: bool = False,
) -> list[f.Fact]:
    return [
        cf.NodeRegistered(name, agent_id, boot_id, version, lasting(inventory)),
        lf.NodeDescribed(name, version, inventory, recorded_at=now.mono, new=new),
    ]


def lasting(inventory: Inventory) -> Inventory:
    """The inventory without what passes: which GPUs foreign processes use."""
    if not any(gpu.busy for gpu in inventory.devices):
        return inventory
    devices = tuple(replace(gpu, busy="") if gpu.busy else gpu for gpu in inventory.devices)
    return replace(inventory, devices=devices)


def _new_identity(node: Node, hello: Hello) -> bool:
    return (node.agent_id, node.boot_id) != (hello.agent_id, hello.boot_id)
