"""`preflight: quick`: known faults of a node, checked before a gang starts there.

The agent checks disks and mounts while it prepares the task. This module judges what agents report
continuously (clock, ports, GPUs) and in the probe for the task.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.link.control_channel import Refusal
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.text import count
from muster.spec.model import Rdma
from orchestrator.core.facts.jobs import Fact, TaskRefused
from orchestrator.core.failures.stops import stop
from orchestrator.core.model.clocks import clock_warning
from orchestrator.core.model.state import Attempt, Job, State, Task

_NO_PORT: Final = (
    "its agent has no free peer_port, at which the agents of this gang ask each other; free that "
    "UDP port on the node, or set another"
)


def refused_nodes(state: State, job: Job, attempt: Attempt) -> list[Fact]:
    """Refusals for the faulty nodes of a gang that is ready, and the stop of the attempt.

    Recorded as refusals, so that other nodes are tried. Empty if no fault is known or the job has
    no `preflight`.
    """
    if job.spec.preflight is None:
        return []
    found = [
        (task, text) for task in attempt.tasks if (text := preflight_problems(state, job, task))
    ]
    if not found:
        return []
    refusals: list[Fact] = [_refused(task, text) for task, text in found]
    task, text = found[0]
    more = f"; and {count(len(found) - 1, 'node')} more" if len(found) > 1 else ""
    cause = Cause(
        CauseCode.PREPARE_REFUSED,
        Outcome.INFRA,
        f"{task.node} refused: {text}{more}",
        node=task.node,
        refusal=RefusalCode.PREFLIGHT,
        node_fault=True,
    )
    return [*refusals, stop(attempt, cause)]


def refused_joiner(state: State, job: Job, attempt: Attempt, task: Task) -> TaskRefused | None:
    """The same check for a node that joins a running gang.

    A gang whose agents vouch for each other takes none whose agent cannot be asked.
    """
    text = "" if job.spec.preflight is None else preflight_problems(state, job, task)
    if attempt.vouch_key and not (task.prepared and task.prepared.peer_port):
        text = "; ".join(filter(None, [text, _NO_PORT]))
    return _refused(task, text) if text else None


def _refused(task: Task, text: str) -> TaskRefused:
    refusal = Refusal(RefusalCode.PREFLIGHT, text, node_fault=True)
    return TaskRefused(task.job, task.attempt, task.rank, refusal)


def preflight_problems(state: State, job: Job, task: Task) -> str:
    """Text on the known faults of a task's node; empty if there are none."""
    node = state.nodes[task.node]
    problems = [clock_warning(node)]
    if job.spec.resources.gpu is None:
        # A job that asks for a number of GPUs only gets sound ones.
        faults = [f"GPU {gpu.pci}: {gpu.fault}" for gpu in node.inventory.devices if gpu.fault]
        if faults:
            there = len(node.inventory.devices)
            problems.append(
                f"{there - len(faults)} of {there} GPUs can be used: {'; '.join(faults)}"
            )
    if job.spec.rdma is not Rdma.OFF:
        problems += [port.text for port in node.ports if port.down]
        known = {port.port for port in node.ports if port.down}
        fabric = None if task.prepared is None else task.prepared.fabric
        problems += [
            f"port {port.key} cannot be used: {port.why}"
            for port in (() if fabric is None else fabric.missing)
            if port.key not in known
        ]
    return "; ".join(filter(None, problems))
