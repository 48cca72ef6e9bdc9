"""Commands that a task needs now, given the state that its node reports.

The same function serves the normal course and a reconnect: if a command was lost, it is still
needed and is sent again.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from muster.protocol.ids import BadId, NodeName, TaskId
from muster.protocol.link.control_channel import (
    ArrangeTask,
    Command,
    ForgetTask,
    SignalTask,
    StartTask,
    StopTask,
)
from muster.protocol.link.terms import ChangeTerms
from muster.protocol.states import TaskState
from orchestrator.core.facts import effects as a
from orchestrator.core.gangs.launch import Gang, arrange_command, gang_of, prepare_command
from orchestrator.core.gangs.terms import is_admitted, members_of, terms_of
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.grace import ends_by_itself, grace_now_s, is_forced
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Attempt, Job, Signal, State, Task
from orchestrator.core.model.task import OVER


def desired_commands(
    job: Job,
    attempt: Attempt,
    task: Task,
    on_node: TaskState | None,
    limits: Limits,
    gang: Gang | None = None,
) -> list[Command]:
    """Commands for `task`; `on_node` is the state that its node reports (None: the node lacks it).

    Callers that loop over the tasks of an attempt pass `gang`, if it can be built already, so that
    it is not recomputed.
    """
    if on_node is TaskState.CLEANED and still_vouches(attempt, task):
        return []
    if task.state in OVER or attempt.phase is AttemptPhase.CLOSED:
        return [ForgetTask(task.id) if on_node is TaskState.CLEANED else fence(task.id)]
    match attempt.phase:
        case AttemptPhase.PREPARING:
            return [prepare_command(job, task, limits)] if on_node is None else []
        case AttemptPhase.ARRANGING:
            return [
                *_arrange(job, attempt, task, on_node, gang),
                *_changed_terms(job, attempt, task, on_node),
            ]
        case AttemptPhase.RUNNING if not task.present:
            # The ranks may have outlived their launcher, so they get the job's grace period.
            grace_s = 0.0 if task.left_force else job.spec.stop.grace_s
            return [StopTask(task.id, job.spec.stop.signal, grace_s, task.left_force)]
        case AttemptPhase.RUNNING if on_node is None and task.joined:
            return [prepare_command(job, task, limits)]
        case AttemptPhase.RUNNING:
            return [
                *_arrange(job, attempt, task, on_node, gang),
                *_start(job, attempt, task, on_node),
                *_changed_terms(job, attempt, task, on_node),
                *_missed(attempt, task, on_node),
            ]
        case AttemptPhase.STOPPING:
            by_itself = ends_by_itself(attempt) and not task.joined
            return [] if by_itself else [stop_command(job, attempt, task)]
        case _:
            assert_never(attempt.phase)


def still_vouches(attempt: Attempt, task: Task) -> bool:
    """True if the node of an ended task keeps it, to vouch for the members that still run."""
    ended = task.state is TaskState.CLEANED and task.present
    return ended and bool(attempt.vouch_key) and attempt.phase is AttemptPhase.RUNNING


def merge_plan_and_start(commands: list[Command]) -> list[Command]:
    """Merge plan and start into one message for a gang of one."""
    match commands:
        case [ArrangeTask(hosts=()) as plan, StartTask(), *more]:
            return [replace(plan, start=True), *more]
        case _:
            return commands


def commands_for_reported_task(
    state: State, node: NodeName, name: TaskId, on_node: TaskState, limits: Limits
) -> list[Command]:
    """Commands for a task `name` that a node reports, whether or not the journal knows the task."""
    try:
        task = state.task(name)
    except BadId:
        task = None
    if task is not None and task.node == node:
        job = state.jobs[task.job]
        return desired_commands(job, job.attempt(task.attempt), task, on_node, limits)
    return [ForgetTask(name) if on_node is TaskState.CLEANED else fence(name)]


def send_desired(
    state: State,
    job: Job,
    attempt: Attempt,
    task: Task,
    on_node: TaskState | None,
    limits: Limits,
    gang: Gang | None = None,
) -> list[a.Effect]:
    """Send the desired commands if the node is connected.

    Otherwise its next Hello triggers them.
    """
    session = state.nodes[task.node].session
    if session is None:
        return []
    commands = desired_commands(job, attempt, task, on_node, limits, gang)
    return [a.Send(task.node, session, command) for command in merge_plan_and_start(commands)]


def send_terms(state: State, job: Job) -> list[a.Effect]:
    """Send the terms of a job to the connected nodes that have not confirmed them."""
    attempt = job.current
    if attempt is None or attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED):
        return []
    members = members_of(attempt)
    return [
        a.Send(task.node, session, ChangeTerms(task.id, terms_of(job, attempt, task, members)))
        for task in attempt.present
        if (session := state.nodes[task.node].session) is not None
        and _lacks_terms(attempt, task, task.state)
    ]


def tasks_on(state: State, name: NodeName) -> list[Task]:
    """The unfinished tasks on a node, from the attempts that hold it."""
    node = state.nodes.get(name)
    attempts = [] if node is None else [state.attempt(*holder) for holder in node.holders]
    return [
        task
        for attempt in attempts
        if attempt is not None
        for task in attempt.tasks
        if task.node == name and task.state not in OVER
    ]


def stop_command(job: Job, attempt: Attempt, task: Task) -> StopTask:
    """The command that ends this task with its job's stop signal and grace."""
    force = is_forced(job, attempt)
    return StopTask(task.id, job.spec.stop.signal, grace_now_s(attempt), force)


