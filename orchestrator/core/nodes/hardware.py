"""Hardware failures: the consequences for the node and for the attempts that have the part.

A critical event is the cause of the end of the attempt that has the GPU. It also takes the node out
of service until an operator resumes it. Other attempts on the node continue. Lesser events are only
shown.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.ids import BadId, JobId, NodeName, parse_task_id
from muster.protocol.instant import Instant
from muster.protocol.observations.hardware_events import (
    COUNTED,
    EVENTS_MAX,
    OOM,
    XID,
    Grade,
    HardwareEvent,
    sound,
)
from muster.protocol.outcome import Cause, CauseCode, Outcome
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts import service as sf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.failures.stops import stop_or_leave
from orchestrator.core.gangs.commands import tasks_on
from orchestrator.core.gangs.launch import ranks_of
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.node import ITSELF
from orchestrator.core.model.registrations import hardware_room
from orchestrator.core.model.state import Attempt, Job, Node, Share, State, Task

_OVER: Final = frozenset({AttemptPhase.STOPPING, AttemptPhase.CLOSED})
_MAY_BE: Final = frozenset({FailureKind.GPU_FAILED, FailureKind.CUDA_ERROR})


def may_be_hardware(cause: Cause) -> bool:
    """True if the node's kernel may be about to report the hardware failure behind this cause."""
    return cause.kind in _MAY_BE


def hardware_facts(
    state: State, name: NodeName, events: tuple[HardwareEvent, ...], now: Instant
) -> list[f.Fact]:
    """Return facts for the events that are new.

    They are recorded at a bounded rate, the newest first; the others are known until a restart. A
    critical event that ends an attempt or drains the node is recorded in any case.
    """
    node = state.nodes.get(name)
    new = _new(node, events)
    if not new:
        return []
    found = [sf.HardwareReported(name, event, _concerned(node, event)) for event in new]
    kept = {at for at, fact in enumerate(found) if _has_consequences(state, node, fact)}
    counts = [0, len(kept)]
    due = (0.0, 0.0) if node is None else (node.kills_due, node.hardware_due)
    for kind, since in enumerate(due):
        room = 0 if state.disk_full else hardware_room(since, now.mono)
        rest = [at for at in range(len(new)) if at not in kept and (new[at].code != OOM) == kind]
        taken = rest[-room:] if room else []
        kept.update(taken)
        counts[kind] += len(taken)
    facts: list[f.Fact] = [
        fact if at in kept else lf.HardwareSeen(name, fact.event, now.wall)
        for at, fact in enumerate(found)
    ]
    kills, others = counts
    last = new[-1].boot, new[-1].number
    return [*facts, lf.HardwareCounted(name, last, kills, others, now.mono)]


def _new(node: Node | None, events: tuple[HardwareEvent, ...]) -> list[HardwareEvent]:
    boot, last = "", -1
    if node is not None:
        boot, last = node.hardware_passed or node.hardware_heard
    found: list[HardwareEvent] = []
    for event in events[-EVENTS_MAX:]:
        if sound(event) and (event.boot != boot or event.number > last):
            boot, last = event.boot, event.number
            found.append(event)
    return found


def _has_consequences(state: State, node: Node | None, fact: sf.HardwareReported) -> bool:
    if fact.event.grade is not Grade.CRITICAL:
        return False
    if node is None or node.in_service:
        return True
    attempts = [state.attempt(*holder) for holder in fact.attempts]
    return any(attempt is not None and attempt.phase not in _OVER for attempt in attempts)


def react_to_hardware(state: State, fact: sf.HardwareReported) -> Decision:
    """Note the event in the jobs concerned. If it is critical, end them and drain the node."""
    event, node = fact.event, state.nodes[fact.node]
    text = f"{node.name}: {event.text}"
    decision = Decision([sf.HardwareNoted(*attempt, text) for attempt in fact.attempts])
    if event.grade is not Grade.CRITICAL:
        return decision
    # Before the drain, as any attempt that the drain ends has the drain as its cause.
    for task in tasks_on(state, node.name):
        job = state.jobs[task.job]
        attempt = job.attempt(task.attempt)
        if (job.id, attempt.number) in fact.attempts:
            cause = _cause(node, event, rank_of_gpu(job, attempt, task, node, event))
            decision.facts += stop_or_leave(job, attempt, task, cause)
    if node.in_service:
        decision.facts.append(sf.NodeDrained(node.name, ITSELF, event.text))
    return decision


def rank_of_gpu(
    job: Job, attempt: Attempt, task: Task, node: Node, event: HardwareEvent
) -> int | None:
    """Return the rank that has the GPU, as the i-th rank of a node uses its i-th GPU.

    Returns None if ranks and GPUs differ in number, or if ranks get their numbers only at the
    rendezvous.
    """
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
    """Return the failures that still stand when a node is resumed: GPUs that are missing now."""
    there = {gpu.pci for gpu in node.inventory.devices}
    lost = {
        event.pci: event.text
        for _, event in node.hardware
        if event.grade is Grade.CRITICAL and event.uuid and event.pci not in there
    }
    return tuple(f"{text}; it has gone" for text in lost.values())


def hardware_warnings(node: Node) -> tuple[str, ...]:
    """The newest event of each kind that needs an operator, although it ended nothing."""
    noted = {
        (event.code, event.pci): event.text
        for _, event in node.hardware
        if event.grade is Grade.NOTE
    }
    skipped = (
        f"{node.hardware_skipped} events of its kernel and GPUs are not recorded: they come too "
        "often, see its own log (journalctl -k)"
    )
    return (*noted.values(), *([skipped] if node.hardware_skipped else []))


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
    holder = _holder(event)
    return (holder,) if holder is not None and holder in node.holders else ()


def job_of(event: HardwareEvent) -> JobId | None:
    """Return the job that ran out of memory, None if it is unknown."""
    holder = _holder(event)
    return None if holder is None else holder[0]


def _holder(event: HardwareEvent) -> tuple[JobId, int] | None:
    if event.task is None:
        return None
    try:
        job, attempt, _ = parse_task_id(event.task)
    except BadId:
        return None
    return job, attempt


def _has(node: Node, share: Share, event: HardwareEvent) -> bool:
    """True if the GPU is part of the share.

    If the GPU cannot be identified, any share with a missing GPU may have it.
    """
    devices = node.inventory.devices
    uuid = event.uuid or next((gpu.uuid for gpu in devices if gpu.pci == event.pci), "")
    if not share.gpus:
        return share.whole
    if uuid:
        return uuid in share.gpus
    return bool(set(share.gpus) - {gpu.uuid for gpu in devices})
