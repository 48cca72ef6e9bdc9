"""Message for a node that has no port for jobs."""

from __future__ import annotations

from muster.protocol.observations.fabric import NodeFabric


def no_port_reason(fabric: NodeFabric) -> str:
    """Return the reason as text that follows the node's name."""
    if fabric.missing:
        first = fabric.missing[0]
        return f"has no port that can be used: {first.key}: {first.why}"
    if fabric.unused:
        return f"has no port that is for jobs ({fabric.unused[0]} is not: muster probe says why)"
    if fabric.unfit:
        return f"has no RDMA device that NCCL can use without a plugin: {fabric.unfit[0]}"
    return "has no RDMA device that jobs can use"