def signals(task: Task, given: list[Signal]) -> list[Command]:
    """The commands for those of the `given` signals that are addressed to this task."""
    return [
        SignalTask(
            task.id,
            signal.name,
            signal.number,
            ranks=() if signal.rank is None else (signal.rank,),
            late=signal.late,
        )
        for signal in given
        if signal.node in (None, task.node)
    ]


def fence(name: TaskId) -> StopTask:
    """Kill a task that must not run, such as a stale attempt on a node that was away."""
    return StopTask(name, "SIGKILL", 0.0, force=True)


def may_start(job: Job, attempt: Attempt, task: Task) -> bool:
    """True if the task may pass its gate.

    Under torchrun, workers wait until the launcher's port listens.
    """
    if not job.spec.launcher.torchruns or task.rank == 0:
        return True
    return attempt.tasks[0].listening


def _arrange(
    job: Job, attempt: Attempt, task: Task, on_node: TaskState | None, gang: Gang | None
) -> list[Command]:
    if on_node is not TaskState.PREPARED or not is_admitted(attempt, task):
        return []
    return [arrange_command(job, attempt, task, gang or gang_of(job, attempt))]


def _changed_terms(
    job: Job, attempt: Attempt, task: Task, on_node: TaskState | None
) -> list[Command]:
    if not _lacks_terms(attempt, task, on_node):
        return []
    return [ChangeTerms(task.id, terms_of(job, attempt, task, members_of(attempt)))]


def _lacks_terms(attempt: Attempt, task: Task, on_node: TaskState | None) -> bool:
    """True if the node has a plan, and has not confirmed the newest terms. The first ones are in
    the plan, and confirmed when the program has started."""
    if on_node is TaskState.ARRANGED:
        return attempt.terms > max(1, task.terms)
    return on_node is TaskState.STARTED and attempt.terms > task.terms


def _start(job: Job, attempt: Attempt, task: Task, on_node: TaskState | None) -> list[Command]:
    waits_at_gate = on_node in (TaskState.PREPARED, TaskState.ARRANGED)
    return [StartTask(task.id)] if waits_at_gate and may_start(job, attempt, task) else []


def _missed(attempt: Attempt, task: Task, on_node: TaskState | None) -> list[Command]:
    """Repeat all signals to a node that was away; the node skips those it has carried out."""
    return signals(task, attempt.signals) if on_node is TaskState.STARTED else []
