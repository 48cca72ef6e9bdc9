"""GPUs as users see them: the job on each GPU of a node, and the GPU count of a job."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from muster.http import views as h
from muster.protocol.observations.gpus import IN_USE
from orchestrator.core.model.state import Job, Node, State


def gpu_views(node: Node) -> tuple[h.GpuView, ...]:
    """Return all GPUs of a node, in PCI order; () if its agent cannot distinguish them."""
    owners = {uuid: holder for holder, share in node.holders.items() for uuid in share.gpus}
    whole = next((it for it, share in node.holders.items() if share.whole), None)
    found = []
    for index, gpu in enumerate(node.inventory.devices):
        listed = whole is not None and bool(node.holders[whole].gpus)
        owner = owners.get(gpu.uuid) or (None if gpu.fault or listed else whole)
        job, attempt = owner or (None, None)
        found.append(
            h.GpuView(
                index=index,
                pci=gpu.pci,
                uuid=gpu.uuid or None,
                model=gpu.model,
                memory_bytes=gpu.memory_bytes or None,
                numa_node=gpu.numa_node,
                fault=gpu.fault or gpu.busy or None,
                job=job,
                attempt=attempt,
            )
        )
    return tuple(found)


def without_processes(node: Node) -> Node:
    """Return the node without the processes outside all jobs that use its GPUs: they are of others,
    and only operators see their names.
    """
    inventory = node.inventory
    if not any(gpu.busy for gpu in inventory.devices):
        return node
    devices = tuple(
        msgspec.structs.replace(gpu, busy=IN_USE) if gpu.busy else gpu for gpu in inventory.devices
    )
    return replace(node, inventory=msgspec.structs.replace(inventory, devices=devices))


def job_gpus(state: State, job: Job) -> int | None:
    """The number of GPUs that a job has, or requests.

    Returns None if the job requests whole nodes and has none yet.
    """
    attempt, wanted = job.current, job.spec.resources.gpu
    if attempt is None:
        return None if wanted is None else wanted * job.spec.nodes
    return sum(
        len(task.gpus) or (state.nodes[task.node].inventory.gpus if wanted is None else wanted)
        for task in attempt.present
    )
