"""react: the consequences of a fact. Reads the state after the fact, changes nothing.

They do not depend on the input that caused the fact. The consequences of a task's transition for
its gang are in orchestrator/core/gangs/transitions.py.
"""

from __future__ import annotations

from typing import assert_never

from muster.protocol.ids import NodeName, TaskId, parse_task_id, task_id
from muster.protocol.instant import Instant
from muster.protocol.states import TaskState
from orchestrator.core.engine.timers import phase_timers, traffic_timer
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import hangs as hf
from orchestrator.core.facts import idle as idf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts import restored as rf
from orchestrator.core.facts import service as sf
from orchestrator.core.facts import webhooks as nf
from orchestrator.core.facts.base import AttemptFact, Inert, TaskFact
from orchestrator.core.facts.decision import Decision
from orchestrator.core.facts.members import MemberAdded, NodeAdmitted, TermsStored
from orchestrator.core.facts.observations import TaskObserved
from orchestrator.core.gangs.commands import (
    commands_for_reported_task,
    desired_commands,
    send_desired,
    send_terms,
    signals,
    tasks_on,
)
from orchestrator.core.gangs.late_limit import limit_timer, limit_timers_on
from orchestrator.core.gangs.launch import gang_of
from orchestrator.core.gangs.retry_policy import after_attempt
from orchestrator.core.gangs.silent_members import (
    ask_node_to_confirm,
    ask_to_confirm,
    silent_tasks,
)
from orchestrator.core.gangs.transitions import closed, task_moved
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.blame import guilty_nodes
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Attempt, Job, State
from orchestrator.core.model.task import OVER
from orchestrator.core.monitoring import stack_dumps
from orchestrator.core.monitoring.idle_gpus import react_to_idle, schedule_idle_check
from orchestrator.core.nodes.drains import leaves_after_checkpoint, react_to_drain
from orchestrator.core.nodes.hardware import react_to_hardware
from orchestrator.core.nodes.liveness import silent_timer, timers_of_the_silent
from orchestrator.core.nodes.peer_reports import (
    apply_peer_reports,
    on_peers_unreachable,
    word_timer,
)
from orchestrator.core.nodes.quarantine import judged, quarantined, ready_elsewhere
from orchestrator.core.nodes.restored import react_to_declared_lost, settled
from orchestrator.core.nodes.unkillable import not_retried
from orchestrator.core.scheduling.placement import can_do_without
from orchestrator.core.webhooks.outbox import queue_webhooks


