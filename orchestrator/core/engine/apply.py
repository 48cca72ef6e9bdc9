"""apply: change the state by one fact. Total, without choices; used live and in replay alike."""

from __future__ import annotations

from typing import Final, assert_never

from muster.protocol.ids import NodeName, task_id
from muster.protocol.outcome import Cause
from muster.protocol.states import TaskState
from orchestrator.core.engine.apply_jobs import apply_job, apply_promise, dequeue, job_to
from orchestrator.core.engine.apply_links import apply_cluster, apply_link
from orchestrator.core.engine.apply_restored import apply_restored
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import restored as rf
from orchestrator.core.facts.base import AttemptFact, ClusterFact, JobFact, TaskFact
from orchestrator.core.facts.enrolment import EnrolmentFact
from orchestrator.core.facts.hangs import HangFact
from orchestrator.core.facts.idle import IdleFact
from orchestrator.core.facts.links import LinkFact
from orchestrator.core.facts.members import MemberAdded, NodeAdmitted, OfMembers, TermsStored
from orchestrator.core.facts.observations import TaskObserved
from orchestrator.core.facts.people import PeopleFact
from orchestrator.core.facts.queue import PromiseFact
from orchestrator.core.facts.service import HardwareNoted, ServiceFact
from orchestrator.core.facts.webhooks import WebhookFact
from orchestrator.core.model.attempt import ATTEMPT_TRANSITIONS, AttemptPhase
from orchestrator.core.model.errors import InvalidTransition
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.state import Attempt, Job, Signal, State, Task, Unreachable, make_tasks
from orchestrator.core.model.task import OVER, TASK_TRANSITIONS, reached
from orchestrator.core.monitoring.checkpoints import apply_checkpoint
from orchestrator.core.monitoring.hang_state import apply_hang
from orchestrator.core.monitoring.idle_gpus import apply_idle
from orchestrator.core.monitoring.task_observations import apply_observations
from orchestrator.core.nodes.enrolment import apply_enrolment
from orchestrator.core.nodes.service_state import apply_service
from orchestrator.core.rights.people import apply_people
from orchestrator.core.scheduling.gpus import share_of
from orchestrator.core.webhooks.outbox import apply_webhook

_REQUESTS: Final = (f.JobChanged, f.JobHeld, f.JobReleased, f.SignalRequested)
CUTS_KEPT: Final = 400
SIGNALS_KEPT: Final = 16
"""Signals kept per attempt, to send again to a node whose connection may have lost them."""


def apply(state: State, fact: f.Fact, at: float) -> None:
    """Change `state` by `fact`, which was recorded at `at` (UTC seconds, for display only)."""
    match fact:
        case LinkFact():
            apply_link(state, fact)
        case TaskFact():
            _apply_task(state, fact, at)
        case HangFact():
            apply_hang(state, fact, at)
        case IdleFact():
            apply_idle(state, fact, at)
        case TaskObserved():
            apply_observations(state, fact)
        case AttemptFact():
            _apply_attempt(state, fact, at)
        case WebhookFact():
            apply_webhook(state, fact, at)
        case PromiseFact():
            apply_promise(state.jobs[fact.job], fact, at)
        case JobFact():
            apply_job(state, fact, at)
        case ServiceFact():
            apply_service(state, fact, at)
        case rf.JournalRestored() | rf.RestoredNodeSettled() | rf.NodeDeclaredLost():
            apply_restored(state, fact)
        case PeopleFact():
            apply_people(state.people, fact, at)
        case EnrolmentFact():
            apply_enrolment(state.enrolment, fact, at)
        case ClusterFact():
            apply_cluster(state, fact)
        case _:
            assert_never(fact)
    if isinstance(fact, JobFact) and fact.revises:
        job = state.jobs[fact.job]
        job.revision += 1
        job.requests += isinstance(fact, _REQUESTS)


