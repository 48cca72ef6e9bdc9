"""decide: turn an input into facts and effects. Reads the state, changes nothing.

Consequences of a fact that do not depend on the input are in `react`. This module handles only what
agents, users, timers and the shell report and request.
"""

from __future__ import annotations

import math
from typing import Final, assert_never

from muster.protocol.ids import JobId, SessionId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    Heartbeat,
    HeartbeatAck,
    NodeChanges,
    StacksReport,
    TaskReport,
    Welcome,
)
from muster.protocol.states import TaskState
from orchestrator.core.engine.apply_jobs import bytes_of
from orchestrator.core.engine.timers import decide_timer, restart_timers
from orchestrator.core.engine.user_requests import cancel, change, signal
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import links as lf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.failures.causes import (
    ended_before_s,
    from_report,
    is_consequence,
    limit_over,
)
from orchestrator.core.failures.stops import (
    affects_gang,
    lost,
    stop,
    stop_or_leave,
    was_killed,
)
from orchestrator.core.gangs.commands import commands_for_reported_task, tasks_on
from orchestrator.core.gangs.silent_members import vouching_ended
from orchestrator.core.gangs.task_reports import new_facts_from_report, time_limit_warnings
from orchestrator.core.gangs.workdir_hint import add_workdir_hint
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.proof import TaskProof
from orchestrator.core.model.state import Attempt, Job, State, Task
from orchestrator.core.model.task import OVER
from orchestrator.core.monitoring import stack_dumps, traffic
from orchestrator.core.monitoring.task_observations import observation_facts
from orchestrator.core.nodes.admission import NAME_CODES, clock_ahead_s, is_outdated, refuse
from orchestrator.core.nodes.crash_loops import restarted
from orchestrator.core.nodes.drains import drain, remove, resume
from orchestrator.core.nodes.enrolment import (
    decide_enrolment,
    joined_refused,
    refuse_certificate,
    refuse_pool,
    shown,
)
from orchestrator.core.nodes.given_settings import changed_settings
from orchestrator.core.nodes.hardware import hardware_facts, may_be_hardware
from orchestrator.core.nodes.observations import change_facts, health_facts, settings_facts
from orchestrator.core.nodes.registration import refuse_registration, registered
from orchestrator.core.nodes.restored import (
    declare_lost,
    ends_half_begun,
    gone_since_backup,
    stopped_since_backup,
    unknown_task_over,
    unknown_tasks_held,
)
from orchestrator.core.nodes.submitters import submitters, with_users
from orchestrator.core.nodes.unkillable import (
    connected_with_survivors,
    declare_task_lost,
    drain_for_unkillable,
    survivor_facts,
)
from orchestrator.core.rights.people import decide_people, import_people
from orchestrator.core.scheduling.placement import never_fits
from orchestrator.core.webhooks.outbox import on_attempted

VERSION = "0.1.0"
REBOOTED: Final = "it rebooted"


