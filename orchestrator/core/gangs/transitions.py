"""State machine of an attempt: it follows the joint state of its tasks.

Reads the state after a fact was applied, and changes nothing.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import structs

from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import ForgetTask
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState
from muster.protocol.text import named
from orchestrator.core.fabric.plan import PlanRefused
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.facts.members import MemberAdded, NodeAdmitted
from orchestrator.core.failures.causes import launcher_ended
from orchestrator.core.failures.stops import stop, stop_or_leave
from orchestrator.core.gangs.commands import may_start, send_desired, send_terms, still_vouches
from orchestrator.core.gangs.fabric import misfit, plan_for, roll_back
from orchestrator.core.gangs.numa_binding import binding_refused
from orchestrator.core.gangs.preflight import refused_joiner, refused_nodes
from orchestrator.core.gangs.refusals import BY_US, refusal_cause, refusal_of
from orchestrator.core.gangs.silent_members import ask_to_confirm
from orchestrator.core.gangs.terms import vouch_key
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import Attempt, Job, State, Task
from orchestrator.core.model.task import OVER, reached
from orchestrator.core.scheduling.rendezvous import choose_rendezvous
from orchestrator.core.webhooks.outbox import queue_webhooks


def task_moved(
    state: State,
    fact: f.TaskPrepared
    | f.TaskRefused
    | f.TaskArranged
    | f.TaskListening
    | f.TaskStarted
    | f.TaskExited
    | f.TaskCleaned
    | f.TaskLost
    | f.TaskLeft,
    now: Instant,
    limits: Limits,
) -> Decision:
    job = state.jobs[fact.job]
    attempt = job.attempt(fact.attempt)
    task = attempt.tasks[fact.rank]
    if task.joined and isinstance(fact, f.TaskPrepared | f.TaskArranged | f.TaskStarted):
        # A running gang does not wait for a joining task.
        refused = None
        if isinstance(fact, f.TaskPrepared):
            refused = refused_joiner(state, job, attempt, task) or misfit(job, attempt, task)
        if refused is not None:
            return Decision([refused])
        if isinstance(fact, f.TaskPrepared) and task.present:
            # It gets its plan once the launcher's node lets it in.
            return Decision([NodeAdmitted(job.id, attempt.number, task.rank)])
        added = _added(attempt, task) if isinstance(fact, f.TaskStarted) else []
        return Decision(added, send_desired(state, job, attempt, task, task.state, limits))
    match fact:
        case f.TaskPrepared() | f.TaskArranged() if task.refusal is not None:
            # The same report had the refusal, and its consequences are decided.
            return Decision()
        case f.TaskPrepared():
            return _prepared(state, job, attempt)
        case f.TaskRefused():
            return _refused(job, attempt, task, now, limits)
        case f.TaskArranged():
            return Decision(_all_arranged(attempt))
        case f.TaskListening():
            return _listening(state, job, attempt, limits)
        case f.TaskStarted():
            if attempt.started_at is None:
                return Decision()
            timed = f.RunTimed(job.id, attempt.number, now.mono)
            return Decision([timed, *queue_webhooks(state, job, nf.WebhookEvent.STARTED)])
        case f.TaskExited():
            # If the task has left the gang, its exit has no further consequences.
            if not task.present:
                return Decision()
            return Decision(_ended_too_early(job, attempt, task) or _all_exited(attempt))
        case f.TaskCleaned():
            session = state.nodes[task.node].session
            forget: list[a.Effect] = []
            if session is not None and not still_vouches(attempt, task):
                forget.append(a.Send(task.node, session, ForgetTask(task.id)))
            asked = ask_to_confirm(state, attempt)
            ended = closed(attempt) or _unexpected_end(job, attempt, task)
            return Decision(ended, [*forget, *asked])
        case f.TaskLost(_, _, _, reason):
            return Decision(closed(attempt) or _lost(job, attempt, task, reason))
        case f.TaskLeft():
            # The other tasks may have ended before.
            forward = (
                []
                if task.state in OVER
                else send_desired(state, job, attempt, task, task.state, limits)
            )
            return Decision(_all_exited(attempt), [*forward, *send_terms(state, job)])
        case _:
            assert_never(fact)


def _added(attempt: Attempt, task: Task) -> list[f.Fact]:
    """Make a task that has joined a member for the others: it has its plan on disk, and vouches."""
    if not attempt.vouch_key or not task.present or attempt.phase is not AttemptPhase.RUNNING:
        return []
    return [MemberAdded(task.job, task.attempt, task.rank)]


def _prepared(state: State, job: Job, attempt: Attempt) -> Decision:
    if attempt.phase is not AttemptPhase.PREPARING:
        return Decision()
    # By their probes, not their states: a task that refused is cleaned even if it was prepared.
    if any(t.prepared is None or t.refusal is not None for t in attempt.tasks):
        return Decision(_all_answered(attempt))
    if refused := refused_nodes(state, job, attempt):
        return Decision(refused)
    arranged = binding_refused(job, attempt) or choose_rendezvous(state, attempt)
    if isinstance(arranged, Cause):
        return Decision([stop(attempt, arranged)])
    fabric = plan_for(job, attempt)
    if isinstance(fabric, PlanRefused):
        return Decision(roll_back(attempt, fabric))
    key = vouch_key(state, job, attempt)
    return Decision([structs.replace(arranged, fabric=fabric, vouch_key=key)])


def _refused(job: Job, attempt: Attempt, task: Task, now: Instant, limits: Limits) -> Decision:
    """Wait for the other tasks' answers before the rollback.

    Whether all of them refuse alike decides if the job is retried.
    """
    if task.joined and attempt.phase is AttemptPhase.RUNNING:
        return Decision([*stop_or_leave(job, attempt, task, refusal_of(attempt, task))])
    if task.refusal is not None and task.refusal.code in BY_US:
        # The coordinator recorded this refusal together with its consequences.
        return Decision()
    match attempt.phase:
        case AttemptPhase.PREPARING | AttemptPhase.ARRANGING:
            if _settles(attempt, task):
                return Decision([_rolled_back(attempt)])
            answered = _all_answered(attempt)
            if answered:
                return Decision(answered)
            timer = a.Timer(a.TimerKind.REFUSED, job=attempt.job, attempt=attempt.number)
            return Decision([], [a.SetTimer(timer, now.mono + limits.refusal_wait_s)])
        case AttemptPhase.RUNNING:
            return Decision([_rolled_back(attempt)])
        case AttemptPhase.STOPPING | AttemptPhase.CLOSED:
            return Decision()
        case _:
            assert_never(attempt.phase)


def _settles(attempt: Attempt, task: Task) -> bool:
    """True if the fault of a refusal is clear at once."""
    if task.refusal is None or attempt.phase is AttemptPhase.PREPARING:
        return task.refusal is not None and task.refusal.node_fault
    return task.refusal.code != RefusalCode.UNREACHABLE


def _all_answered(attempt: Attempt) -> list[f.Fact]:
    """Roll back once every task has answered in this phase and at least one has refused."""
    if all(t.refusal is None for t in attempt.tasks):
        return []
    match attempt.phase:
        case AttemptPhase.PREPARING:
            asked, wanted = attempt.tasks, TaskState.PREPARED
        case AttemptPhase.ARRANGING:
            # Only the workers check that they reach the launcher.
            asked, wanted = attempt.tasks[1:], TaskState.ARRANGED
        case _:
            return []
    answered = all(t.refusal is not None or reached(t.state, wanted) for t in asked)
    return [_rolled_back(attempt)] if answered else []


def _rolled_back(attempt: Attempt) -> f.Fact:
    return stop(attempt, refusal_cause(attempt))


def _all_arranged(attempt: Attempt) -> list[f.Fact]:
    if attempt.phase is not AttemptPhase.ARRANGING:
        return []
    if any(t.refusal is not None for t in attempt.tasks):
        return _all_answered(attempt)
    if not all(reached(t.state, TaskState.ARRANGED) for t in attempt.tasks):
        return []
    return [f.AttemptStarted(attempt.job, attempt.number)]


def _listening(state: State, job: Job, attempt: Attempt, limits: Limits) -> Decision:
    decision = Decision()
    if attempt.phase is AttemptPhase.RUNNING:
        for task in attempt.tasks[1:]:
            if task.state is TaskState.ARRANGED:
                decision.effects += send_desired(state, job, attempt, task, task.state, limits)
    return decision


def _all_exited(attempt: Attempt) -> list[f.Fact]:
    if attempt.phase is not AttemptPhase.RUNNING:
        return []
    # Tasks that joined are in the same rendezvous, or came too late for it.
    if not all(t.exit is not None and t.exit.ok for t in attempt.present if not t.joined):
        return []
    text = "every rank finished" if len(attempt.tasks) > 1 else "it finished"
    cause = Cause(CauseCode.COMPLETED, Outcome.SUCCESS, text)
    return [stop(attempt, cause)]


def _ended_too_early(job: Job, attempt: Attempt, task: Task) -> list[f.Fact]:
    """Stop the gang of a program that ended well before it can have done its part.

    No node is to blame: only the job's own launcher does that.
    """
    if task.exit is None or not task.exit.ok or task.stopped_by:
        return []
    waiting = [t for t in attempt.present if not may_start(job, attempt, t)]
    if attempt.phase in (AttemptPhase.PREPARING, AttemptPhase.ARRANGING):
        when = "before the gang was started"
    elif attempt.phase is AttemptPhase.RUNNING and task.rank == 0 and waiting:
        nodes = named([t.node for t in waiting])
        when = f"without listening on port {attempt.master_port}, for which {nodes} waited"
    else:
        return []
    return [stop(attempt, launcher_ended(task, task.exit, when))]


def closed(attempt: Attempt) -> list[f.Fact]:
    if attempt.phase is not AttemptPhase.STOPPING:
        return []
    if not all(t.state in OVER for t in attempt.tasks):
        return []
    return [f.AttemptClosed(attempt.job, attempt.number)]


def _unexpected_end(job: Job, attempt: Attempt, task: Task) -> list[f.Fact]:
    """Stop the gang of a task that was cleaned before it ended by itself, without a request."""
    # After a restart, an agent killed while it refused a task no longer knows the reason.
    by_itself = task.exit is not None and task.stopped_by not in {"stop", "kill"}
    if by_itself or task.refusal is not None:
        return []
    text = f"{task.node} ended its part of the job by itself"
    return _vanished(job, attempt, task, text, CauseCode.TASK_VANISHED)


def _lost(job: Job, attempt: Attempt, task: Task, reason: str) -> list[f.Fact]:
    if task.exit is not None:
        return []
    text = f"{task.node} was lost: {reason}"
    return _vanished(job, attempt, task, text, CauseCode.NODE_LOST)


def _vanished(job: Job, attempt: Attempt, task: Task, text: str, code: CauseCode) -> list[f.Fact]:
    cause = Cause(code, Outcome.INFRA, text, node=task.node, node_fault=True)
    return [*stop_or_leave(job, attempt, task, cause)]
