"""decide: turn an input into facts and effects. Reads the state, changes nothing."""

from __future__ import annotations

from typing import assert_never

from agent.core import effects as a
from agent.core import facts as f
from agent.core import inputs as s
from agent.core.decision import Decision
from agent.core.network_phase import NetworkPhase
from agent.core.shim_protocol import ShimPhase, ShimSignal
from agent.core.state import HeldTask, State
from agent.core.task import LATER, gone, report, reports, task_state
from agent.core.vouching import asks, is_round_due, pause_s, questions, round_name
from muster.protocol.ids import TaskId
from muster.protocol.instant import ROUNDING_S, Instant
from muster.protocol.link import control_channel as m
from muster.protocol.link.terms import ChangeTerms
from muster.protocol.observations.node_settings import GiveSettings
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState

AboutTask = (
    m.PrepareTask
    | m.ArrangeTask
    | m.StartTask
    | m.StopTask
    | m.SignalTask
    | ChangeTerms
    | m.DumpStacks
    | m.ForgetTask
)

NO_CHANGES = m.NodeChanges()
SILENT_BEATS = 2
"""If the coordinator has been silent for this many heartbeats, the agent dials again."""
WELCOME_S = 10.0
"""Longer patience before the welcome: a coordinator that has just started may have a thousand
agents to welcome."""


def decide(state: State, received: s.Input, now: Instant) -> Decision:
    match received:
        case s.CommandReceived(command):
            return _command(state, command, now)
        case s.ShimReported(task, status, no_output):
            held = state.tasks.get(task)
            if held is None or _stale(held, status.phase):
                return Decision()
            return Decision([f.ShimSeen(task, status, now.mono, no_output)])
        case s.LinkUp():
            beat = a.SetTimer(a.Timer.HEARTBEAT, now.mono + state.heartbeat_s)
            return Decision([f.LinkOpened(now.mono)], [a.SendReport(_hello(state, now)), beat])
        case s.LinkDown():
            return Decision([f.LinkClosed()])
        case s.TaskFound(task, status, paths, ports, fabric, gpus, lease_s, record):
            adopted = f.TaskAdopted(
                task, status, paths, ports, now.mono, fabric, gpus, lease_s, record
            )
            return Decision([adopted])
        case s.RecordStored(task, record):
            return Decision([f.RecordKept(task, record)] if task in state.tasks else [])
        case s.VouchReceived(task, member, nonce):
            held = state.tasks.get(task)
            if held is None or member not in held.awaited or nonce != round_name(state, held):
                return Decision()
            return Decision([f.MemberVouched(task, member)])
        case s.ShimFailed(task, text, code):
            if task not in state.tasks:
                return Decision()
            # Accounts are the site's choice, not a fault of the node.
            refusal = m.Refusal(code, text, node_fault=code != RefusalCode.USER_REFUSED)
            return Decision([f.TaskFailed(task, refusal)])
        case s.TaskPlaced(task, paths, ports, interfaces, fabric, user, prolog):
            # The interfaces get a fact of their own, because the task's report may never come.
            seen = _node_observed(state, m.NodeChanges(interfaces=interfaces), now)
            if task in state.tasks:
                if fabric is not None:
                    seen.facts.append(f.TaskChanged(task, s.TaskChanges(fabric=fabric), now.mono))
                seen.facts.append(f.TaskDirsCreated(task, paths, ports, user, prolog))
            return seen
        case s.TaskObserved(task, changes):
            held = state.tasks.get(task)
            return Decision([] if held is None else [f.TaskChanged(task, changes, now.mono)])
        case s.StacksObserved(report):
            # A coordinator of another epoch did not ask for these stacks.
            asked = state.welcomed and report.epoch == state.epoch
            return Decision([], [a.SendReport(report)] if asked else [])
        case s.NodeObserved(changes):
            return _node_observed(state, changes, now)
        case s.NetworkArranged(task, warnings):
            return _network(state, task, f.NetworkReady(task, warnings))
        case s.NetworkRefused(task, refusal):
            return _network(state, task, f.NetworkDenied(task, refusal))
        case s.NetworkRestored(task):
            return _network_restored(state, task)
        case s.LogsStored(task):
            return Decision([f.LogsKept(task)] if task in state.tasks else [])
        case s.EpilogRan(task, line):
            return Decision([f.EpilogSaid(task, line)] if task in state.tasks else [])
        case s.TaskRemoved(task):
            return Decision([f.TaskGone(task)])
        case s.TimerFired(timer):
            match timer:
                case a.Timer.HEARTBEAT:
                    return _heartbeat(state, now)
                case a.Timer.VOUCHES:
                    return _ask_members(state, now)
                case _:
                    assert_never(timer)
        case _:
            assert_never(received)


