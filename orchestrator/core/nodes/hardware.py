"""What a failure of a node's hardware means: for the attempts that have the part, and for the node.

A critical one ends the attempt that has the GPU, with that as its cause, and takes the node out of
service until somebody resumes it; whoever else is on the node goes on. Others are shown.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.hardware_events import (
    COUNTED,
    EVENTS_MAX,
    OOM,
    XID,
    Grade,
    HardwareEvent,
    sound,
)
from muster.protocol.ids import BadId, JobId, NodeName, parse_task_id
from muster.protocol.outcome import Cause, CauseCode, Outcome
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import service as sf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.gangs.launch import ranks_of
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.state import Attempt, Job, Node, Share, State, Task
from orchestrator.core.nodes.service_state import ITSELF
from orchestrator.core.scheduling.elastic import survives_without

_MAY_BE: Final = frozenset({FailureKind.GPU_FAILED, FailureKind.CUDA_ERROR})


def may_be_hardware(cause: Cause) -> bool:
    """Whether a rank may have died of what its node's kernel is about to tell."""
    return cause.kind in _MAY_BE


def hardware_facts(state: State, name: NodeName, events: tuple[HardwareEvent, ...]) -> list[f.Fact]:
    """Those of the events that are news."""
    node = state.nodes.get(name)
    boot, last = ("", -1) if node is None else node.hardware_heard
    found: list[f.Fact] = []
    for event in events[-EVENTS_MAX:]:
        if not sound(event) or (event.boot == boot and event.number <= last):
            continue
        boot, last = event.boot, event.number
        found.append(sf.HardwareReported(name, event, _concerned(node, event), noted=True))
    return found


def react_to_hardware(state: State, fact: sf.HardwareReported) -> Decision:
    """What comes of it."""
    event, node = fact.event, state.nodes[fact.node]
    text = f"{node.name}: {event.text}"
    decision = Decision([sf.HardwareNoted(*attempt, text) for attempt in fact.attempts])
    if event.grade is not Grade.CRITICAL:
        return decision
    # First: what else a drain ends is ended for the drain.
    for task in tasks_on(state, node.name):
        job = state.jobs[task.job]
        attempt = job.attempts[task.attempt - 1]
        over = attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED)
        if over or not task.present or (job.id, attempt.number) not in fact.attempts:
            continue
        cause = _cause(node, event, rank_of_gpu(job, attempt, task, node, event))
        if survives_without(job, attempt, task, cause):
            left = f.TaskLeft(job.id, attempt.number, task.rank, cause.text)
            decision.facts.append(left)
        else:
            decision.facts.append(f.StopRequested(job.id, attempt.number, cause))
    if node.in_service:
        decision.facts.append(sf.NodeDrained(node.name, ITSELF, event.text))
    return decision


def rank_of_gpu(
    job: Job, attempt: Attempt, task: Task, node: Node, event: HardwareEvent
) -> int | None:
    """Which rank has the GPU, as ranks take them: each the one of its own place on the node. None
    where there are more of the one than of the other, or nobody numbers them before they meet."""
    ranks = ranks_of(job, attempt).get(task.id, range(0))
    devices = [gpu for gpu in node.inventory.devices if gpu.uuid]
    uuid = event.uuid or next((gpu.uuid for gpu in devices if gpu.pci == event.pci), "")
    sound = tuple(gpu.uuid for gpu in devices if not gpu.fault)
    for gpus in (task.gpus,) if task.gpus else (tuple(gpu.uuid for gpu in devices), sound):
        if uuid in gpus and len(gpus) == len(ranks):
            return ranks[gpus.index(uuid)]
    return None


def _cause(node: Node, event: HardwareEvent, rank: int | None) -> Cause:
    whose = "" if rank is None else f"rank {rank} on "
    return Cause(
        CauseCode.HARDWARE,
        Outcome.INFRA,
        f"{whose}{node.name}: {event.text}",
        node=node.name,
        node_fault=True,
        rank=rank,
        kind=FailureKind.GPU_FAILED,
    )


def hardware_problems(node: Node) -> tuple[str, ...]:
    """What is left of failures when a node is to be resumed: a GPU that is not there any more."""
    there = {gpu.pci for gpu in node.inventory.devices}
    lost = {
        event.pci: event.text
        for _, event in node.hardware
        if event.grade is Grade.CRITICAL and event.uuid and event.pci not in there
    }
    return tuple(f"{text}; it is not there any more" for text in lost.values())


def hardware_warnings(node: Node) -> tuple[str, ...]:
    """The last of each kind that an operator should see to, though nothing ended."""
    noted = {
        (event.code, event.pci): event.text
        for _, event in node.hardware
        if event.grade is Grade.NOTE
    }
    return tuple(noted.values())


def _concerned(node: Node | None, event: HardwareEvent) -> tuple[tuple[JobId, int], ...]:
    if node is None:
        return ()
    if event.code == OOM:
        return _whose_memory(node, event)
    if not event.code.startswith((XID, COUNTED)):
        return ()
    shares = sorted(node.holders.items())
    return tuple(holder for holder, share in shares if _has(node, share, event))


def _whose_memory(node: Node, event: HardwareEvent) -> tuple[tuple[JobId, int], ...]:
    if event.task is None:
        return ()
    try:
        job, attempt, _ = parse_task_id(event.task)
    except BadId:
        return ()
    return ((job, attempt),) if (job, attempt) in node.holders else ()


def _has(node: Node, share: Share, event: HardwareEvent) -> bool:
    """Whether the GPU is one of the share's. One that nobody can name is of those that are gone."""
    devices = node.inventory.devices
    uuid = event.uuid or next((gpu.uuid for gpu in devices if gpu.pci == event.pci), "")
    if not share.gpus:
        return share.whole
    if uuid:
        return uuid in share.gpus
    return bool(set(share.gpus) - {gpu.uuid for gpu in devices})