def decide(state: State, received: s.Input, now: Instant, limits: Limits) -> Decision:
    match received:
        case s.ReportReceived(session, report):
            return _report(state, session, report, now, limits)
        case s.CoordinatorStarted():
            return _started(state, received, now, limits)
        case s.SubmitReceived():
            return _submit(state, received, limits)
        case s.CancelReceived():
            return cancel(state, received)
        case s.ChangeReceived():
            return change(state, received, now)
        case s.SignalReceived():
            return signal(state, received)
        case s.StacksReceived():
            return stack_dumps.ask(state, received, now, limits)
        case s.DrainReceived():
            return drain(state, received)
        case s.ResumeReceived():
            return resume(state, received, now)
        case s.RemoveReceived():
            return remove(state, received)
        case s.LostReceived():
            return declare_lost(state, received)
        case (
            s.UserReceived()
            | s.UserChangeReceived()
            | s.TokenReceived()
            | s.RevokeReceived()
            | s.TokenSeen()
        ):
            return with_users(state, decide_people(state, received, now.wall))
        case (
            s.JoinSecretReceived()
            | s.JoinSecretRevokeReceived()
            | s.JoinReceived()
            | s.AcceptReceived()
            | s.RevokeNodeReceived()
            | s.RenewReceived()
        ):
            return decide_enrolment(state, received, now.wall, limits)
        case s.HelloReceived(session, hello, _, local, certificate):
            bad = refuse_certificate(state, hello.node, certificate) or refuse_pool(
                state, hello.inventory.pool, certificate
            )
            if bad is not None:
                seen = joined_refused(state, certificate, bad.text)
                return Decision([*seen], [a.RefuseSession(session, bad)])
            if is_outdated(state, hello, now):
                return Decision(
                    [], [a.CloseSession(session, "its agent has connected again since")]
                )
            foreign = frozenset[str]() if local else limits.own_names
            decision = _hello(state, received, foreign, now, limits)
            for effect in decision.effects:
                if isinstance(effect, a.RefuseSession):
                    decision.facts += joined_refused(state, certificate, effect.refused.text)
            return decision
        case s.SettingsRead(before):
            return Decision([], changed_settings(state, before, limits.node_settings))
        case s.SessionEnded(session):
            name = state.sessions.get(session)
            return Decision([lf.NodeDisconnected(name, session)] if name is not None else [])
        case s.DiskSpaceChecked(problem):
            changed = bool(problem) != bool(state.disk_full)
            return Decision([cf.SpaceChanged(problem)] if changed else [])
        case s.WebhookAttempted():
            return on_attempted(state, received)
        case s.JobsArchived(jobs):
            return Decision([f.JobForgotten(job) for job in jobs if _is_over(state, job)])
        case s.TimerFired(timer):
            return decide_timer(state, timer, now, limits)
        case _:
            assert_never(received)


def _started(state: State, started: s.CoordinatorStarted, now: Instant, limits: Limits) -> Decision:
    """Start an epoch: no connection is known, and every lease counts from now."""
    cluster, secret = state.cluster or started.cluster, state.secret or started.secret
    decision = Decision(
        [
            cf.EpochStarted(
                started.epoch, cluster, started.networks, started.first_job, started.pools, secret
            )
        ]
    )
    if started.people is not None and not state.people.imported:
        decision.facts += import_people(started.people)
    for node in state.nodes.values():
        if node.holders:
            decision.facts.append(lf.NodeAwaited(node.name, now.mono))
            decision.effects.append(
                a.SetTimer(a.Timer(a.TimerKind.NODE, node=node.name), now.mono + limits.silence_s)
            )
    decision.facts += ends_half_begun(state)
    decision.effects += restart_timers(state, now, limits)
    return decision


def _submit(state: State, received: s.SubmitReceived, limits: Limits) -> Decision:
    request, spec = received.request, received.spec
    if received.key:
        known = state.keys.get((received.user, received.key))
        if known is not None:
            answer = submitted_before(received.key, received.digest, *known)
            return Decision([], [a.Answer(request, answer)])
        if received.searched is not None and received.searched != state.forgotten:
            again = "jobs went to the archive meanwhile"
            hint = "submit again with the same key"
            return Decision([], [a.Answer(request, a.Declined(a.SEARCH_AGAIN, again, hint))])
    by = state.people.users.get(received.user)
    if by is not None and by.disabled:  # while the request was on its way
        disabled = a.Declined(a.UNAUTHORIZED, f"the user {by.name} is disabled")
        return Decision([], [a.Answer(request, disabled)])
    if state.disk_full:
        return Decision([], [a.Answer(request, a.no_room(state.disk_full, "no job is accepted"))])
    too_many = _too_many_bytes(state, received, limits)
    if too_many is not None:
        return Decision([], [a.Answer(request, too_many)])
    impossible = never_fits(state, spec)
    if impossible is not None:
        declined = a.Declined(
            "unsatisfiable",
            f"job {spec.name!r} cannot start on the known nodes: {impossible}",
            "list the nodes with: muster nodes",
        )
        return Decision([], [a.Answer(request, declined)])
    job = JobId(state.next_job)
    fact = f.JobSubmitted(
        job, spec, received.user, received.key, received.digest, received.rerun_of
    )
    return Decision([fact], [a.Answer(request, a.Submitted(job, created=True))])


