"""apply: how each fact changes the agent's state. Total, without choices."""

from __future__ import annotations

from typing import assert_never

from msgspec import UNSET

from agent.core import facts as f
from agent.core.inputs import TaskChanges
from agent.core.network_phase import NETWORK_TRANSITIONS, NetworkPhase, needed
from agent.core.record import TaskRecord
from agent.core.state import HeldTask, State
from muster.protocol.link.control_channel import merge
from muster.protocol.link.terms import Terms


def apply(state: State, fact: f.Fact) -> None:
    match fact:
        case (
            f.LinkOpened()
            | f.LinkClosed()
            | f.Welcomed()
            | f.SettingsChanged()
            | f.UsersChanged()
            | f.Heard()
            | f.Acknowledged()
        ) as of_link:
            _apply_link(state, of_link)
        case f.NodeChanged(changes):
            state.observed = merge(state.observed, changes)
        case _:
            _apply_task(state, fact)


def _apply_link(state: State, fact: f.LinkFact) -> None:
    match fact:
        case f.LinkOpened(at):
            state.linked, state.welcomed = True, False
            state.dialled_at = state.heard_at = at
            state.reported = state.observed
        case f.LinkClosed():
            state.linked = state.welcomed = False
        case f.Welcomed(epoch, cluster, heartbeat_s, given):
            state.welcomed, state.cluster, state.given = True, cluster, given
            state.epoch, state.heartbeat_s = epoch, heartbeat_s
            state.stopped_unseen.clear()
        case f.SettingsChanged(given):
            state.given = given
        case f.UsersChanged(users):
            state.users = users
        case f.Heard(at):
            state.heard_at = at
        case f.Acknowledged(at):
            state.acknowledged_at = at
        case _:
            assert_never(fact)


def _apply_task(state: State, fact: f.TaskFact) -> None:
    match fact:
        case f.TaskAccepted(task, prepare):
            state.tasks[task] = HeldTask(
                task,
                prepare=prepare,
                gpus=prepare.gpus,
                lease_s=prepare.lease_s,
                cluster=state.cluster,
            )
        case f.TaskAdopted(task, status, paths, ports, at, fabric, gpus, lease_s, record):
            state.tasks[task] = HeldTask(
                task,
                gpus=gpus,
                lease_s=lease_s,
                paths=paths,
                ports=ports,
                status=status,
                status_at=at,
                fabric=fabric,
                network=NetworkPhase.LEFT,
            )
            if record is not None:
                _restore(state.tasks[task], record.after(state.identity.boot_id))
        case f.StoppedUnseen(task):
            state.stopped_unseen.add(task)
        case f.TaskGone(task):
            state.tasks.pop(task, None)
        case _:
            _apply_held(state.tasks[fact.task], fact)


def _restore(held: HeldTask, record: TaskRecord) -> None:
    held.stored = record
    held.cluster, held.stop = record.cluster, record.stop
    held.arrange = record.plan
    _follow(held, record.terms)


def _follow(held: HeldTask, terms: Terms | None) -> None:
    members = () if terms is None else terms.members
    peers = {member.task: member for member in members if member.task != held.id}
    held.terms = terms
    if peers != held.peers:
        held.peers = peers
        # Votes of the previous members do not count for the new ones.
        held.asked_at = held.voted_at = None
        held.awaited = set()


def _count(held: HeldTask) -> None:
    """Count a round that all members have answered. It is as old as its begin."""
    if not held.awaited:
        held.voted_at = held.asked_at


def _apply_held(
    held: HeldTask,
    fact: f.TaskDirsCreated
    | f.TaskChanged
    | f.RecordKept
    | f.RoundBegun
    | f.MemberVouched
    | f.ShimSeen
    | f.TaskFailed
    | f.PlanTaken
    | f.TermsTaken
    | f.NetworkReady
    | f.NetworkDenied
    | f.NetworkFreed
    | f.GateOpened
    | f.StopTaken
    | f.Forgotten
    | f.LogsKept
    | f.EpilogSaid,
) -> None:
    match fact:
        case f.TaskDirsCreated(_, paths, ports, user, prolog):
            held.paths, held.ports, held.user = paths, ports, user
            held.prolog = prolog
        case f.TaskChanged(_, changes, at):
            _merge(held, changes, at)
        case f.RecordKept(_, record):
            held.stored = record
        case f.RoundBegun(_, at):
            held.round, held.asked_at, held.awaited = held.round + 1, at, set(held.peers)
            _count(held)
        case f.MemberVouched(_, member):
            held.awaited.discard(member)
            _count(held)
        case f.ShimSeen(_, status, at, no_output):
            held.status, held.status_at, held.no_output = status, at, no_output
        case f.TaskFailed(_, refusal):
            held.failure, held.no_output = refusal, True
        case f.PlanTaken(_, arrange):
            held.arrange, held.denied, held.warnings = arrange, None, ()
            _follow(held, arrange.terms)
            if needed(arrange):
                _network_to(held, NetworkPhase.ARRANGING)
        case f.TermsTaken(_, terms):
            _follow(held, terms)
        case f.NetworkReady(_, warnings):
            _network_to(held, NetworkPhase.READY)
            held.warnings = warnings
        case f.NetworkDenied(_, refusal):
            _network_to(held, NetworkPhase.REFUSED)
            held.denied = refusal
        case f.NetworkFreed():
            _network_to(held, NetworkPhase.NONE)
        case f.GateOpened():
            held.started = True
        case f.StopTaken(_, stop):
            held.stop = stop
        case f.Forgotten():
            held.forgotten = True
        case f.LogsKept():
            held.logs_stored = True
        case f.EpilogSaid(_, line):
            held.epilog = line
        case _:
            assert_never(fact)


def _merge(held: HeldTask, changes: TaskChanges, at: float) -> None:
    if changes.fabric is not None:
        held.fabric = changes.fabric
    if changes.traffic is not None:
        held.traffic = changes.traffic
    if changes.silent is not None:
        held.silent = changes.silent
    if changes.checkpoint is not None:
        before = 0 if held.checkpoint is None else held.checkpoint[0]
        held.checkpoint = before + 1, changes.checkpoint, at
    if changes.activity is not None:
        held.activity, held.activity_at = changes.activity, changes.activity_at
    if changes.idle_since is not UNSET:
        held.idle_since = changes.idle_since


def _network_to(held: HeldTask, phase: NetworkPhase) -> None:
    if phase not in NETWORK_TRANSITIONS[held.network]:
        raise AssertionError(f"network of {held.id}: {held.network.value} to {phase.value}")
    held.network = phase