def _hello(state: State, now: Instant) -> m.Hello:
    who, tasks = state.identity, reports(state, now)
    return m.Hello(
        node=who.node,
        agent_id=who.agent_id,
        boot_id=who.boot_id,
        version=who.version,
        observed=state.observed,
        tasks=tasks,
        epoch_seen=state.epoch,
        cluster=state.cluster,
        protocol_min=m.PROTOCOL_MIN,
        protocol_max=m.PROTOCOL_MAX,
        instance=who.instance,
        wall_s=now.wall,
        more=len(tasks) < len(state.tasks),
        made_s=now.mono,
    )


def _node_observed(state: State, observed: m.NodeChanges, now: Instant) -> Decision:
    changes = m.diff(state.observed, m.merge(state.observed, observed))
    facts: list[f.Fact] = [] if changes == NO_CHANGES else [f.NodeChanged(changes)]
    # Before the welcome the report waits: see _welcome.
    return Decision(facts, _report_changes(changes, now) if state.welcomed else [])


def _report_changes(changes: m.NodeChanges, now: Instant) -> list[a.Effect]:
    if changes == NO_CHANGES:
        return []
    return [a.SendReport(m.Heartbeat(now.mono, now.wall, changes))]


def _stale(held: HeldTask, phase: ShimPhase) -> bool:
    """True if a status is older than the one already held. Statuses may cross on the way."""
    return held.status is not None and phase not in LATER[held.status.phase]


def _network(state: State, task: TaskId, fact: f.NetworkReady | f.NetworkDenied) -> Decision:
    """Record the result of arranging. Ignored if the task has ended or has got another plan
    since."""
    held = state.tasks.get(task)
    if held is None or held.network is not NetworkPhase.ARRANGING:
        return Decision()
    return Decision([fact])


def _network_restored(state: State, task: TaskId) -> Decision:
    held = state.tasks.get(task)
    if held is None or held.network is NetworkPhase.NONE:
        return Decision()
    return Decision([f.NetworkFreed(task)])


def _heartbeat(state: State, now: Instant) -> Decision:
    if not state.linked:
        return Decision()
    patience_s = SILENT_BEATS * state.heartbeat_s
    if not state.welcomed:
        patience_s = max(patience_s, WELCOME_S)
    silent_s = now.mono - state.heard_at
    if silent_s >= patience_s - ROUNDING_S:
        why = f"the coordinator has been silent for {silent_s:.3g} s"
        return Decision([f.LinkClosed()], [a.CloseLink(why)])
    # Wake up before the next heartbeat if patience ends earlier, so that the link closes on time.
    due = min(now.mono + state.heartbeat_s, state.heard_at + patience_s)
    beat = a.SetTimer(a.Timer.HEARTBEAT, due)
    if not state.welcomed:
        return Decision([], [beat])
    return Decision([], [a.SendReport(m.Heartbeat(now.mono, now.wall)), beat])


def _ask_members(state: State, now: Instant) -> Decision:
    asking = [held for held in state.tasks.values() if asks(held)]
    if not asking:
        return Decision()
    decision = Decision()
    for held in asking:
        if is_round_due(held, now.mono):
            decision.facts.append(f.RoundBegun(held.id, now.mono))
        elif held.awaited:
            decision.effects.append(a.AskMembers(questions(state, held)))
    again = now.mono + min(pause_s(held) for held in asking)
    decision.effects.append(a.SetTimer(a.Timer.VOUCHES, again))
    return decision


def _command(state: State, command: m.Command, now: Instant) -> Decision:
    if not state.linked:
        return Decision()
    match command:
        case m.Welcome():
            return _welcome(state, command, now)
        case m.Refused(_, text, soon):
            return Decision([f.LinkClosed()], [a.CloseLink(text, refused=not soon)])
        case _ if not state.welcomed:
            return Decision([f.LinkClosed()], [a.CloseLink("a command came before the welcome")])
        case m.HeartbeatAck(sent_s):
            return Decision([f.Heard(now.mono), f.Acknowledged(sent_s)])
        case GiveSettings(given):
            heard = f.Heard(now.mono)
            if given == state.given:
                return Decision([heard])
            return Decision([heard, f.SettingsChanged(given)], [a.UseSettings(given)])
        case (
            m.PrepareTask()
            | m.ArrangeTask()
            | m.StartTask()
            | m.StopTask()
            | m.SignalTask()
            | ChangeTerms()
            | m.DumpStacks()
            | m.ForgetTask()
        ):
            decision = _about_task(state, command, now)
            decision.facts.insert(0, f.Heard(now.mono))
            return decision
        case _:
            assert_never(command)


