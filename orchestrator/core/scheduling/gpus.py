"""Allocation of a node's GPUs, CPUs and memory to tasks. Pure.

A job that requests GPUs shares a node with others like it, if the node's agent can divide its GPUs.
Any other job has its nodes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import Inventory
from muster.protocol.observations.gpus import IN_USE, GpuDevice, divides, is_model, usable
from muster.spec.model import JobSpec, Resources
from orchestrator.core.model.state import Node, Share, State

Holder = tuple[JobId, int]


def matching(inventory: Inventory, wanted: Resources) -> int:
    """Number of usable GPUs of the requested model on a node, free or not."""
    if wanted.gpu_model is None:
        return inventory.gpus
    if inventory.devices:
        return len(_of_model(usable(inventory.devices), wanted.gpu_model))
    return inventory.gpus if is_model(wanted.gpu_model, inventory.gpu_model) else 0


def shares(spec: JobSpec, inventory: Inventory) -> bool:
    """True if the job gets GPUs of such a node, possibly all of them, and not the whole node."""
    return bool(spec.resources.gpu) and divides(inventory.devices)


def free_gpus(state: State, node: Node) -> tuple[GpuDevice, ...]:
    """The GPUs that no job holds, in PCI order."""
    if any(share.whole for share in node.holders.values()):
        return ()
    taken = {uuid for share in node.holders.values() for uuid in share.gpus}
    taken |= _of_siblings(state, node)
    there = usable(node.inventory.devices)
    return tuple(gpu for gpu in there if gpu.uuid not in taken and not gpu.busy)


def used_by_strangers(node: Node) -> str:
    """Text on the GPUs that processes outside any job use, without the names of these; empty if
    there are none.
    """
    used = [gpu for gpu in node.inventory.devices if gpu.busy and not gpu.fault]
    if not used:
        return ""
    more = f", and {len(used) - 1} more are in use" if len(used) > 1 else ""
    return f"GPU {used[0].pci} {IN_USE}{more}"


def room(state: State, spec: JobSpec, node: Node) -> int:
    """Number of free GPUs that suit the job on a node that it may share."""
    free = free_gpus(state, node)
    model = spec.resources.gpu_model
    return len(free if model is None else _of_model(free, model))


def may_have_room(spec: JobSpec, node: Node) -> bool:
    """True if a node with holders could have room, as a quick check: False is certain."""
    shares = node.holders.values()
    if not spec.resources.gpu or any(share.whole for share in shares):
        return False
    # The list of devices decides: a GPU that a job holds may have vanished from the node.
    held = {uuid for share in shares for uuid in share.gpus}
    left = sum(device.uuid not in held for device in node.inventory.devices)
    return left >= spec.resources.gpu


def given(state: State, spec: JobSpec, name: NodeName) -> tuple[str, ...]:
    """UUIDs of the GPUs that a task of the job gets on a node with room for it, in PCI order.

    () means the whole node. A job that has a node alone gets its sound GPUs.
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
    """The share of its node that a task with `gpus` holds."""
    wanted = spec.resources
    return Share(gpus, not (wanted.gpu and gpus), wanted.cpu or 0, wanted.memory_bytes or 0)


def free_cpus(node: Node) -> int:
    """CPUs that no job on the node has requested."""
    return node.inventory.cpus - sum(share.cpus for share in node.holders.values())


def free_memory(node: Node) -> int:
    """Bytes of memory that no job on the node has requested."""
    return node.inventory.memory_bytes - sum(it.memory_bytes for it in node.holders.values())


def gpus_used(node: Node) -> int:
    """Number of the node's usable GPUs that jobs hold."""
    if any(share.whole for share in node.holders.values()):
        return node.inventory.gpus
    return min(node.inventory.gpus, sum(len(share.gpus) for share in node.holders.values()))


def siblings_hold(state: State, node: Node) -> tuple[Holder, ...]:
    """The attempts that hold GPUs of this node through another agent on the same machine."""
    if not node.inventory.shared_host:
        return ()
    mine = {gpu.uuid for gpu in usable(node.inventory.devices)}
    return tuple(
        holder
        for other in _siblings(state, node)
        for holder, share in other.holders.items()
        if mine & _held(other, share)
    )


def one_per_machine(nodes: Iterable[Node]) -> list[Node]:
    """Drop nodes whose usable GPUs an earlier node in the list has, too.

    Several agents may share a machine; this way no gang gets a GPU twice.
    """
    seen: set[tuple[str, str]] = set()
    kept = []
    for node in nodes:
        devices = usable(node.inventory.devices) if node.inventory.shared_host else ()
        if devices:
            mine = {(node.inventory.machine_id, gpu.uuid or gpu.pci) for gpu in devices}
            if mine & seen:
                continue
            seen |= mine
        kept.append(node)
    return kept


def choose(free: Sequence[GpuDevice], wanted: int) -> tuple[str, ...]:
    """Choose `wanted` of the free GPUs, as near to each other as possible.

    Near GPUs share an HCA and memory. Of equally near groups the smallest is taken, so that larger
    ones stay whole.
    """
    picked = {gpu.uuid for gpu in _picked(free, wanted, 0)}
    return tuple(gpu.uuid for gpu in free if gpu.uuid in picked)


def _picked(free: Sequence[GpuDevice], wanted: int, depth: int) -> list[GpuDevice]:
    """Choose from GPUs that are all in one group of this depth."""
    picked: list[GpuDevice] = []
    groups = _groups(free, depth)
    while wanted > 0:
        if len(groups) == 1:
            (free,) = groups
            if depth >= _deepest(free):
                return [*picked, *free[:wanted]]
            depth += 1
            groups = _groups(free, depth)
            continue
        groups.sort(key=len)
        found = next((group for group in groups if len(group) >= wanted), None)
        if found is not None:
            depth += 1
            groups = _groups(found, depth)
            continue
        # No group is large enough: take the largest whole, then the rest from the others.
        largest = groups.pop(max(range(len(groups)), key=lambda place: len(groups[place])))
        picked += largest
        wanted -= len(largest)
    return picked


def _groups(free: Sequence[GpuDevice], depth: int) -> list[list[GpuDevice]]:
    """Group the GPUs by NUMA node and by the first `depth` steps of their PCI path."""
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
    """Other agents on the same machine; they see the same GPUs."""
    if not (node.inventory.shared_host and node.inventory.devices):
        return
    for other in state.nodes.values():
        if other is not node and other.inventory.machine_id == node.inventory.machine_id:
            yield other


def _held(node: Node, share: Share) -> set[str]:
    if share.gpus:
        return set(share.gpus)
    return {gpu.uuid for gpu in usable(node.inventory.devices)}
