"""The fabric plan as users see it: each node's ports and settings, and why."""

from __future__ import annotations

from typing import Final

from muster.fabric.gids import Family
from muster.fabric.model import ETHERNET
from muster.fabric.nccl_version import DYNAMIC, ROBUST, version_of
from muster.http.fabric import (
    FabricView,
    NodeFabricView,
    PlannedPort,
    PlanView,
    RailView,
    VariableView,
)
from muster.protocol.observations.fabric import FabricPort, NodeFabric
from muster.protocol.refusal_codes import RefusalCode
from muster.spec.model import Rdma, env_on_node
from orchestrator.core.fabric.nccl_conf import CHOOSE
from orchestrator.core.fabric.port_diff import gids
from orchestrator.core.gangs.fabric import node_plan
from orchestrator.core.gangs.launch import fabric_environment
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.fabric_plan import FabricPlan, FabricTransport, NodePlan
from orchestrator.core.model.state import Attempt, Job, Task
from orchestrator.core.monitoring.traffic import nccl_lines, proof_view, watched
from orchestrator.core.scheduling.rendezvous import endpoint

_OURS: Final = ("NCCL_", "GLOO_", "UCX_")
_OF_A_FILE: Final = "a file of NCCL on the node overrides it"
_NOTHING: Final = FabricPlan(
    FabricTransport.OPEN, "TCP: no node has an RDMA device that jobs can use"
)


def fabric_view(job: Job) -> FabricView:
    """The fabric of a job's last attempt."""
    rdma = job.spec.rdma.value
    if not job.attempts:
        return FabricView(job.id, None, rdma, None)
    attempt = job.attempts[-1]
    plan = plan_of(attempt)
    view = None if plan is None else _plan(job, attempt, plan)
    proof = None if attempt.released_at is None else proof_view(job, attempt)
    cause = attempt.cause if was_refused(attempt) else None
    refused = None if cause is None else cause.text
    return FabricView(job.id, attempt.number, rdma, view, proof, refused)


def was_refused(attempt: Attempt) -> bool:
    """True if the gang's nodes do not match, so that it never had a plan."""
    cause = attempt.cause
    differ = cause is not None and cause.refusal == RefusalCode.FABRIC_DIFFERS
    return differ and plan_of(attempt) is None


def plan_of(attempt: Attempt) -> FabricPlan | None:
    """Return the plan of an attempt, even if there was nothing to plan.

    Returns None before the gang is arranged.
    """
    if attempt.prepared_at is None or attempt.phase is AttemptPhase.PREPARING:
        return None
    return attempt.fabric or _NOTHING


def _plan(job: Job, attempt: Attempt, plan: FabricPlan) -> PlanView:
    return PlanView(
        transport=plan.transport.value,
        text=plan.text,
        rails=tuple(
            RailView(
                number,
                rail.link_layer or None,
                rail.model or None,
                rail.rate_gbps,
                rail.sm_lid,
                rail.mtu,
            )
            for number, rail in enumerate(plan.rails)
        ),
        nodes=tuple(
            _node(job, attempt, plan, task) for task in attempt.tasks if task.prepared is not None
        ),
        notes=plan.notes,
        network=attempt.network or None,
    )


def _node(job: Job, attempt: Attempt, plan: FabricPlan, task: Task) -> NodeFabricView:
    assert task.prepared is not None
    fabric = task.prepared.fabric or NodeFabric()
    mine = node_plan(job, attempt, task)
    where = endpoint(attempt, task)
    family: Family = "AF_INET6" if plan.family == "AF_INET6" else "AF_INET"
    return NodeFabricView(
        node=task.node,
        node_rank=task.rank,
        ports=_ports(fabric, mine, family),
        missing=tuple(f"{port.key}: {port.why}" for port in fabric.missing),
        interface=where.interface or None,
        address=where.address,
        nccl=mine.nccl or None,
        gpudirect=fabric.gpudirect or None,
        versions=fabric.versions,
        fingerprint=fabric.fingerprint or None,
        settings=_settings(job, attempt, plan, task, mine),
    )


