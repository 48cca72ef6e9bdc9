"""The reason why nothing, or one job, may be placed after a restore.

A restored journal may lack attempts that still run. So nothing is placed until every node that was
known has said hello or is declared lost. A job is not placed while a node has a task of it that the
journal lacks.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.ids import NodeName, TaskId
from muster.protocol.text import count, named
from orchestrator.core.model.state import Job, State

NAMES_MAX: Final = 6


def silent_nodes(state: State) -> list[NodeName]:
    """The nodes for whose hello placing waits, in order."""
    return sorted(state.awaited - state.answered) if state.awaited else []


def is_held(state: State) -> bool:
    """True if nothing may be placed."""
    return bool(state.awaited) and not state.awaited <= state.answered


def why_held(state: State) -> str:
    """The sentence for users if nothing may be placed, else ""."""
    silent = silent_nodes(state)
    if not silent:
        return ""
    have = "has" if len(silent) == 1 else "have"
    return (
        f"placing is held: {count(len(silent), 'node')} known before the restore {have} not said "
        f"hello: {named(silent, NAMES_MAX)}; start the agent there, or, if nothing of a job runs "
        "there: `muster node lost NODE`, or `muster node lost --awaited` for all of them"
    )


def unknown_tasks(state: State, job: Job) -> list[tuple[NodeName, TaskId]]:
    """The tasks of a job that nodes have, the journal lacks, and that are not proved over.

    None of a job that was submitted since the coordinator started, which knows all its attempts. So
    no node can hold up jobs to come by naming their tasks.
    """
    return [] if job.id >= state.first_of_epoch else state.unknown.of(job.id)


def why_job_held(state: State, job: Job) -> str:
    """The words for users if nodes have unknown tasks of the job, else ""."""
    found = unknown_tasks(state, job)
    if not found:
        return ""
    tasks = named([f"task {task} on {node}" for node, task in found], NAMES_MAX)
    return (
        f"waits for the end of an attempt that the restored journal lacks: {tasks}; if nothing of "
        "it runs there: `muster node revoke NODE` if it is connected, then `muster node lost NODE`"
    )


def unknown_on(state: State, name: NodeName) -> str:
    """The tasks on a node that the journal lacks, in words; "" if there are none."""
    return named(state.unknown.on(name), NAMES_MAX)


def restore_warnings(state: State, name: NodeName) -> tuple[str, ...]:
    """Sentences on why a node holds back placing after a restore."""
    found = []
    if name in state.awaited and name not in state.answered:
        found.append(
            "known before the restore, and nothing is placed before it says hello: start its "
            f"agent; if nothing of a job runs there: muster node lost {name}"
        )
    if tasks := unknown_on(state, name):
        found.append(f"stops what the restored journal lacks: task {tasks}")
    return tuple(found)
