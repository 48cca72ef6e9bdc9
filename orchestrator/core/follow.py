"""follow: what comes of a fact, whoever caused it. Reads the state after the fact, changes nothing.

An attempt's moves stand here: it follows the joint state of its tasks.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import structs

from muster.protocol.ids import NodeName, TaskId, parse_task_id
from muster.protocol.instant import Instant
from muster.protocol.messages import ForgetTask
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.refusals import RefusalCode
from muster.protocol.states import TaskState
from orchestrator.core import actions as a
from orchestrator.core import facts as f
from orchestrator.core import hang_facts as hf
from orchestrator.core import idle_facts as idf
from orchestrator.core import looks
from orchestrator.core import notice_facts as nf
from orchestrator.core import service_facts as sf
from orchestrator.core.attempt import AttemptPhase
from orchestrator.core.binding import binding_refused
from orchestrator.core.commands import folded, owed, signals, tasks_on, wanted
from orchestrator.core.decision import Decision
from orchestrator.core.drains import follow_service, leaves_after_checkpoint
from orchestrator.core.elastic import goes_on_without
from orchestrator.core.fabric import Refused
from orchestrator.core.gang_fabric import misfit, plan_for, roll_back
from orchestrator.core.hardware import follow_hardware
from orchestrator.core.idle import follow_idle, look_soon
from orchestrator.core.launch import Gang, gang_of
from orchestrator.core.limits import Limits
from orchestrator.core.meeting import choose_meeting
from orchestrator.core.node import LinkState
from orchestrator.core.notices import due
from orchestrator.core.placement import can_do_without
from orchestrator.core.policy import after_attempt, guilty_nodes
from orchestrator.core.preflight import refused_nodes
from orchestrator.core.quarantine import judged, quarantined, ready_elsewhere
from orchestrator.core.refusals import BY_US, refusal_cause, refusal_of
from orchestrator.core.silence import released, silent_timer, timers_of_the_silent
from orchestrator.core.state import Attempt, Job, State, Task
from orchestrator.core.task import OVER, reached
from orchestrator.core.timers import limit_timers, phase_timers, traffic_timer
from orchestrator.core.witnesses import accused, witnessed


def follow(state: State, fact: f.Fact, now: Instant, limits: Limits) -> Decision:
    match fact:
        case (
            f.TaskPrepared()
            | f.TaskRefused()
            | f.TaskArranged()
            | f.TaskListening()
            | f.TaskStarted()
            | f.TaskExited()
            | f.TaskCleaned()
            | f.TaskLost()
            | f.TaskLeft()
        ):
            return _task_moved(state, fact, now, limits)
        case (
            f.NodeHeard()
            | f.EpochStarted()
            | f.NodeRegistered()
            | f.TaskCut()
            | f.TaskBack()
            | f.NameClaimed()
            | f.PortsSeen()
            | f.DisksSeen()
            | f.SurvivorsSeen()
            | f.TrafficMeasured()
            | f.LeaseExtended()
            | f.NodeLeaseExpired()
            | f.JudgementPut()
            | f.BrakeSet()
            | f.SpaceChanged()
            | f.JobSubmitted()
            | f.JobHeld()
            | f.JobReleased()
            | f.CancelRequested()
            | f.JobRequeued()
            | f.JobForgotten()
            | hf.LookJoined()
            | hf.LookEnded()
            | hf.HangSuspected()
            | hf.HangDismissed()
            | hf.HangOver()
            | nf.NoticeDue()
            | nf.NoticeSettled()
            | nf.NoticeFailed()
            | sf.HardwareNoted()
        ):
            return Decision()
        case f.JobEnded(job_id):
            return Decision(due(state.jobs[job_id], nf.Told.ENDED))
        case hf.ActivityMeasured() | hf.LookBegun() | hf.StacksSeen() | hf.HangJudged():
            return looks.follow_look(state, fact, now, limits)
        case idf.IdleSeen() | idf.IdleTimed() | idf.IdleJudged() | idf.IdleOver():
            return follow_idle(state, fact, now)
        case f.TrafficJudged():
            job, attempt = _of(state, fact)
            return Decision([], traffic_timer(job, attempt, now, limits))
        case sf.HardwareReported():
            return follow_hardware(state, fact)
        case sf.NodeBlamed(name):
            return Decision(quarantined(state, state.nodes[name], limits))
        case (
            sf.NodeDrained()
            | sf.DrainTimed()
            | sf.NodeRemoved()
            | sf.NodeResumed()
            | sf.NodeTrusted()
            | sf.QuarantineSpared()
        ):
            return follow_service(state, fact, now)
        case f.NodeSynced(name, held):
            decision = _synced(state, name, held, limits)
            back = [task for task in tasks_on(state, name) if task.cut_at is not None]
            decision.facts += [f.TaskBack(task.job, task.attempt, task.rank) for task in back]
            return decision
        case f.FailureSuspected(_, task):
            return _suspected(state, task, now, limits)
        case f.JobChanged():
            # A limit that has moved takes its timers along.
            return Decision([], limit_timers(state, state.jobs[fact.job], now))
        case f.RunTimed(job_id, number):
            job = state.jobs[job_id]
            soon = look_soon(job, job.attempts[number - 1], now)
            return Decision([], [*limit_timers(state, job, now), *soon])
        case f.AttemptWarned() | f.SignalRequested():
            return _signalled(state, fact)
        case f.NodeDisconnected(name, _):
            away = state.nodes[name].link is LinkState.SUSPECT
            cut = [t for t in tasks_on(state, name) if t.cut_at is None] if away else []
            told: list[f.Fact] = [f.TaskCut(t.job, t.attempt, t.rank) for t in cut]
            told += witnessed(state, name, now, limits)
            return Decision(told, silent_timer(state, state.nodes[name], now, limits))
        case f.PeersSeen(_, task, _):
            return Decision(accused(state, task, now, limits))
        case f.NodeConnected():
            return Decision(released(state, now, limits))
        case f.TaskCheckpointed():
            return Decision(leaves_after_checkpoint(state, fact))
        case f.BrakeReleased():
            return Decision([], timers_of_the_silent(state))
        case f.RetryScheduled(job_id, _, delay_s, _):
            timer = a.Timer(a.TimerKind.RETRY, job=job_id)
            told = due(state.jobs[job_id], nf.Told.RETRYING)
            return Decision(told, [a.SetTimer(timer, now.mono + delay_s)])
        case f.AttemptArranged() if len(_of(state, fact)[1].tasks) == 1:
            # Nobody else has to be ready: its plan and its start are one commit and one message.
            return Decision([f.AttemptStarted(fact.job, fact.attempt)])
        case f.AttemptPlaced() | f.AttemptArranged() | f.AttemptStarted():
            return _phase_begun(state, fact, now, limits)
        case f.StopRequested() | f.StopForced() | f.GraceShortened():
            return _stopping(state, fact, limits)
        case f.TaskJoined(job_id, number, rank):
            job = state.jobs[job_id]
            attempt = job.attempts[number - 1]
            return Decision([], _tell(state, job, attempt, attempt.tasks[rank], None, limits))
        case f.AttemptClosed(job_id, number):
            return Decision(_after(state, state.jobs[job_id], number, limits))
        case _:
            assert_never(fact)


def _synced(
    state: State,
    name: NodeName,
    held: tuple[tuple[TaskId, TaskState], ...],
    limits: Limits,
) -> Decision:
    """Commands may have been lost with the old connection: say again all that is wanted."""
    session = state.nodes[name].session
    if session is None:
        return Decision()
    commands = [c for task, on_node in held for c in owed(state, name, task, on_node, limits)]
    known = {task for task, _ in held}
    for task in tasks_on(state, name):
        if task.id not in known:
            job = state.jobs[task.job]
            commands += wanted(job, job.attempts[task.attempt - 1], task, None, limits)
    return Decision([], [a.Send(name, session, command) for command in commands])


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
        decision.actions += _tell(state, job, attempt, task, on_node, limits, gang)
    return decision


def _after(state: State, job: Job, number: int, limits: Limits) -> list[f.Fact]:
    attempt = job.attempts[number - 1]
    guilty = guilty_nodes(attempt, attempt.cause) if attempt.cause is not None else frozenset()
    spare = can_do_without(state, job.spec, job.avoid | guilty)
    return [
        after_attempt(job, attempt, spare=spare),
        *judged(state, job, attempt, limits, spare=spare),
    ]


def _suspected(state: State, task: TaskId, now: Instant, limits: Limits) -> Decision:
    """Hear the others for a moment: one of them may have failed first."""
    job, number, _ = parse_task_id(task)
    attempt = state.jobs[job].attempts[number - 1]
    if sum(t.id in state.suspects for t in attempt.present) > 1:
        return Decision()
    timer = a.Timer(a.TimerKind.BLAME, job=job, attempt=number)
    return Decision([], [a.SetTimer(timer, now.mono + limits.blame_wait_s)])


def _signalled(state: State, fact: f.AttemptWarned | f.SignalRequested) -> Decision:
    """Those that cannot hear it now are told when they are back."""
    _, attempt = _of(state, fact)
    decision = Decision()
    for task in attempt.tasks:
        if task.state is not TaskState.STARTED or not task.present:
            continue
        session = state.nodes[task.node].session
        if session is not None:
            decision.actions += [
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
        if task.state not in OVER:
            decision.actions += _tell(state, job, attempt, task, task.state, limits)
    # A gang of which nothing is left, because all of it was lost, has nobody to wait for.
    decision.facts += _closed(attempt)
    return decision


def _task_moved(
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
    job, attempt = _of(state, fact)
    task = attempt.tasks[fact.rank]
    if task.joined and isinstance(fact, f.TaskPrepared | f.TaskArranged | f.TaskStarted):
        # Its gang waits for nobody.
        if isinstance(fact, f.TaskPrepared) and (refused := misfit(job, attempt, task)):
            return Decision([refused])
        return Decision([], _tell(state, job, attempt, task, task.state, limits))
    match fact:
        case f.TaskPrepared() | f.TaskArranged() if task.refusal is not None:
            # Said in one breath: what comes of the refusal has been decided.
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
            return Decision([timed, *due(job, nf.Told.STARTED)])
        case f.TaskExited():
            # Of one that has left, what comes of that has been decided.
            return Decision(_all_exited(attempt) if task.present else [])
        case f.TaskCleaned():
            session = state.nodes[task.node].session
            forget: list[a.Action] = []
            if session is not None:
                forget.append(a.Send(task.node, session, ForgetTask(task.id)))
            return Decision(_closed(attempt) or _unexpected_end(job, attempt, task), forget)
        case f.TaskLost(_, _, _, reason):
            return Decision(_closed(attempt) or _lost(job, attempt, task, reason))
        case f.TaskLeft():
            # The others may have ended before.
            told = (
                [] if task.state in OVER else _tell(state, job, attempt, task, task.state, limits)
            )
            return Decision(_all_exited(attempt), told)
        case _:
            assert_never(fact)


def _prepared(state: State, job: Job, attempt: Attempt) -> Decision:
    if attempt.phase is not AttemptPhase.PREPARING:
        return Decision()
    # Not by their states: a task that has refused is cleaned, whether it was prepared or not.
    if any(t.prepared is None or t.refusal is not None for t in attempt.tasks):
        return Decision(_all_answered(attempt))
    if refused := refused_nodes(state, job, attempt):
        return Decision(refused)
    meeting = binding_refused(job, attempt) or choose_meeting(state, attempt)
    if isinstance(meeting, Cause):
        return Decision([f.StopRequested(attempt.job, attempt.number, meeting)])
    fabric = plan_for(job, attempt)
    if isinstance(fabric, Refused):
        return Decision(roll_back(attempt, fabric))
    return Decision([structs.replace(meeting, fabric=fabric)])


def _refused(job: Job, attempt: Attempt, task: Task, now: Instant, limits: Limits) -> Decision:
    """Hear the others for a moment: whether all refuse alike decides what becomes of the job."""
    if task.joined and attempt.phase is AttemptPhase.RUNNING:
        return Decision(_ended(job, attempt, task, refusal_of(attempt, task)))
    if task.refusal is not None and task.refusal.code in BY_US:
        # By us, and what comes of it has been decided.
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
    """Whether it is clear at once whose fault a refusal is."""
    if task.refusal is None or attempt.phase is AttemptPhase.PREPARING:
        return task.refusal is not None and task.refusal.node_fault
    return task.refusal.code != RefusalCode.UNREACHABLE


def _all_answered(attempt: Attempt) -> list[f.Fact]:
    """Everybody has said what the phase asks for, or that it refuses, and one does."""
    if all(t.refusal is None for t in attempt.tasks):
        return []
    match attempt.phase:
        case AttemptPhase.PREPARING:
            asked, wanted = attempt.tasks, TaskState.PREPARED
        case AttemptPhase.ARRANGING:
            # Whether they reach the launcher is for the workers to say.
            asked, wanted = attempt.tasks[1:], TaskState.ARRANGED
        case _:
            return []
    answered = all(t.refusal is not None or reached(t.state, wanted) for t in asked)
    return [_rolled_back(attempt)] if answered else []


def _rolled_back(attempt: Attempt) -> f.Fact:
    return f.StopRequested(attempt.job, attempt.number, refusal_cause(attempt))


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
                decision.actions += _tell(state, job, attempt, task, task.state, limits)
    return decision


def _all_exited(attempt: Attempt) -> list[f.Fact]:
    if attempt.phase is not AttemptPhase.RUNNING:
        return []
    # Those that joined are in the same rendezvous, or came too late for it.
    if not all(t.exit is not None and t.exit.ok for t in attempt.present if not t.joined):
        return []
    text = "every rank finished" if len(attempt.tasks) > 1 else "it finished"
    cause = Cause(CauseCode.COMPLETED, Outcome.SUCCESS, text)
    return [f.StopRequested(attempt.job, attempt.number, cause)]


def _closed(attempt: Attempt) -> list[f.Fact]:
    if attempt.phase is not AttemptPhase.STOPPING:
        return []
    if not all(t.state in OVER for t in attempt.tasks):
        return []
    return [f.AttemptClosed(attempt.job, attempt.number)]


def _unexpected_end(job: Job, attempt: Attempt, task: Task) -> list[f.Fact]:
    """A task that is gone before it ran to its end, although nobody asked for that."""
    if attempt.phase is AttemptPhase.STOPPING or attempt.phase is AttemptPhase.CLOSED:
        return []
    # An agent that was killed as it refused finds what it has ended, and knows no more why.
    by_itself = task.exit is not None and task.stopped_by not in {"stop", "kill"}
    if by_itself or task.refusal is not None:
        return []
    text = f"{task.node} ended its part of the job without being asked"
    return _vanished(job, attempt, task, text, CauseCode.TASK_VANISHED)


def _lost(job: Job, attempt: Attempt, task: Task, reason: str) -> list[f.Fact]:
    if attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED) or task.exit is not None:
        return []
    text = f"{task.node} was lost: {reason}"
    return _vanished(job, attempt, task, text, CauseCode.NODE_LOST)


def _vanished(job: Job, attempt: Attempt, task: Task, text: str, code: CauseCode) -> list[f.Fact]:
    cause = Cause(code, Outcome.INFRA, text, node=task.node, node_fault=True)
    return _ended(job, attempt, task, cause)


def _ended(job: Job, attempt: Attempt, task: Task, cause: Cause) -> list[f.Fact]:
    """One task is at its end before the gang: so is the gang, unless it can go on without."""
    if not task.present:
        return []
    if goes_on_without(job, attempt, task, cause):
        return [f.TaskLeft(task.job, task.attempt, task.rank, cause.text)]
    return [f.StopRequested(attempt.job, attempt.number, cause)]


def _tell(
    state: State,
    job: Job,
    attempt: Attempt,
    task: Task,
    on_node: TaskState | None,
    limits: Limits,
    gang: Gang | None = None,
) -> list[a.Action]:
    """Send what is wanted, if the node can hear it; if not, its next Hello asks again."""
    session = state.nodes[task.node].session
    if session is None:
        return []
    commands = folded(
        wanted(job, attempt, task, on_node, limits, gang), state.nodes[task.node].protocol
    )
    return [a.Send(task.node, session, command) for command in commands]


def _of(state: State, fact: _AttemptFact) -> tuple[Job, Attempt]:
    job = state.jobs[fact.job]
    return job, job.attempts[fact.attempt - 1]


_AttemptFact = (
    f.AttemptPlaced
    | f.AttemptArranged
    | f.AttemptStarted
    | f.AttemptWarned
    | f.SignalRequested
    | f.StopRequested
    | f.StopForced
    | f.GraceShortened
    | f.TaskPrepared
    | f.TaskRefused
    | f.TaskArranged
    | f.TaskListening
    | f.TaskStarted
    | f.TaskExited
    | f.TaskCleaned
    | f.TaskLost
    | f.TaskLeft
    | f.TrafficJudged
)