def _apply_attempt(state: State, fact: f.OfAttempt, at: float) -> None:
    job = state.jobs[fact.job]
    if isinstance(fact, f.AttemptPlaced):
        dequeue(state, job)
        job_to(job, JobPhase.ACTIVE)
        tasks = make_tasks(job.id, fact.attempt, fact.nodes, fact.gpus)
        job.attempts.append(
            Attempt(
                job.id, fact.attempt, tasks, at, placement_reason=fact.why, lease_s=fact.lease_s
            )
        )
        if fact.ahead:
            job.attempts[-1].changes.add(at, fact.ahead)
        for task in tasks:
            _take(state, job, task)
        return
    attempt = job.attempt(fact.attempt)
    match fact:
        case f.AttemptArranged(
            _, _, master_addr, master_port, endpoints, network, fabric, machine, key
        ):
            _attempt_to(attempt, AttemptPhase.ARRANGING)
            attempt.endpoints, attempt.network = endpoints, network
            attempt.fabric, attempt.vouch_key = fabric, key
            attempt.master_addr, attempt.master_port = master_addr, master_port
            attempt.prepared_at = at
            launcher = state.nodes[attempt.tasks[0].node]
            attempt.machine_id = launcher.inventory.machine_id if machine is None else machine
            state.ports.setdefault(attempt.machine_id, set()).add(master_port)
        case f.AttemptStarted():
            _attempt_to(attempt, AttemptPhase.RUNNING)
            attempt.released_at = at
            if job.spec.elastic:
                state.elastic.add(job.id)
        case f.StopRequested(_, _, cause):
            _stop(state, job, attempt, cause, at)
        case f.StopForced():
            attempt.forced = True
        case f.GraceShortened():
            attempt.shortened = at, fact.grace_s
            job.requests += 1
            job.notes.add(at, fact.describe())
        case f.AttemptClosed():
            _attempt_to(attempt, AttemptPhase.CLOSED)
            attempt.closed_at = at
            state.ports.get(attempt.machine_id, set()).discard(attempt.master_port)
        case f.AttemptWarned() | f.SignalRequested():
            _apply_signal(job, attempt, fact, at)
        case f.RunTimed(_, _, since):
            if attempt.phase is AttemptPhase.RUNNING:
                state.running[job.id] = since
        case f.TrafficJudged(_, _, proof):
            attempt.proof = proof
            attempt.verdicts += 1
            attempt.changes.add(at, fact.describe())
        case HardwareNoted():
            attempt.changes.add(at, fact.describe())
        case _:
            assert_never(fact)


def _apply_task(state: State, fact: f.OfTask, at: float) -> None:
    job = state.jobs[fact.job]
    attempt = job.attempt(fact.attempt)
    if isinstance(fact, f.TaskJoined):
        _join(state, job, attempt, fact, at)
        return
    task = attempt.tasks[fact.rank]
    match fact:
        case f.TaskPrepared(_, _, _, prepared):
            _task_to(task, TaskState.PREPARED)
            task.prepared = prepared
        case f.TaskRefused(_, _, _, refusal):
            task.refusal = refusal
        case f.TaskArranged(_, _, _, warnings):
            _task_to(task, TaskState.ARRANGED)
            task.warnings = warnings
        case f.TaskListening():
            task.listening = True
        case f.TaskStarted():
            _task_to(task, TaskState.STARTED)
            if not task.joined and all(reached(t.state, TaskState.STARTED) for t in attempt.tasks):
                attempt.started_at = at
        case f.RanksStarted(_, _, _, start):
            task.start = start
        case f.TaskExited(_, _, _, exit_status, ranks, stopped_by, traffic, ran_s):
            _task_to(task, TaskState.EXITED)
            task.traffic, task.ran_s = traffic, ran_s
            task.exit, task.ranks, task.stopped_by = exit_status, ranks, stopped_by
        case f.TaskCleaned(_, _, _, no_output, epilog):
            _task_to(task, TaskState.CLEANED)
            task.no_output, task.warnings = no_output, task.warnings + ((epilog,) if epilog else ())
        case f.TaskLost(_, _, _, _, proof):
            _task_lost(task, proof)
        case f.TaskUnreachable():
            task.cut_at = at
            attempt.cuts.append(Unreachable(at, task.node))
        case f.TaskReachable():
            since = at if task.cut_at is None else task.cut_at
            attempt.cuts.append(Unreachable(at, task.node, max(0.0, at - since)))
            task.cut_at = None
        case f.TaskCheckpointed():
            apply_checkpoint(attempt, task, fact, at)
        case f.TaskLeft():
            _leave(job, attempt, task, fact, at)
        case MemberAdded() | NodeAdmitted() | TermsStored():
            _change_terms(job, attempt, task, fact)
        case _:
            assert_never(fact)
    del attempt.cuts[:-CUTS_KEPT]
    if task.state in OVER:
        task.traffic = None if task.exit is None else task.traffic
        _release(state, attempt, task)


