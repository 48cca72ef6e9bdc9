"""Apply facts about the cluster and the links to its nodes."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from muster.protocol.ids import JobId
from orchestrator.core.engine.apply_restored import apply_unknown
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import links as lf
from orchestrator.core.facts.links import OfLink
from orchestrator.core.facts.queue import QueuesDue, QueuesPlanned
from orchestrator.core.model.errors import InvalidTransition
from orchestrator.core.model.node import LINK_TRANSITIONS, LinkState
from orchestrator.core.model.plan import MoveCause, PoolPolicy, QueueEvent, QueuePlan
from orchestrator.core.model.registrations import (
    NewNodes,
    connection_due,
    hardware_due,
    one_more_new_node,
    registration_due,
)
from orchestrator.core.model.state import Node, State, Suspect
from orchestrator.core.nodes.crash_loops import LIVES_KEPT, another_life
from orchestrator.core.nodes.service_state import HARDWARE_KEPT


def apply_cluster(state: State, fact: cf.OfCluster | QueuesPlanned | QueuesDue) -> None:
    match fact:
        case cf.SpaceChanged(problem):
            state.disk_full = problem
        case cf.EpochStarted(epoch, cluster, networks, first_job, pools, secret):
            state.cluster, state.networks, state.secret = cluster, networks, secret
            _change_pools(state, pools)
            state.epoch = epoch
            state.next_job = max(state.next_job, first_job)
            state.first_of_epoch = JobId(state.next_job)
            state.disk_full = ""
            state.sessions.clear()
            state.suspects.clear()
            state.running.clear()
            state.idle_reported.clear()
            state.stack_dumps.clear()
            state.watches.clear()
            state.look_number = 0
            for job in state.jobs.values():
                for task in () if job.current is None else job.current.tasks:
                    task.mute_at, task.terms, task.terms_at = None, 0, 0.0
            for node in state.nodes.values():
                _reset(node)
            state.judged_from, state.new_nodes = 0.0, NewNodes()
            state.answered.clear()
            state.unknown.clear()
        case cf.NodeRegistered(name, agent_id, boot_id, version, inventory):
            known = state.nodes.get(name)
            if known is None:
                state.nodes[name] = Node(name, agent_id, boot_id, version, inventory)
            else:
                known.agent_id, known.boot_id = agent_id, boot_id
                known.version, known.inventory = version, inventory
        case cf.InputFailed(version, origin, _, ended):
            times = state.failed_inputs.get((version, origin), 0)
            state.failed_inputs[version, origin] = times + ended
        case cf.LivenessPaused(until):
            state.judged_from = until
        case QueuesDue():
            pass
        case QueuesPlanned(plan):
            state.plan = plan
        case _:
            assert_never(fact)


def _change_pools(state: State, pools: dict[str, PoolPolicy]) -> None:
    changed = bool(state.epoch) and pools != state.pools
    first = MoveCause.POOL if changed else MoveCause.RESTART
    state.pools, state.plan = pools, QueuePlan(events=(QueueEvent(first),))
    for pool, queue in state.queues.items():
        if state.policy(pool).is_strict:
            for _, name in queue:
                state.jobs[name].starts_by = None


def _reset(node: Node) -> None:
    """Forget what an earlier process knew of a node's agent."""
    node.link, node.session, node.peer = LinkState.OFFLINE, None, ""
    node.heard_at = node.answered_at = node.ahead_s = node.made_s = 0.0
    node.instance, node.lives, node.claimed, node.ports = "", (), None, ()
    node.disks, node.refuses_jobs, node.no_torch, node.settings = (), "", "", ()
    node.unrecorded, node.record_due, node.connect_due = False, 0.0, 0.0
    node.hardware_passed, node.hardware_skipped = None, 0
    node.hardware_due = node.kills_due = 0.0
    node.survivors.clear()


