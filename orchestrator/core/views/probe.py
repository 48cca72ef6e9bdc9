"""The hardware of a node as its agent reported it, in the form that users see."""

from __future__ import annotations

from msgspec.structs import replace

from muster.http.node_probe import NodeProbe, ProbedFabric, ProbedPort
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Fingerprint
from muster.protocol.observations.fabric import FabricPort
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Node, State
from orchestrator.core.views.display import node_view


def probe_view(state: State, node: Node, now: Instant) -> NodeProbe:
    view, inventory = node_view(node, now), node.inventory
    return NodeProbe(
        node=node.name,
        connected=node.link is LinkState.CONNECTED,
        version=node.version,
        boot_id=node.boot_id,
        machine_id=inventory.machine_id,
        hostname=inventory.hostname,
        cpus=inventory.cpus,
        memory_bytes=inventory.memory_bytes,
        python=inventory.python,
        gpus=inventory.devices,
        interfaces=view.interfaces,
        rdma=view.rdma,
        ports=node.ports,
        disks=node.disks,
        fabric=_last_fabric(state, node),
    )


def without_software(fabric: ProbedFabric) -> ProbedFabric:
    """Return the fabric without what was found in the environment of its job."""
    return replace(fabric, nccl="", nccl_conf={}, software=Fingerprint())


def _last_fabric(state: State, node: Node) -> ProbedFabric | None:
    """Return the fabric of the task that was placed on the node last and was prepared."""
    found = [
        (attempt.placed_at, task.job, task.attempt, task.prepared)
        for job in state.jobs.values()
        for attempt in job.attempts
        for task in attempt.tasks
        if task.node == node.name and task.prepared is not None and task.prepared.fabric is not None
    ]
    if not found:
        return None
    _, job, number, prepared = max(found, key=lambda it: it[:3])
    fabric = prepared.fabric
    if fabric is None:
        return None
    return ProbedFabric(
        job=job,
        attempt=number,
        ports=tuple(_port(port) for port in fabric.ports),
        missing={port.key: port.why for port in fabric.missing},
        unused=fabric.unused,
        stops=fabric.stops,
        unseen=fabric.unseen,
        gpudirect=fabric.gpudirect,
        nccl=fabric.nccl,
        nccl_conf=fabric.nccl_conf,
        settings=fabric.settings,
        versions=fabric.versions,
        software=prepared.fingerprint,
    )


def _port(port: FabricPort) -> ProbedPort:
    return ProbedPort(
        name=port.name,
        port=port.port,
        pci=port.pci,
        link_layer=port.link_layer,
        model=port.model,
        rate_gbps=port.rate_gbps,
        numa_node=port.numa_node,
        netdev=port.netdev,
        mtu=port.mtu,
        addresses=port.addresses,
        near=port.near,
    )