def react(state: State, fact: f.Fact, now: Instant, limits: Limits) -> Decision:
    match fact:
        case Inert():
            return Decision()
        case f.TaskExited():
            moved = task_moved(state, fact, now, limits)
            # The other ranks may have been silent before, so evaluate the hang now.
            job = state.jobs[fact.job]
            left = stack_dumps.evaluate_hang(state, job, job.attempt(fact.attempt), now, limits)
            return Decision([*moved.facts, *left.facts], [*moved.effects, *left.effects])
        case f.TaskJoined(job_id, number, rank):
            job = state.jobs[job_id]
            attempt = job.attempt(number)
            task = attempt.tasks[rank]
            return Decision([], send_desired(state, job, attempt, task, None, limits))
        case MemberAdded(job_id) | NodeAdmitted(job_id):
            return Decision([], send_terms(state, state.jobs[job_id]))
        case TermsStored():
            # Another node's confirmation may end a task that has left.
            name = task_id(fact.job, fact.attempt, fact.rank)
            let_in = _let_in(state, fact, limits)
            return Decision([], [*_silent_timers(state, name, now, limits), *let_in])
        case f.TaskCheckpointed():
            return Decision(leaves_after_checkpoint(state, fact))
        case TaskFact():
            return task_moved(state, fact, now, limits)
        case f.JobEnded(job_id):
            return Decision(queue_webhooks(state, state.jobs[job_id], nf.WebhookEvent.ENDED))
        case TaskObserved():
            return _observed(state, fact, now, limits)
        case hf.StackDumpBegun() | hf.StacksReported() | hf.HangJudged():
            return stack_dumps.react_to_stack_dump(state, fact, now, limits)
        case idf.IdleJudged():
            return react_to_idle(state, fact, now)
        case f.TrafficJudged():
            job, attempt = _of(state, fact)
            return Decision([], traffic_timer(job, attempt, now, limits))
        case sf.HardwareReported():
            return react_to_hardware(state, fact)
        case sf.NodeFaultRecorded(name):
            return Decision(quarantined(state, state.nodes[name], limits))
        case sf.NodeDrained() | sf.DrainTimed():
            return react_to_drain(state, fact, now)
        case lf.NodeSynced(name, held):
            synced = _synced(state, name, held, limits)
            return Decision(synced.facts, [*synced.effects, *limit_timers_on(state, name, now)])
        case lf.FailureSuspected(_, task):
            return _suspected(state, task, now, limits)
        case f.JobChanged(job_id):
            job = state.jobs[job_id]
            return Decision([], [*send_terms(state, job), *limit_timer(state, job, now)])
        case f.RunTimed(job_id, number):
            job = state.jobs[job_id]
            idle = schedule_idle_check(job, job.attempt(number), now)
            return Decision([], [*idle, *limit_timer(state, job, now)])
        case f.SignalRequested():
            return _signalled(state, fact)
        case lf.NodeDisconnected(name, _):
            return _disconnected(state, name, now, limits)
        case lf.TaskMuted(_, task):
            return Decision([], _silent_timers(state, task, now, limits))
        case lf.NodeConnected(name):
            return Decision([], word_timer(state, name))
        case rf.NodeDeclaredLost():
            return Decision(react_to_declared_lost(state, fact))
        case lf.UnknownTasksHeld(name) | lf.UnknownTaskOver(name):
            return Decision(settled(state, name))
        case cf.LivenessPaused():
            return Decision([], timers_of_the_silent(state))
        case f.RetryScheduled(job_id, _, delay_s, _):
            timer = a.Timer(a.TimerKind.RETRY, job=job_id)
            facts = queue_webhooks(state, state.jobs[job_id], nf.WebhookEvent.RETRYING)
            return Decision(facts, [a.SetTimer(timer, now.mono + delay_s)])
        case f.AttemptArranged() if len(_of(state, fact)[1].tasks) == 1:
            # A single node waits for no other: its plan and its start share a commit and a message.
            return Decision([f.AttemptStarted(fact.job, fact.attempt)])
        case f.AttemptPlaced() | f.AttemptArranged() | f.AttemptStarted():
            return _phase_begun(state, fact, now, limits)
        case f.StopRequested() | f.StopForced() | f.GraceShortened():
            return _stopping(state, fact, limits)
        case f.AttemptClosed(job_id, number):
            return Decision(_after(state, state.jobs[job_id], number, limits))
        case _:
            assert_never(fact)


def _disconnected(state: State, name: NodeName, now: Instant, limits: Limits) -> Decision:
    node, facts = state.nodes[name], list[f.Fact]()
    if node.link is LinkState.SUSPECT:
        cut = [t for t in tasks_on(state, name) if t.cut_at is None]
        facts += [f.TaskUnreachable(t.job, t.attempt, t.rank) for t in cut]
    facts += apply_peer_reports(state, name, now, limits)
    attempts = [state.jobs[job].attempt(number) for job, number in sorted(node.holders)]
    asked = [effect for attempt in attempts for effect in ask_to_confirm(state, attempt)]
    return Decision(facts, [*silent_timer(state, node, now, limits), *asked])


def _silent_timers(state: State, task: TaskId, now: Instant, limits: Limits) -> list[a.Effect]:
    """Return the timers of the silent nodes of a gang of which this task vouches no more."""
    attempt = state.attempt(*parse_task_id(task)[:2])
    silent = [] if attempt is None else silent_tasks(state, attempt)
    nodes = [state.nodes[task.node] for task in silent]
    return [it for node in nodes for it in silent_timer(state, node, now, limits)]


def _let_in(state: State, fact: TermsStored, limits: Limits) -> list[a.Effect]:
    """Send their plans to joining tasks that the launcher's node lets in by now."""
    job = state.jobs[fact.job]
    attempt = job.attempt(fact.attempt)
    if fact.rank != 0 or attempt.phase is not AttemptPhase.RUNNING:
        return []
    waiting = [it for it in attempt.present if it.joined and it.state is TaskState.PREPARED]
    return [
        it for task in waiting for it in send_desired(state, job, attempt, task, task.state, limits)
    ]