def apply_link(state: State, fact: OfLink) -> None:
    node = state.nodes[fact.node]
    match fact:
        case lf.NodeConnected():
            _connect(state, node, fact)
        case lf.NodeHealthReported(_, ports, disks, refuses_jobs, no_torch):
            node.ports, node.disks = ports, disks
            node.refuses_jobs, node.no_torch = refuses_jobs, no_torch
        case lf.NodeSettingsReported(_, settings):
            node.settings = settings
        case lf.SurvivorsReported(_, name, pids):
            if pids:
                node.survivors[name] = pids
            else:
                node.survivors.pop(name, None)
        case lf.HardwareSeen(_, event, seen_at):
            node.hardware = (*node.hardware, (seen_at, event))[-HARDWARE_KEPT:]
            node.hardware_skipped += 1
        case lf.HardwareCounted(_, last, kills, others, counted_at):
            node.hardware_passed = last
            node.kills_due = hardware_due(node.kills_due, counted_at, kills)
            node.hardware_due = hardware_due(node.hardware_due, counted_at, others)
        case lf.DuplicateNameSeen(_, peer, claimed_at):
            node.claimed = (peer, claimed_at)
        case lf.NodeDescribed():
            _describe(state, node, fact)
        case lf.NodeSynced():
            pass
        case lf.UnknownTasksHeld() | lf.UnknownTaskOver():
            apply_unknown(state, fact)
        case lf.FailureSuspected(_, task, cause, ended_at):
            state.suspects[task] = Suspect(cause, ended_at)
        case lf.NodeHeard(_, heard_at, ahead_s):
            # A plain heartbeat may overtake an earlier one with news (see fast_path).
            node.heard_at = node.answered_at = max(node.heard_at, heard_at)
            node.ahead_s = ahead_s
        case lf.NodeDisconnected(_, session):
            state.sessions.pop(session, None)
            if node.session == session:
                _link_to(node, LinkState.SUSPECT)
                node.session = None
        case lf.NodeAwaited(_, answered_at):
            _link_to(node, LinkState.SUSPECT)
            node.answered_at = answered_at
        case lf.TaskMuted(_, name, at):
            muted = state.task(name)
            if muted is not None:
                muted.mute_at = at
        case lf.NodeGivenUp():
            _link_to(node, LinkState.LOST)
        case _:
            assert_never(fact)


def _connect(state: State, node: Node, fact: lf.NodeConnected) -> None:
    if node.session is not None:
        state.sessions.pop(node.session, None)
    _link_to(node, LinkState.CONNECTED)
    node.declared_lost = False
    node.session, node.peer, node.protocol = fact.session, fact.peer, fact.protocol
    node.heard_at = node.answered_at = fact.heard_at
    if another_life(node, fact.instance):
        node.lives = (*node.lives, fact.heard_at)[-LIVES_KEPT:]
    node.ahead_s, node.instance, node.made_s = fact.ahead_s, fact.instance, fact.made_s
    node.connected_at = fact.heard_at
    node.connect_due = connection_due(node.connect_due, fact.heard_at)
    # The agent reports them again on each connection.
    node.survivors.clear()
    joined = state.enrolment.nodes.get(node.name)
    if joined is not None and joined.refused:
        state.enrolment.put(node.name, replace(joined, refused=""))
    state.sessions[fact.session] = fact.node


def _describe(state: State, node: Node, fact: lf.NodeDescribed) -> None:
    node.version, node.inventory = fact.version, fact.inventory
    node.unrecorded = fact.unrecorded
    if fact.recorded_at is not None:
        node.record_due = registration_due(node.record_due, fact.recorded_at)
        if fact.new:
            state.new_nodes = one_more_new_node(state.new_nodes, fact.recorded_at)


def _link_to(node: Node, link: LinkState) -> None:
    if link not in LINK_TRANSITIONS[node.link]:
        raise InvalidTransition(f"node {node.name}: {node.link.value} to {link.value}")
    node.link = link
