"""Which GPUs of a node a task gets, and what of a node is left. Pure.

A job that asks for GPUs shares a node with others like it, where the node's agent can tell its GPUs
apart; any other job has its nodes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from muster.protocol.control_channel import Inventory
from muster.protocol.gpus import GpuDevice, divides, is_model, usable
from muster.protocol.ids import JobId, NodeName
from muster.spec.model import JobSpec, Resources
from orchestrator.core.model.state import Node, Share, State

Holder = tuple[JobId, int]


def matching(inventory: Inventory, wanted: Resources) -> int:
    """How many GPUs of the model that a job wants jobs may be given there, free or not."""
    if wanted.gpu_model is None:
        return inventory.gpus
    if inventory.devices:
        return len(_of_model(usable(inventory.devices), wanted.gpu_model))
    return inventory.gpus if is_model(wanted.gpu_model, inventory.gpu_model) else 0


def shares(spec: JobSpec, inventory: Inventory) -> bool:
    """Whether a job gets a part of such a node, be that all of its GPUs, and not the node."""
    return bool(spec.resources.gpu) and divides(inventory.devices)


def free_gpus(state: State, node: Node) -> tuple[GpuDevice, ...]:
    """Those that nobody has, in PCI order."""
    if any(share.whole for share in node.holders.values()):
        return ()
    taken = {uuid for share in node.holders.values() for uuid in share.gpus}
    taken |= _of_siblings(state, node)
    there = usable(node.inventory.devices)
    return tuple(gpu for gpu in there if gpu.uuid not in taken and not gpu.busy)


def used_by_strangers(node: Node) -> str:
    """The GPUs that processes of no job use, in words that follow the node's name; "" for none."""
    used = [gpu for gpu in usable(node.inventory.devices) if gpu.busy]
    if not used:
        return ""
    more = f", and {len(used) - 1} more are used so" if len(used) > 1 else ""
    return f"GPU {used[0].pci} {used[0].busy}{more}"


def room(state: State, spec: JobSpec, node: Node) -> int:
    """How many GPUs that suit the job are free on a node that it may share."""
    free = free_gpus(state, node)
    model = spec.resources.gpu_model
    return len(free if model is None else _of_model(free, model))


def may_have_room(spec: JobSpec, node: Node) -> bool:
    """Whether `room` need be asked of a node that somebody has: False is certain."""
    shares = node.holders.values()
    if not spec.resources.gpu or any(share.whole for share in shares):
        return False
    # One that a job was given may be gone from the node since.
    held = {uuid for share in shares for uuid in share.gpus}
    left = sum(device.uuid not in held for device in node.inventory.devices)
    return left >= spec.resources.gpu


def given(state: State, spec: JobSpec, name: NodeName) -> tuple[str, ...]:
    """The UUIDs that a task of the job gets on a node that has room for it, in PCI order; () for
    all of the node. A job that has a node alone gets those of its GPUs that are sound.
    """
    node = state.nodes[name]
    devices = node.inventory.devices
    if shares(spec, node.inventory):
        free = free_gpus(state, node)
        model = spec.resources.gpu_model
        return choose(free if model is None else _of_model(free, model), spec.resources.gpu or 0)
    sound = usable(devices)
    if spec.resources.gpu is None and len(sound) < len(devices) and divides(devices):
        return tuple(gpu.uuid for gpu in sound)
    return ()


def share_of(spec: JobSpec, gpus: tuple[str, ...]) -> Share:
    """What a task that was given `gpus` has of its node."""
    wanted = spec.resources
    return Share(gpus, not (wanted.gpu and gpus), wanted.cpu or 0, wanted.memory_bytes or 0)


def free_cpus(node: Node) -> int:
    """CPUs that no job on the node has asked for."""
    return node.inventory.cpus - sum(share.cpus for share in node.holders.values())


def free_memory(node: Node) -> int:
    """Bytes of memory that no job on the node has asked for."""
    return node.inventory.memory_bytes - sum(it.memory_bytes for it in node.holders.values())


def gpus_used(node: Node) -> int:
    """How many of the GPUs that jobs may be given somebody has."""
    if any(share.whole for share in node.holders.values()):
        return node.inventory.gpus
    return min(node.inventory.gpus, sum(len(share.gpus) for share in node.holders.values()))


def siblings_hold(state: State, node: Node) -> tuple[Holder, ...]:
    """Who has GPUs of this node through another agent of its machine."""
    mine = {gpu.uuid for gpu in usable(node.inventory.devices)}
    return tuple(
        holder
        for other in _siblings(state, node)
        for holder, share in other.holders.items()
        if mine & _held(other, share)
    )


def one_a_machine(nodes: Iterable[Node]) -> list[Node]:
    """Without those whose GPUs another agent of their machine has, before them: no gang gets one
    GPU twice."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for node in nodes:
        if node.inventory.shared_host and node.inventory.devices:
            devices = node.inventory.devices
            mine = {(node.inventory.machine_id, gpu.uuid or gpu.pci) for gpu in devices}
            if mine & seen:
                continue
            seen |= mine
        kept.append(node)
    return kept


def choose(free: Sequence[GpuDevice], wanted: int) -> tuple[str, ...]:
    """`wanted` of the GPUs that are free, as near to each other as can be, so that they share an
    HCA and memory; of equals the group with the fewest to spare, so that larger ones stay whole.
    """
    picked = {gpu.uuid for gpu in _picked(free, wanted, 0)}
    return tuple(gpu.uuid for gpu in free if gpu.uuid in picked)


def _picked(free: Sequence[GpuDevice], wanted: int, depth: int) -> list[GpuDevice]:
    """All of `free` are in one group of this depth."""
    groups = _groups(free, depth)
    while len(groups) == 1 and depth < _deepest(free):
        depth += 1
        groups = _groups(free, depth)
    if len(groups) == 1 or wanted == len(free):
        return list(free[:wanted])
    for group in sorted(groups, key=len):
        if len(group) >= wanted:
            return _picked(group, wanted, depth + 1)
    # No group alone suffices: the largest whole, then the rest of the others.
    largest = max(groups, key=len)
    others = [gpu for group in groups if group is not largest for gpu in group]
    return [*largest, *_picked(others, wanted - len(largest), depth)]


def _groups(free: Sequence[GpuDevice], depth: int) -> list[list[GpuDevice]]:
    """Those that share a NUMA node (depth 0), and the way through the PCI tree so far."""
    found: dict[object, list[GpuDevice]] = {}
    for gpu in free:
        found.setdefault((gpu.numa_node, gpu.path[:depth]), []).append(gpu)
    return list(found.values())


def _deepest(free: Sequence[GpuDevice]) -> int:
    return max(len(gpu.path) for gpu in free)


def _of_model(devices: Sequence[GpuDevice], model: str) -> tuple[GpuDevice, ...]:
    return tuple(gpu for gpu in devices if is_model(model, gpu.model))


def _of_siblings(state: State, node: Node) -> set[str]:
    return {
        uuid
        for other in _siblings(state, node)
        for share in other.holders.values()
        for uuid in _held(other, share)
    }


def _siblings(state: State, node: Node) -> Iterator[Node]:
    """Agents that share a machine see the same GPUs."""
    if not (node.inventory.shared_host and node.inventory.devices):
        return
    for other in state.nodes.values():
        if other is not node and other.inventory.machine_id == node.inventory.machine_id:
            yield other


def _held(node: Node, share: Share) -> set[str]:
    if share.gpus:
        return set(share.gpus)
    return {gpu.uuid for gpu in usable(node.inventory.devices)}