def _welcome(state: State, welcome: m.Welcome, now: Instant) -> Decision:
    if not m.PROTOCOL_MIN <= welcome.protocol <= m.PROTOCOL_MAX:
        older = "coordinator" if welcome.protocol < m.PROTOCOL_MIN else "agent"
        why = (
            f"the coordinator ({welcome.version}) speaks protocol {welcome.protocol} with this "
            f"agent ({state.identity.version}), which speaks {m.PROTOCOL_MIN} to {m.PROTOCOL_MAX}: "
            f"upgrade the {older}"
        )
        return Decision([f.LinkClosed()], [a.CloseLink(why, refused=True)])
    if welcome.cluster == state.cluster and welcome.epoch < state.epoch:
        why = (
            f"it is in epoch {welcome.epoch}, and this agent has served epoch {state.epoch}: "
            "another coordinator has taken over"
        )
        return Decision([f.LinkClosed()], [a.CloseLink(why, refused=True)])
    fences = [
        f.StopTaken(held.id, m.StopTask(held.id, "SIGKILL", 0.0, force=True))
        for held in state.tasks.values()
        if held.id not in welcome.keep and not _over(held)
    ]
    decision = Decision(
        [
            # First end tasks that may already run elsewhere.
            *fences,
            f.Welcomed(welcome.epoch, welcome.cluster, welcome.heartbeat_s, welcome.settings),
            f.Heard(now.mono),
            # Leases count from the moment the agent dialled, not from the answer.
            f.Acknowledged(state.dialled_at),
        ],
        [a.SetTimer(a.Timer.HEARTBEAT, now.mono + welcome.heartbeat_s)],
    )
    if state.reported is not None:
        decision.effects += _report_changes(m.diff(state.reported, state.observed), now)
    if welcome.settings != state.given:
        decision.effects.append(a.UseSettings(welcome.settings))
    if welcome.cluster != state.cluster:
        decision.effects.insert(0, a.KeepCluster(welcome.cluster))
    for held in state.tasks.values():
        # The Hello lacks everything that has happened since the agent sent it.
        decision.effects.append(a.SendReport(report(state, held, now)))
    return decision


def _about_task(state: State, command: AboutTask, now: Instant) -> Decision:
    held = state.tasks.get(command.task)
    if held is None:
        return _unknown(state, command)

    def said() -> Decision:
        return Decision([], [a.SendReport(report(state, held, now))])

    match command:
        case m.PrepareTask():
            return said()
        case m.ArrangeTask():
            at_gate = task_state(held) in (TaskState.PREPARED, TaskState.ARRANGED)
            if not at_gate or held.stop is not None:
                return said()
            if held.arrange == command and held.network is not NetworkPhase.LEFT:
                return said()
            if held.arrange is not None and held.started:
                return said()
            gate: list[f.Fact] = [f.GateOpened(held.id)] if command.start else []
            return Decision([f.PlanTaken(held.id, command), *gate])
        case m.StartTask():
            at_gate = task_state(held) in (TaskState.PREPARED, TaskState.ARRANGED)
            planned = at_gate and held.arrange is not None
            if not planned or held.stop is not None or held.started:
                return said()
            return Decision([f.GateOpened(held.id)])
        case m.StopTask():
            if _over(held) and (held.stop is not None or not held.confirms_end):
                return said()
            if held.stop is not None and held.stop.force:
                return Decision()
            return Decision([f.StopTaken(held.id, command)])
        case m.SignalTask(_, signal, number, ranks, late):
            if task_state(held) is not TaskState.STARTED or held.stop is not None:
                return said()
            return Decision([], [a.SendToShim(held.id, ShimSignal(signal, number, ranks, late))])
        case ChangeTerms(_, terms):
            newest = 0 if held.terms is None else held.terms.number
            if held.arrange is None or _over(held) or terms.number <= newest:
                return said()
            return Decision([f.TermsTaken(held.id, terms)])
        case m.DumpStacks():
            running = task_state(held) is TaskState.STARTED
            return Decision([], [a.TakeStacks(held.id, command)]) if running else said()
        case m.ForgetTask():
            return Decision([f.Forgotten(held.id)] if _over(held) else [])
        case _:
            assert_never(command)


def _unknown(state: State, command: AboutTask) -> Decision:
    task: TaskId = command.task
    match command:
        case m.PrepareTask():
            if task in state.buried:
                return Decision([], [a.SendReport(gone(task))])
            refusal = _gpus_taken(state, command)
            if refusal is not None:
                denied = m.TaskReport(task, TaskState.CLEANED, refusal=refusal)
                return Decision([], [a.SendReport(denied)])
            return Decision([f.TaskAccepted(task, command)])
        case m.StopTask():
            return Decision([f.StoppedUnseen(task)], [a.SendReport(gone(task))])
        case m.ArrangeTask() | m.StartTask() | m.SignalTask() | ChangeTerms() | m.DumpStacks():
            return Decision([], [a.SendReport(gone(task))])
        case m.ForgetTask():
            return Decision()
        case _:
            assert_never(command)


def _gpus_taken(state: State, prepare: m.PrepareTask) -> m.Refusal | None:
    """Refuse if a task on this node still holds one of the GPUs, even if the coordinator believes
    that they are free."""
    for held in state.tasks.values():
        both = set(held.gpus) & set(prepare.gpus)
        if both and not _over(held):
            text = f"task {held.id} on this node still has {', '.join(sorted(both))}"
            return m.Refusal(RefusalCode.GPU_BUSY, text, node_fault=True)
    return None


def _over(held: HeldTask) -> bool:
    return task_state(held) is TaskState.CLEANED