def _synced(
    state: State,
    name: NodeName,
    held: tuple[tuple[TaskId, TaskState], ...],
    limits: Limits,
) -> Decision:
    """Send all desired commands again, as the old connection may have lost some."""
    back: list[f.Fact] = [
        f.TaskReachable(task.job, task.attempt, task.rank)
        for task in tasks_on(state, name)
        if task.cut_at is not None
    ]
    session = state.nodes[name].session
    if session is None:
        return Decision(back)
    commands = [
        c
        for task, on_node in held
        for c in commands_for_reported_task(state, name, task, on_node, limits)
    ]
    known = {task for task, _ in held}
    for task in tasks_on(state, name):
        if task.id not in known:
            job = state.jobs[task.job]
            commands += desired_commands(job, job.attempt(task.attempt), task, None, limits)
    sent = [a.Send(name, session, command) for command in commands]
    return Decision(back, [*sent, *ask_node_to_confirm(state, name)])


def _phase_begun(
    state: State,
    fact: f.AttemptPlaced | f.AttemptArranged | f.AttemptStarted,
    now: Instant,
    limits: Limits,
) -> Decision:
    job, attempt = _of(state, fact)
    ready = ready_elsewhere(state, job, limits) if isinstance(fact, f.AttemptStarted) else []
    decision = Decision(ready, phase_timers(attempt, now, limits))
    gang = gang_of(job, attempt) if attempt.phase is AttemptPhase.ARRANGING else None
    for task in attempt.tasks:
        on_node = None if task.state is TaskState.ASSIGNED else task.state
        decision.effects += send_desired(state, job, attempt, task, on_node, limits, gang)
    return decision


def _after(state: State, job: Job, number: int, limits: Limits) -> list[f.Fact]:
    attempt = job.attempt(number)
    guilty = guilty_nodes(attempt, attempt.cause) if attempt.cause is not None else frozenset()
    spare = can_do_without(state, job.spec, job.avoid | guilty)
    after = after_attempt(job, attempt, spare=spare)
    return [
        not_retried(state, job, after) or after,
        *judged(state, job, attempt, limits, spare=spare),
    ]


def _observed(state: State, fact: TaskObserved, now: Instant, limits: Limits) -> Decision:
    task = state.task(fact.task)
    if task is None:
        return Decision()
    job = state.jobs[task.job]
    attempt = job.attempt(task.attempt)
    decision = Decision()
    if fact.silent is not None:
        decision.facts += on_peers_unreachable(state, task, now, limits)
    if fact.activity is not None:
        hang = stack_dumps.evaluate_hang(state, job, attempt, now, limits)
        decision.facts += hang.facts
        decision.effects += hang.effects
    if isinstance(fact.idle_since, float):
        decision.effects += schedule_idle_check(job, attempt, now)
    return decision


def _suspected(state: State, task: TaskId, now: Instant, limits: Limits) -> Decision:
    """Wait shortly for reports of the other ranks: one of them may have failed first."""
    job, number, _ = parse_task_id(task)
    attempt = state.jobs[job].attempt(number)
    if sum(t.id in state.suspects for t in attempt.present) > 1:
        return Decision()
    timer = a.Timer(a.TimerKind.FAILURE_CAUSE, job=job, attempt=number)
    return Decision([], [a.SetTimer(timer, now.mono + limits.blame_wait_s)])


def _signalled(state: State, fact: f.SignalRequested) -> Decision:
    """Send the newest signal to the connected nodes. The others get it when they reconnect."""
    _, attempt = _of(state, fact)
    decision = Decision()
    for task in attempt.tasks:
        if task.state is not TaskState.STARTED or not task.present:
            continue
        session = state.nodes[task.node].session
        if session is not None:
            decision.effects += [
                a.Send(task.node, session, command)
                for command in signals(task, attempt.signals[-1:])
            ]
    return decision


def _stopping(
    state: State, fact: f.StopRequested | f.StopForced | f.GraceShortened, limits: Limits
) -> Decision:
    job, attempt = _of(state, fact)
    decision = Decision()
    for task in attempt.tasks:
        # The node of an ended task may have kept it to vouch for the others.
        kept = task.state is TaskState.CLEANED and bool(attempt.vouch_key)
        if task.state not in OVER or kept:
            decision.effects += send_desired(state, job, attempt, task, task.state, limits)
    decision.effects += ask_to_confirm(state, attempt)
    # If every task is over, such as when all are lost, close the attempt at once.
    decision.facts += closed(attempt)
    return decision


def _of(state: State, fact: AttemptFact) -> tuple[Job, Attempt]:
    job = state.jobs[fact.job]
    return job, job.attempt(fact.attempt)