def _too_many_bytes(state: State, received: s.SubmitReceived, limits: Limits) -> a.Declined | None:
    size, user = bytes_of(received.spec), received.user
    hint = (
        "wait until some have ended or cancel some (muster ps, muster cancel); keep large scripts "
        "and values in files that the job reads"
    )
    if state.spec_bytes.get(user, 0) + size > limits.user_spec_bytes_max:
        text = (
            f"the jobs of {user} that have not ended have {limits.user_spec_bytes_max} bytes of "
            "specifications, which is the limit of one user (limits.spec_bytes_per_user_max)"
        )
        return a.Declined(a.TOO_MANY_BYTES, text, hint)
    if sum(state.spec_bytes.values()) + size > limits.spec_bytes_max:
        text = (
            f"the jobs that have not ended have {limits.spec_bytes_max} bytes of specifications, "
            "which is the limit of all users together (limits.spec_bytes_max)"
        )
        return a.Declined(a.TOO_MANY_BYTES, text, hint)
    return None


def submitted_before(key: str, again: str, job: JobId, digest: str) -> a.Result:
    """Answer a submit whose idempotency key belongs to `job`.

    `again` is the digest of the new body, `digest` that of the first one.
    """
    if digest == again:
        return a.Submitted(job, created=False)
    return a.Declined(
        "idempotency_conflict",
        f"the idempotency key {key!r} belongs to job {job}, which was submitted with another body",
        "use a new key for a new job",
    )


def _is_over(state: State, number: JobId) -> bool:
    job = state.jobs.get(number)
    return job is not None and job.phase is JobPhase.ENDED


def _unreported(state: State, task: Task, now: Instant, *, rebooted: bool) -> list[f.Fact]:
    """Return the end of a task of a node whose complete Hello does not have it."""
    # It may have run and ended in the part of the journal that a restored one lacks.
    restored = state.jobs[task.job].is_restored(task.attempt)
    if not restored and task.state is TaskState.ASSIGNED:
        return []
    found = gone_since_backup(state, task) if restored else []
    return [*found, *_gone(state, task, now, rebooted=rebooted)]