def _change_terms(job: Job, attempt: Attempt, task: Task, fact: OfMembers) -> None:
    match fact:
        case NodeAdmitted():
            attempt.terms = job.next_terms(attempt)
            task.admitted_from = attempt.terms
        case MemberAdded():
            attempt.terms = job.next_terms(attempt)
            task.member_from = attempt.terms
        case TermsStored(_, _, _, number, received_at):
            task.terms, task.terms_at = number, received_at


def _leave(job: Job, attempt: Attempt, task: Task, fact: f.TaskLeft, at: float) -> None:
    task.left, task.left_force = fact.reason, fact.force
    attempt.terms = job.next_terms(attempt)
    if attempt.vouch_key:
        task.member_until = attempt.terms
    here = len(attempt.present)
    nodes = "1 node goes" if here == 1 else f"{here} nodes go"
    attempt.changes.add(at, f"{fact.reason}; {nodes} on")


def _join(state: State, job: Job, attempt: Attempt, fact: f.TaskJoined, at: float) -> None:
    name = task_id(job.id, attempt.number, fact.rank)
    task = Task(name, job.id, attempt.number, fact.rank, fact.node)
    task.joined, task.endpoint, task.gpus = True, fact.endpoint, fact.gpus
    task.joined_after_s = fact.after_s
    task.planned_terms, task.member_from = attempt.terms, None
    attempt.tasks.append(task)
    attempt.changes.add(at, f"{fact.node} joins")
    _take(state, job, task)


def _stop(state: State, job: Job, attempt: Attempt, cause: Cause, at: float) -> None:
    _attempt_to(attempt, AttemptPhase.STOPPING)
    state.elastic.discard(job.id)
    state.running.pop(job.id, None)
    state.idle_reported.pop(job.id, None)
    attempt.cause, attempt.stopping_at = cause, at
    asked = job.cancel[2] if job.cancel is not None else None
    attempt.grace_s = job.spec.stop.grace_s if asked is None else asked
    for task in attempt.tasks:
        state.suspects.pop(task.id, None)
        if task.state in OVER:
            _release(state, attempt, task)
    state.watches.pop((job.id, attempt.number), None)


def _apply_signal(
    job: Job, attempt: Attempt, fact: f.AttemptWarned | f.SignalRequested, at: float
) -> None:
    match fact:
        case f.AttemptWarned(_, _, warned_s):
            attempt.warned_at, attempt.warned_s = at, warned_s
            warn = job.spec.stop.warn
            if warn is not None and warned_s is None:
                _signal(attempt, warn.signal, late=True)
        case f.SignalRequested():
            _signal(attempt, fact.signal, node=fact.node, rank=fact.rank)
            job.notes.add(at, fact.describe())
        case _:
            assert_never(fact)


def _signal(
    attempt: Attempt,
    name: str,
    *,
    late: bool = False,
    node: NodeName | None = None,
    rank: int | None = None,
) -> None:
    number = attempt.signals[-1].number + 1 if attempt.signals else 1
    attempt.signals.append(Signal(number, name, late, node, rank))
    del attempt.signals[:-SIGNALS_KEPT]


def _take(state: State, job: Job, task: Task) -> None:
    node = state.nodes[task.node]
    node.holders[task.job, task.attempt] = share_of(job.spec, task.gpus)
    node.declared_lost = False


def _release(state: State, attempt: Attempt, task: Task) -> None:
    """Release the task's node, unless the attempt needs it for this task or for another one."""
    if any(attempt.holds(other) for other in attempt.tasks if other.node == task.node):
        return
    node = state.nodes.get(task.node)  # may have been removed since the task left
    if node is not None:
        node.holders.pop((task.job, task.attempt), None)


def _attempt_to(attempt: Attempt, phase: AttemptPhase) -> None:
    if phase not in ATTEMPT_TRANSITIONS[attempt.phase]:
        raise InvalidTransition(
            f"attempt {attempt.job}.{attempt.number}: {attempt.phase.value} to {phase.value}"
        )
    attempt.phase = phase


def _task_lost(task: Task, proof: TaskProof | None) -> None:
    _task_to(task, TaskState.LOST)
    task.proof = proof


def _task_to(task: Task, new: TaskState) -> None:
    if new not in TASK_TRANSITIONS[task.state]:
        raise InvalidTransition(f"task {task.id}: {task.state.value} to {new.value}")
    task.state = new
