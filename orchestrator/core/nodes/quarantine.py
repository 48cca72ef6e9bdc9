"""Quarantine of nodes at which one job after another fails, within bounds.

Jobs are counted, not attempts, and only failures for which the node itself is to blame. If a node
refuses to prepare a job, that counts only once another node has prepared the same job: every node
refuses a wrong path. A node that lacks the RDMA that a job requires is sound. What a job's own
programs write or refuse counts for its retries and not here: that includes its `setup`, which may
fail on one node only. No clock is involved: a fault is forgotten after enough attempts have ended
well on the node.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from muster.protocol.ids import NodeName
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.refusal_codes import RefusalCode, headline
from muster.protocol.states import TaskState
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.failures.kernel_log import Xid, read
from orchestrator.core.gangs.retry_policy import settled
from orchestrator.core.model.blame import guilty_nodes
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import ITSELF
from orchestrator.core.model.state import Attempt, Job, Node, State

_NAMED = 6
_NO_EVIDENCE = frozenset(
    {
        RefusalCode.FABRIC_DIFFERS,
        RefusalCode.SETUP_FAILED,
        RefusalCode.FETCH_FAILED,
        RefusalCode.BOOTSTRAP_FAILED,
        RefusalCode.NO_CODE,
        RefusalCode.NO_SPACE,
        RefusalCode.NO_PORTS,
        RefusalCode.USER_REFUSED,
    }
)
"""Refusals that say nothing about the node: the job, its user or its programs choose them, or
another job on the node has used up what they name.
"""
_OF_NO_NODE = frozenset({CauseCode.DRAINED, CauseCode.RESTORED})


def judged(
    state: State, job: Job, attempt: Attempt, limits: Limits, *, spare: bool
) -> list[f.Fact]:
    """Return the consequences of a closed attempt for the fault records of its nodes."""
    if attempt.cause is None or not limits.quarantine.jobs:
        return []
    cause = settled(job, attempt, attempt.cause, spare=spare)
    match cause.outcome:
        case Outcome.SUCCESS | Outcome.TIME_LIMIT:
            return _trusted(state, attempt, limits)
        case Outcome.INFRA if cause.code not in _OF_NO_NODE and _proved(attempt, cause):
            if cause.code is CauseCode.RANK_FAILED and not _seen(attempt, cause):
                cause = replace(cause, node_fault=False)
            return _blamed(state, job, attempt, _at_fault(attempt, cause))
        case _:
            return []


def ready_elsewhere(state: State, job: Job, limits: Limits) -> list[f.Fact]:
    """Blame the nodes that refused the job before, because a gang is now ready to start.

    The job was fine, so the refusals were due to the nodes.
    """
    found: dict[NodeName, list[f.Fact]] = {}
    for attempt in job.attempts[:-1] if limits.quarantine.jobs else ():
        cause = attempt.cause
        if cause is not None and cause.code is CauseCode.PREPARE_REFUSED:
            refused = {task.node for task in attempt.tasks if task.refusal is not None}
            ready = {task.node for task in job.attempts[-1].tasks}
            guilty = _at_fault(attempt, cause)
            for name in sorted((guilty.keys() & refused) - ready - found.keys()):
                found[name] = _blamed(state, job, attempt, {name: guilty[name]})
    return [fact for facts in found.values() for fact in facts]


def quarantined(state: State, node: Node, limits: Limits) -> list[f.Fact]:
    """Drain a blamed node, if it has enough faults and its pool can bear it."""
    policy, jobs = limits.quarantine, tuple(fault.job for fault in node.faults)
    number = _number(node)
    if not node.in_service or not policy.jobs or number < policy.jobs:
        return []
    out, size = out_of_pool(state, node, limits)
    named = ", ".join(str(job) for job in jobs[-_NAMED:])
    # Everybody reads this. What the jobs' failures say stays with the faults.
    why = f"at fault in {number} jobs ({named})"
    if not pool_bears(out, size, limits):
        reason = (
            f"{why}; it was not quarantined, as {out} of the {size} nodes of pool "
            f"{node.inventory.pool} were, and at most {policy.pool_share:.0%} may be"
        )
        return [] if node.spared == reason else [sf.QuarantineSkipped(node.name, reason)]
    return [sf.NodeDrained(node.name, ITSELF, f"quarantined: {why}", jobs=jobs)]


def out_of_pool(state: State, node: Node, limits: Limits) -> tuple[int, int]:
    """Return how many other nodes of the node's pool the coordinator took out, and the pool's size.

    These are nodes at fault and nodes whose agents or hardware failed.
    """
    pool = [n for n in state.nodes.values() if n.inventory.pool == node.inventory.pool]
    return sum(_is_out(n, limits) for n in pool if n is not node), len(pool)


def pool_bears(out: int, size: int, limits: Limits) -> bool:
    """True if one more node may be taken out of a pool of `size`, of which `out` nodes are."""
    return out + 1 <= limits.quarantine.pool_share * size


def _is_out(node: Node, limits: Limits) -> bool:
    """True if the coordinator has taken the node out of service or is about to.

    Nodes that one attempt blames are quarantined one after another.
    """
    if node.drain is not None:
        return node.drain.user == ITSELF
    return _number(node) >= limits.quarantine.jobs and not node.spared


def _number(node: Node) -> int:
    """The number of jobs in which the node was at fault. Only the newest are kept individually."""
    return len(node.faults) + node.faults_gone


def _proved(attempt: Attempt, cause: Cause) -> bool:
    """True if the node is at fault and the job cannot be.

    For a refusal, that is certain if the refusal itself blames the node, or if others of the gang
    were ready.
    """
    if cause.code is not CauseCode.PREPARE_REFUSED:
        return True
    by_itself = attempt.cause is not None and attempt.cause.node_fault
    return by_itself or any(t.prepared is not None and t.refusal is None for t in attempt.tasks)


def _seen(attempt: Attempt, cause: Cause) -> bool:
    """True if the kernel saw the fault for which the rank failed. The rank's own output is no
    evidence, because every program can write it, and neither is a full disk, because every program
    can fill it.
    """
    ranks = [r for t in attempt.tasks if t.node == cause.node for r in t.ranks]
    return any(isinstance(read(rank.kernel), Xid) for rank in ranks if rank.rank == cause.rank)


def _at_fault(attempt: Attempt, cause: Cause) -> dict[NodeName, str]:
    """Return the nodes at fault that are not sound, each with its own reason."""
    found = {}
    tasks = {task.node: task for task in attempt.tasks}
    for name in guilty_nodes(attempt, cause):
        task = tasks.get(name)
        text = cause.text
        if task is not None and task.state is not TaskState.LOST and task.refusal is not None:
            if task.refusal.code in _NO_EVIDENCE:
                continue
            if name != cause.node:
                said = headline(task.refusal.text)
                text = f"{name} refused: {said}"
        elif name != cause.node:
            text = f"{name} was lost; {cause.text}"
        found[name] = text
    return found


def _blamed(
    state: State, job: Job, attempt: Attempt, guilty: Mapping[NodeName, str]
) -> list[f.Fact]:
    return [
        sf.NodeFaultRecorded(name, job.id, attempt.number, guilty[name])
        for name in sorted(guilty)
        if name in state.nodes and all(it.job != job.id for it in state.nodes[name].faults)
    ]


def _trusted(state: State, attempt: Attempt, limits: Limits) -> list[f.Fact]:
    found: list[f.Fact] = []
    for name in dict.fromkeys(task.node for task in attempt.present):
        faults = state.nodes[name].faults
        if faults:
            old = sum(it.since + 1 >= limits.quarantine.forgiven_after for it in faults)
            found.append(sf.NodeFaultsDecayed(name, old))
    return found