def _hello(
    state: State,
    received: s.HelloReceived,
    foreign: frozenset[str],
    now: Instant,
    limits: Limits,
) -> Decision:
    session, hello, peer = received.session, received.hello, received.peer
    refused = refuse(state, hello, peer, VERSION, foreign)
    node = state.nodes.get(hello.node)  # None also if only the replaced journal has it
    if refused is not None:
        # A restarted agent connects from the same address as before.
        other = node is not None and not (refused.soon and node.peer == peer)
        claimed = other and refused.code in NAME_CODES
        facts: list[f.Fact] = [lf.DuplicateNameSeen(hello.node, peer, now.mono)] if claimed else []
        return Decision(facts, [a.RefuseSession(session, refused)])
    unregistered = refuse_registration(state, hello, now, limits)
    if unregistered is not None:
        return Decision([], [a.RefuseSession(session, unregistered)])
    decision = Decision(registered(state, hello, now))
    if node is not None and node.session is not None:
        decision.effects.append(a.CloseSession(node.session, "the agent has connected again"))
    protocol = min(hello.protocol_max, PROTOCOL_MAX)
    ahead_s = clock_ahead_s(hello.wall_s, now)
    decision.facts += [
        lf.NodeConnected(
            hello.node, session, peer, now.mono, protocol, ahead_s, hello.instance, hello.made_s
        ),
        *restarted(state, hello.node, hello.instance, now.mono, limits),
    ]
    # Before the tasks, because a full or hung disk may have ended a rank.
    seen = hello.observed
    health = NodeChanges(
        ports=seen.ports,
        disks=seen.disks,
        refuses_jobs=seen.refuses_jobs,
        no_torch=seen.no_torch,
    )
    decision.facts += [
        *health_facts(state, hello.node, health),
        *settings_facts(state, hello.node, seen.settings),
    ]
    rebooted = node is not None and node.boot_id != hello.boot_id
    keep: list[Task] = []
    drained: list[f.Fact] = []
    may_hold: list[TaskReport] = []
    # An agent may report a task twice; the last report counts.
    for report in {report.task: report for report in hello.tasks}.values():
        task = state.find_task(report.task)
        if task is None or task.node == hello.node:
            may_hold.append(report)
        if task is None or task.node != hello.node:
            continue
        decision.facts += _vouching_ended(state, task, report, now, rebooted=rebooted)
        if task.state in OVER:
            continue
        if rebooted and _may_have_run(task, report):
            # No process survives a reboot, no matter what the agent finds.
            decision.facts += _gone(state, task, now, rebooted=True)
            continue
        keep.append(task)
        decision.facts += _take_report(state, task, report, now)
        decision.facts += _rest_of_limit(state, task, report, now)
        drained += declare_task_lost(task, report)
    reported = {report.task: report.state for report in hello.tasks}
    for task in tasks_on(state, hello.node):
        if task.id not in reported and not hello.more:
            decision.facts += _unreported(state, task, now, rebooted=rebooted)
    # After the tasks, so that a task which its own report ends is not ended again.
    decision.facts += hardware_facts(state, hello.node, hello.observed.hardware, now)
    decision.facts += connected_with_survivors(state, node, hello, may_hold)
    decision.facts += drained
    decision.facts += unknown_tasks_held(state, hello)
    decision.facts.append(lf.NodeSynced(hello.node, tuple(reported.items())))
    welcome = Welcome(
        epoch=state.epoch,
        session=session,
        heartbeat_s=limits.heartbeat_s,
        version=VERSION,
        cluster=state.cluster,
        keep=tuple(task.id for task in keep),
        protocol=protocol,
        settings=limits.node_settings.of(hello.node, hello.inventory.pool, hello.inventory.labels),
        users=submitters(state.people),
    )
    decision.effects.append(a.Send(hello.node, session, welcome))
    # Only now: a copy of a certificate that is refused ends no other.
    decision.facts += shown(state, hello.node, received.certificate)
    timer = a.Timer(a.TimerKind.NODE, node=hello.node)
    decision.effects.append(a.SetTimer(timer, now.mono + limits.silence_s))
    return decision


def _gone(state: State, task: Task, now: Instant, *, rebooted: bool) -> list[f.Fact]:
    """Return the end of a task that its node has not got any more."""
    proof = TaskProof.REBOOTED if rebooted else TaskProof.REPORTED
    reason = REBOOTED if rebooted else "its agent does not have it any more"
    return [lost(task, reason, proof), *vouching_ended(state, task, now)]


def _vouching_ended(
    state: State, task: Task, report: TaskReport, now: Instant, *, rebooted: bool
) -> list[f.Fact]:
    """Record that the task never vouches again if its node has stored a stop of it, or if it began
    in an earlier boot.

    A task may have begun after the backup from which the journal was restored, and so in a later
    boot than the journal has.
    """
    restored = state.jobs[task.job].is_restored(task.attempt)
    began_earlier = rebooted and (task.state is not TaskState.ASSIGNED or not restored)
    return vouching_ended(state, task, now) if report.stop_stored or began_earlier else []


def _may_have_run(task: Task, report: TaskReport) -> bool:
    """True if the task may have run when its node went down, with no exit record on the node."""
    return report.exit is None and report.refusal is None and task.state is not TaskState.ASSIGNED


def _rest_of_limit(state: State, task: Task, report: TaskReport, now: Instant) -> list[f.Fact]:
    """Return since when the attempt runs. A restarted coordinator learns it from the nodes."""
    attempt = state.jobs[task.job].attempt(task.attempt)
    if task.joined or attempt.started_at is None or report.state is not TaskState.STARTED:
        # For an ended task, `running_s` is the length of its whole run.
        return []
    since = now.mono - report.running_s
    planned = not state.policy(state.jobs[task.job].spec.pool).is_strict
    if planned and since >= state.running.get(task.job, math.inf):
        # The report was delayed: a run cannot begin later than first reported.
        return []
    return [f.RunTimed(task.job, task.attempt, since)]


