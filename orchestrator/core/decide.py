"""decide: what a stimulus means. Reads the state, changes nothing.

Everything that follows from a fact whoever caused it stands in `follow`; here is only what the
outside world says and asks.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import structs

from muster.protocol.hosts import BadHost, breaks_line, check_address, check_name
from muster.protocol.ids import BadId, JobId, NodeName, SessionId, TaskId, check_node_name
from muster.protocol.instant import Instant
from muster.protocol.interfaces import Interface, problem
from muster.protocol.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Refused,
    TaskReport,
    Welcome,
)
from muster.protocol.states import TaskState
from muster.spec.types import Launcher
from orchestrator.core import actions as a
from orchestrator.core import facts as f
from orchestrator.core import stimuli as s
from orchestrator.core.attempt import AttemptPhase
from orchestrator.core.commands import owed, tasks_on
from orchestrator.core.decision import Decision
from orchestrator.core.elastic import goes_on_without, is_news, was_killed
from orchestrator.core.faults import ended_before_s, from_report, is_consequence
from orchestrator.core.job import JobPhase
from orchestrator.core.limits import Limits
from orchestrator.core.node import LinkState
from orchestrator.core.placement import count, never_fits
from orchestrator.core.policy import cancelled
from orchestrator.core.reports import news
from orchestrator.core.requests import change, signal, unknown_job
from orchestrator.core.state import Node, State, Task
from orchestrator.core.task import OVER
from orchestrator.core.timers import decide_timer, restart_timers

VERSION = "0.1.0"
DISK_FULL = "disk_full"
"""Code of a declined submit, for which there is no room."""


def decide(state: State, stimulus: s.Stimulus, now: Instant, limits: Limits) -> Decision:
    match stimulus:
        case s.CoordinatorStarted():
            return _started(state, stimulus, now, limits)
        case s.SubmitReceived():
            return _submit(state, stimulus)
        case s.CancelReceived():
            return _cancel(state, stimulus)
        case s.ChangeReceived():
            return change(state, stimulus, now)
        case s.SignalReceived():
            return signal(state, stimulus)
        case s.HelloReceived(session, hello, peer):
            return _hello(state, session, hello, peer, now, limits)
        case s.ReportReceived(session, report):
            return _report(state, session, report, now, limits)
        case s.SessionEnded(session):
            name = state.sessions.get(session)
            return Decision([f.NodeDisconnected(name, session)] if name is not None else [])
        case s.SpaceSeen(problem):
            changed = bool(problem) != bool(state.disk_full)
            return Decision([f.SpaceChanged(problem)] if changed else [])
        case s.TimerFired(timer):
            return decide_timer(state, timer, now, limits)
        case _:
            assert_never(stimulus)


def _started(state: State, started: s.CoordinatorStarted, now: Instant, limits: Limits) -> Decision:
    """A new process: nothing is known of the connections, and every lease begins anew."""
    cluster = state.cluster or started.cluster
    decision = Decision(
        [f.EpochStarted(started.epoch, cluster, started.networks, started.first_job)]
    )
    until = now.mono + limits.lease_s + limits.lease_margin_s
    for node in state.nodes.values():
        if node.holder is not None:
            decision.facts.append(f.LeaseExtended(node.name, until))
            decision.actions.append(
                a.SetTimer(a.Timer(a.TimerKind.NODE, node=node.name), now.mono + limits.silence_s)
            )
    decision.actions += restart_timers(state, now, limits)
    return decision


def _submit(state: State, stimulus: s.SubmitReceived) -> Decision:
    request, spec = stimulus.request, stimulus.spec
    if stimulus.key:
        known = state.keys.get((stimulus.user, stimulus.key))
        if known is not None:
            job, digest = known
            if digest == stimulus.digest:
                return Decision([], [a.Answer(request, a.Submitted(job, created=False))])
            declined = a.Declined(
                "idempotency_conflict",
                f"the idempotency key {stimulus.key!r} belongs to job {job}, "
                "which was submitted with another body",
                "use a new key for a new job",
            )
            return Decision([], [a.Answer(request, declined)])
    if state.disk_full:
        declined = a.Declined(
            DISK_FULL,
            f"no job is taken now: {state.disk_full}",
            "make room there and submit again; jobs run on and can be cancelled",
        )
        return Decision([], [a.Answer(request, declined)])
    impossible = never_fits(state, spec)
    if impossible is not None:
        declined = a.Declined(
            "unsatisfiable",
            f"job {spec.name!r} cannot start on the nodes that are known: {impossible}",
            "see what there is with: muster nodes",
        )
        return Decision([], [a.Answer(request, declined)])
    job = JobId(state.next_job)
    fact = f.JobSubmitted(
        job, spec, stimulus.user, stimulus.key, stimulus.digest, stimulus.rerun_of
    )
    return Decision([fact], [a.Answer(request, a.Submitted(job, created=True))])


def _cancel(state: State, stimulus: s.CancelReceived) -> Decision:
    job = state.jobs.get(stimulus.job)
    if job is None:
        return Decision([], [a.Answer(stimulus.request, unknown_job(stimulus.job))])
    if job.phase is JobPhase.ENDED:
        return Decision([], [a.Answer(stimulus.request, a.Cancelled(job.id, already_ended=True))])
    decision = Decision([], [a.Answer(stimulus.request, a.Cancelled(job.id, already_ended=False))])
    asked = (stimulus.user, stimulus.reason, stimulus.grace_s, stimulus.force)
    if job.cancel is None or (stimulus.force and not job.cancel[3]):
        decision.facts.append(
            f.CancelRequested(job.id, asked[0], asked[1], asked[2], stimulus.force)
        )
    attempt = job.current
    if attempt is None:
        decision.facts.append(f.JobEnded(job.id, cancelled(stimulus.user, stimulus.reason)))
    elif attempt.phase is not AttemptPhase.STOPPING:
        cause = cancelled(stimulus.user, stimulus.reason)
        decision.facts.append(f.StopRequested(job.id, attempt.number, cause))
    elif stimulus.force and not attempt.forced:
        decision.facts.append(f.StopForced(job.id, attempt.number))
    return decision


def _hello(
    state: State,
    session: SessionId,
    hello: Hello,
    peer: str,
    now: Instant,
    limits: Limits,
) -> Decision:
    refused = _refuse(state, hello, peer)
    if refused is not None:
        return Decision([], [a.RefuseSession(session, refused)])
    node = state.nodes.get(hello.node)
    decision = Decision()
    described = (hello.agent_id, hello.boot_id, hello.version, hello.inventory)
    if node is None or described != (node.agent_id, node.boot_id, node.version, node.inventory):
        decision.facts.append(f.NodeRegistered(hello.node, *described))
    if node is not None and node.session is not None:
        decision.actions.append(a.CloseSession(node.session, "the agent has connected anew"))
    lease_until = now.mono + limits.lease_s + limits.lease_margin_s
    protocol = min(hello.protocol_max, PROTOCOL_MAX)
    decision.facts.append(
        f.NodeConnected(hello.node, session, peer, now.mono, lease_until, protocol)
    )
    keep = []
    for report in hello.tasks:
        task = _task(state, report.task)
        if task is None or task.node != hello.node or task.state in OVER:
            continue
        keep.append(report.task)
        decision.facts += _take_report(state, task, report, now)
        decision.facts += _rest_of_limit(state, task, report, now)
    reported = {report.task: report.state for report in hello.tasks}
    for task in tasks_on(state, hello.node):
        if task.id not in reported and task.state is not TaskState.ASSIGNED:
            reason = "its agent does not have it any more"
            decision.facts.append(f.TaskLost(task.job, task.attempt, task.rank, reason))
    decision.facts.append(f.NodeSynced(hello.node, tuple(reported.items())))
    welcome = Welcome(
        epoch=state.epoch,
        session=session,
        lease_s=limits.lease_s,
        heartbeat_s=limits.heartbeat_s,
        version=VERSION,
        cluster=state.cluster,
        keep=tuple(keep),
        protocol=protocol,
    )
    decision.actions.append(a.Send(hello.node, session, welcome))
    timer = a.Timer(a.TimerKind.NODE, node=hello.node)
    decision.actions.append(a.SetTimer(timer, now.mono + limits.silence_s))
    return decision


def _rest_of_limit(state: State, task: Task, report: TaskReport, now: Instant) -> list[f.Fact]:
    """A coordinator that finds a job running knows from its nodes for how long it has."""
    attempt = state.jobs[task.job].attempts[task.attempt - 1]
    if task.joined or attempt.started_at is None:
        return []
    return [f.RunTimed(task.job, task.attempt, now.mono - report.running_s)]


def _refuse(state: State, hello: Hello, peer: str) -> Refused | None:
    if hello.protocol_max < PROTOCOL_MIN or hello.protocol_min > PROTOCOL_MAX:
        return Refused(
            "protocol",
            f"this coordinator ({VERSION}) speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}, the "
            f"agent ({hello.version}) {hello.protocol_min} to {hello.protocol_max}: "
            "install the same release on both",
        )
    try:
        check_node_name(hello.node)
        check_name(hello.node)
    except (BadId, BadHost) as error:
        return Refused("bad_name", f"{error}; set `node` in the agent's configuration")
    unusable = problem(hello.inventory.interfaces)
    if unusable is not None:
        return Refused("bad_network", f"{hello.node} reports what no peer can use: {unusable}")
    try:
        check_address(hello.inventory.address)
    except BadHost as error:
        return Refused("bad_address", f"{error}; set `address` in the agent's configuration")
    if breaks_line(hello.inventory.hostname):
        return Refused(
            "bad_hostname",
            f"{hello.node} calls itself {hello.inventory.hostname[:80]!r}, which would break its "
            "peers' hosts files; give the machine another host name (hostnamectl hostname NAME)",
        )
    ours = hello.cluster == state.cluster
    if hello.tasks and hello.cluster and not ours:
        return Refused(
            "other_cluster",
            f"the agent has {count(len(hello.tasks), 'task')} of cluster {hello.cluster}, and this "
            f"coordinator is of cluster {state.cluster}: its state folder is empty or another "
            "one's; start it with the one that it had",
        )
    if ours and hello.epoch_seen > state.epoch:
        return Refused(
            "old_epoch",
            f"the agent has served epoch {hello.epoch_seen} and this coordinator is in epoch "
            f"{state.epoch}: its state folder is older than another one's; restore the newer one",
        )
    node = state.nodes.get(hello.node)
    if node is not None and node.agent_id != hello.agent_id and _name_taken(node):
        return Refused(
            "duplicate_name",
            f"the name {hello.node} is in use by an agent at {node.peer}; this one is at {peer}: "
            "give each agent its own `node`",
        )
    return None


def _name_taken(node: Node) -> bool:
    """Another agent may have the name once this one can be running nothing: a clone of its image
    that speaks up while it is cut off would else seem to have lost its tasks."""
    if node.link is LinkState.CONNECTED:
        return True
    return node.link is LinkState.SUSPECT and node.holder is not None


def _report(
    state: State,
    session: SessionId,
    report: TaskReport | Heartbeat,
    now: Instant,
    limits: Limits,
) -> Decision:
    name = state.sessions.get(session)
    if name is None:
        return Decision([], [a.CloseSession(session, "this connection has been replaced")])
    match report:
        case Heartbeat(sent_s, interfaces):
            until = now.mono + limits.lease_s + limits.lease_margin_s
            heard = f.NodeHeard(name, now.mono, until)
            changed = _changed_network(state, name, interfaces)
            return Decision([heard, *changed], [a.Send(name, session, HeartbeatAck(sent_s))])
        case TaskReport():
            task = _task(state, report.task)
            if task is None or task.node != name or task.state in OVER:
                commands = owed(state, name, report.task, report.state, limits)
                return Decision([], [a.Send(name, session, command) for command in commands])
            return Decision(_take_report(state, task, report, now))
        case _:
            assert_never(report)


def _changed_network(
    state: State, name: NodeName, interfaces: tuple[Interface, ...] | None
) -> list[f.Fact]:
    """A node says when its interfaces have changed."""
    node = state.nodes[name]
    if interfaces is None or interfaces == node.inventory.interfaces or problem(interfaces):
        return []
    inventory = structs.replace(node.inventory, interfaces=interfaces)
    return [f.NodeRegistered(name, node.agent_id, node.boot_id, node.version, inventory)]


def _take_report(state: State, task: Task, report: TaskReport, now: Instant) -> list[f.Fact]:
    """The news of a report and, where it means the end of the gang, the request to stop it."""
    job = state.jobs[task.job]
    attempt = job.attempts[task.attempt - 1]
    found = news(task, report)
    if attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED) or task.state in OVER:
        return found
    leased = 0 if job.spec.launcher is Launcher.TORCHRUN else attempt.master_port
    cause = from_report(task, report, leased) if task.present else None
    if cause is None or not is_news(job, report, cause):
        return found
    if goes_on_without(job, attempt, task, cause, killed=was_killed(report)):
        return [f.TaskLeft(task.job, task.attempt, task.rank, cause.text), *found]
    if is_consequence(cause) and attempt.phase is AttemptPhase.RUNNING:
        if task.id not in state.suspects:
            ended_at = now.mono - ended_before_s(cause, report)
            found.append(f.FailureSuspected(task.node, task.id, cause, ended_at))
        return found
    # Before the news: the first cause is on record when the exit arrives.
    return [f.StopRequested(task.job, task.attempt, cause), *found]


def _task(state: State, name: TaskId) -> Task | None:
    try:
        return state.task(name)
    except BadId:
        return None