def _ports(fabric: NodeFabric, mine: NodePlan, family: Family) -> tuple[PlannedPort, ...]:
    by_key = {port.key: port for port in fabric.ports}
    made = []
    for rail, key in enumerate(mine.hcas):
        port = by_key.get(key) or FabricPort(key.rpartition(":")[0], 1)
        found = gids(port, family) if port.link_layer == ETHERNET else None
        forced = mine.env.get("NCCL_IB_GID_INDEX")
        index = None if found is None else found.index
        made.append(
            PlannedPort(
                rail,
                key,
                port.pci or None,
                port.numa_node,
                port.rate_gbps,
                port.netdev or None,
                port.addresses,
                index if index is None or forced in (None, CHOOSE) else int(forced),
                port.near,
            )
        )
    return tuple(made)


def _settings(
    job: Job, attempt: Attempt, plan: FabricPlan, task: Task, mine: NodePlan
) -> tuple[VariableView, ...]:
    lines = nccl_lines(job.spec, task, watched(attempt))
    # Its path differs on each node.
    lines.pop("NCCL_DEBUG_FILE", None)
    planned = fabric_environment(job, attempt, task) | lines
    own = env_on_node(job.spec, task.rank)
    made = []
    for name, value in planned.items():
        given = own.get(name, value)
        if given == value:
            made.append(VariableView(name, value, _why(name, value, job, attempt, plan, mine)))
        else:
            why = "the job's own env overrides it"
            made.append(VariableView(name, given, why, planned=value))
    made += [
        VariableView(name, value, "set in the job's own env")
        for name, value in own.items()
        if name.startswith(_OURS) and name not in planned
    ]
    return tuple(made)


def _why(
    name: str, value: str, job: Job, attempt: Attempt, plan: FabricPlan, mine: NodePlan
) -> str:
    match name:
        case "NCCL_IB_HCA":
            return (
                "the ports of the rails that all nodes share, exactly (=): without it mlx5_1 means "
                "mlx5_10, too"
            )
        case "UCX_NET_DEVICES" if mine.hcas:
            return "the same ports, for UCX"
        case "UCX_NET_DEVICES":
            return "disables RDMA for UCX, too"
        case "NCCL_IB_GID_INDEX":
            version = version_of(mine.nccl)
            if version is not None and version < DYNAMIC:
                return f"NCCL {mine.nccl} uses entry 0 by default"
            if value == CHOOSE:
                return _OF_A_FILE
            if version is None or version >= ROBUST:
                return "NCCL's own choice is another address"
            return f"NCCL {mine.nccl} fails with tables with holes, as on this node"
        case "NCCL_IB_ADDR_FAMILY" if value == "AF_INET":
            return _OF_A_FILE
        case "NCCL_IB_ADDR_FAMILY":
            return "not all ports have an IPv4 address, all have an IPv6 one"
        case "NCCL_IB_ADDR_RANGE":
            return "the agent's configuration wants addresses of this network (fabric.include)"
        case "UCX_IB_GID_INDEX":
            return "this UCX does not find the entry itself"
        case "NCCL_CROSS_NIC" | "NCCL_IB_TC" | "NCCL_IB_SL" | "NCCL_TOPO_FILE":
            return "set in the agent's configuration for this site (fabric.settings)"
        case "NCCL_IB_MERGE_NICS":
            return "set in the agent's configuration for this site (fabric.settings)"
        case "NCCL_NET":
            return "rdma: required: NCCL must fail without RDMA instead of using TCP"
        case "NCCL_NET_PLUGIN":
            return "with NCCL_NET, so that no plugin is used"
        case "NCCL_IB_DISABLE":
            return _why_tcp(job, plan)
        case "NCCL_DEBUG" | "NCCL_DEBUG_SUBSYS":
            return "to verify NCCL's choice: its lines are in `muster logs --nccl`"
        case "NCCL_SOCKET_IFNAME" | "GLOO_SOCKET_IFNAME":
            return f"the network of the gang: {attempt.network or value}"
        case _:
            return "from the plan"


def _why_tcp(job: Job, plan: FabricPlan) -> str:
    if job.spec.rdma is Rdma.OFF:
        return "rdma: off"
    if "turns RDMA off" in plan.text:
        return plan.text.removeprefix("TCP: ")
    return f"some could use RDMA and others could not: {plan.text.removeprefix('TCP: ')}"
