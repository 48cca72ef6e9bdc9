"""The fabric of an attempt: its nodes as input of the plan, and the plan's result for each node."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from muster.fabric.topology import nearest
from muster.protocol.link.control_channel import Refusal
from muster.protocol.observations.fabric import FabricPort, NodeFabric
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.refusal_codes import RefusalCode
from muster.spec.checks.rdma import named_plugin, rdma_off
from muster.spec.model import Rdma, env_on_node, gpus_on_node
from orchestrator.core.fabric.plan import PLUGIN, FabricRequest, PlanRefused, join, nccl_of, plan
from orchestrator.core.fabric.port_slots import FabricMember
from orchestrator.core.facts.jobs import Fact, TaskRefused
from orchestrator.core.failures.causes import shortened
from orchestrator.core.failures.stops import stop
from orchestrator.core.model.fabric_plan import FabricPlan, NodePlan
from orchestrator.core.model.state import Attempt, Job, Task

_WITNESSES_MAX: Final = 32
_NOTHING: Final = NodeFabric()
_UNTOLD: Final = NodeFabric(unseen="its agent does not report it")


def plan_for(job: Job, attempt: Attempt) -> FabricPlan | PlanRefused | None:
    """The fabric plan of a gang whose nodes are all prepared.

    Returns None if no node has a fabric and RDMA is only preferred.
    """
    fabrics = (task.prepared.fabric for task in attempt.tasks if task.prepared is not None)
    none = all(fabric in (None, _NOTHING) for fabric in fabrics)
    if none and job.spec.rdma is Rdma.PREFERRED:
        return None
    return plan([member_of(job, task) for task in attempt.tasks], wish_of(job, attempt), _met(job))


def roll_back(attempt: Attempt, refused: PlanRefused) -> list[Fact]:
    """Record a refusal for each node at fault, and stop the attempt so that it is retried
    elsewhere.
    """
    first = refused.differences[0]
    ranks = {str(task.node): task.rank for task in attempt.tasks}
    facts: list[Fact] = [
        TaskRefused(
            attempt.job,
            attempt.number,
            ranks[it.node],
            Refusal(RefusalCode.FABRIC_DIFFERS, shortened(it.text), node_fault=True),
        )
        for it in refused.differences
    ]
    cause = Cause(
        CauseCode.PREPARE_REFUSED,
        Outcome.INFRA,
        shortened(refused.text),
        node=first.node,
        refusal=RefusalCode.FABRIC_DIFFERS,
        node_fault=True,
    )
    return [*facts, stop(attempt, cause)]


def misfit(job: Job, attempt: Attempt, task: Task) -> TaskRefused | None:
    """A refusal if the plan of the running gang does not fit the joining node; otherwise None."""
    found = join(attempt.fabric, member_of(job, task), wish_of(job, attempt))
    if isinstance(found, NodePlan):
        return None
    refusal = Refusal(RefusalCode.FABRIC_DIFFERS, shortened(found), node_fault=True)
    return TaskRefused(task.job, task.attempt, task.rank, refusal)


def node_plan(job: Job, attempt: Attempt, task: Task) -> NodePlan:
    """The plan's part for one node."""
    if task.joined:
        found = join(attempt.fabric, member_of(job, task), wish_of(job, attempt))
        return found if isinstance(found, NodePlan) else NodePlan()
    return NodePlan() if attempt.fabric is None else attempt.fabric.of(task.rank)


def member_of(job: Job, task: Task) -> FabricMember:
    """A member of the gang, as its node reported itself when it was prepared."""
    prepared = task.prepared
    if prepared is None:
        raise AssertionError(f"the fabric of {task.id} is planned before it is prepared")
    fabric = _UNTOLD if prepared.fabric is None else prepared.fabric
    return FabricMember(
        task.node,
        fabric,
        near_ports(fabric, task.gpus),
        gpus_on_node(job.spec, len(task.gpus) or prepared.gpus),
        nccl_of(prepared.fingerprint.nccl, fabric.nccl),
    )


def near_ports(fabric: NodeFabric, uuids: Collection[str]) -> tuple[FabricPort, ...]:
    """The ports of a node that are nearest to the given GPUs.

    Returns every port if `uuids` is empty, names an unknown GPU or names all of them.
    """
    mine = [gpu for gpu in fabric.gpus if gpu.uuid in uuids]
    if not uuids or len(mine) < len(set(uuids)) or len(mine) == len(fabric.gpus):
        return fabric.ports
    found = nearest(gpu.ways[: len(fabric.ports)] for gpu in mine)
    return tuple(fabric.ports[at] for at in found) or fabric.ports


def wish_of(job: Job, attempt: Attempt) -> FabricRequest:
    """The job's requirements on its fabric."""
    spec = job.spec
    own = {rank: env_on_node(spec, rank) for rank in (0, 1)}
    plugins = (
        task.node
        for task in attempt.tasks
        if any(name in own[min(task.rank, 1)] for name in PLUGIN)
    )
    alone = len(attempt.tasks) == 1 and not spec.elastic
    named = [named_plugin(own[min(task.rank, 1)]) for task in attempt.tasks]
    return FabricRequest(
        spec.rdma,
        alone,
        frozenset(plugins),
        plugin=named[0] if all(named) else "",
        sockets=next((found for it in own.values() if (found := rdma_off(it))), ""),
        conf=next((file for it in own.values() if (file := it.get("NCCL_CONF_FILE", ""))), ""),
    )


def _met(job: Job) -> list[FabricMember]:
    """Other nodes of this job's earlier attempts, as they were reported then."""
    here = {task.node for task in job.attempts[-1].tasks}
    found: dict[str, FabricMember] = {}
    for task in _earlier(job):
        if task.node not in here and task.prepared is not None:
            found[task.node] = member_of(job, task)
        if len(found) >= _WITNESSES_MAX:
            break
    return list(found.values())


def _earlier(job: Job) -> Iterable[Task]:
    for attempt in reversed(job.attempts[:-1]):
        yield from attempt.tasks