def _report(
    state: State,
    session: SessionId,
    report: TaskReport | Heartbeat | StacksReport,
    now: Instant,
    limits: Limits,
) -> Decision:
    name = state.sessions.get(session)
    if name is None:
        return Decision([], [a.CloseSession(session, "this connection has been replaced")])
    match report:
        case Heartbeat(sent_s, wall_s, changes):
            heard = lf.NodeHeard(name, now.mono, clock_ahead_s(wall_s, now))
            changed = change_facts(state, name, changes, now)
            return Decision([heard, *changed], [a.Send(name, session, HeartbeatAck(sent_s))])
        case StacksReport():
            task = state.find_task(report.task)
            if task is not None and task.node != name:
                return Decision()
            return stack_dumps.answered(state, task, report, now)
        case TaskReport():
            node = state.nodes[name]
            task = state.find_task(report.task)
            drained: list[f.Fact] = []
            if task is None or task.node == name:
                drained += survivor_facts(node, report)
                drained += drain_for_unkillable(state, node, name, task, report)
            if task is not None and task.node == name and report.stop_stored:
                drained += vouching_ended(state, task, now)
            if task is None or task.node != name or task.state in OVER:
                commands = commands_for_reported_task(
                    state, name, report.task, report.state, limits
                )
                over = unknown_task_over(state, name, report)
                effects = [a.Send(name, session, command) for command in commands]
                return Decision([*drained, *over], [*effects])
            found = _take_report(state, task, report, now)
            return Decision([*found, *drained, *declare_task_lost(task, report)])
        case _:
            assert_never(report)


def _take_report(state: State, task: Task, report: TaskReport, now: Instant) -> list[f.Fact]:
    """Return the news of a report and, if it ends the gang, the request to stop the gang."""
    job = state.jobs[task.job]
    attempt = job.attempt(task.attempt)
    return [
        *time_limit_warnings(job, attempt, task, report),
        *_rest_of_report(state, job, attempt, task, report, now),
    ]


def _rest_of_report(
    state: State, job: Job, attempt: Attempt, task: Task, report: TaskReport, now: Instant
) -> list[f.Fact]:
    judged, by_tcp = traffic.traffic_facts(
        job, attempt, task, report.observed.traffic, disk_full=bool(state.disk_full)
    )
    observed = observation_facts(state, job, attempt, task, report, now)
    found = [*judged, *new_facts_from_report(task, report, now), *observed]
    if attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED) or task.state in OVER:
        return found
    if stopped := stopped_since_backup(job, attempt, task, report):
        return [*stopped, *found]
    if task.present and report.stopped_by == "limit":
        return [stop(attempt, limit_over(job, attempt, task, report)), *found]
    leased = 0 if job.spec.launcher.torchruns else attempt.master_port
    cause = from_report(task, report, leased) if task.present else None
    cause = add_workdir_hint(job.spec, task, cause)
    if cause is None and by_tcp is not None and attempt.phase is AttemptPhase.RUNNING:
        return [*judged, stop(attempt, by_tcp), *found[len(judged) :]]
    if cause is None or not affects_gang(job, report, cause):
        return found
    ended = stop_or_leave(job, attempt, task, cause, killed=was_killed(report))
    waits = is_consequence(cause) or may_be_hardware(cause)
    if waits and attempt.phase is AttemptPhase.RUNNING and type(ended[0]) is f.StopRequested:
        if task.id not in state.suspects:
            ended_at = now.mono - ended_before_s(cause, report)
            found.append(lf.FailureSuspected(task.node, task.id, cause, ended_at))
        return found
    # Before the news, so that the cause is on record before the exit.
    return [*ended, *found]
