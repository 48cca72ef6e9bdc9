"""Views of jobs and nodes: the only place that turns phases and outcomes into words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from muster.http import views as h
from muster.protocol.instant import Instant
from muster.protocol.observations.fabric import NodeRdma
from muster.protocol.observations.interfaces import host_port
from muster.protocol.states import TaskState
from muster.protocol.text import count, named
from muster.protocol.timestamp import maybe_timestamp, timestamp
from muster.spec.serialize import nodes_text, to_mapping
from muster.spec.units import duration_text
from orchestrator.core.gangs.launch import ranks_of
from orchestrator.core.gangs.refusals import refusal_cause
from orchestrator.core.gangs.terms import nodes_without_terms
from orchestrator.core.gangs.torchrun import last_call_s
from orchestrator.core.gangs.versions import odd_versions
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.clocks import clock_warning
from orchestrator.core.model.grace import stop_grace_s
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.leases import wait_text
from orchestrator.core.model.node import Drain, LinkState, drained_by
from orchestrator.core.model.state import Attempt, Job, Node, State, Task
from orchestrator.core.model.status import job_state
from orchestrator.core.model.task import reached
from orchestrator.core.monitoring.checkpoints import checkpoint_text
from orchestrator.core.monitoring.ended_ranks import ended_line, hint
from orchestrator.core.monitoring.traffic import proof_line
from orchestrator.core.nodes.enrolment import (
    certificate_warnings,
    copied_key_text,
    refused_warning,
)
from orchestrator.core.nodes.liveness import keeps_until as lasts
from orchestrator.core.nodes.service_state import deadline_text
from orchestrator.core.nodes.warnings import claim_warning, node_warnings
from orchestrator.core.scheduling.gpus import gpus_used
from orchestrator.core.scheduling.reasons import jobs_named, starts_nothing, without_torch
from orchestrator.core.scheduling.restore_hold import restore_warnings
from orchestrator.core.scheduling.scheduler import WaitingReasons
from orchestrator.core.views.gpus import gpu_views, job_gpus
from orchestrator.core.views.timeline import ended_unseen, timeline
from orchestrator.core.webhooks.outbox import host_of


def job_summary(
    state: State, job: Job, now: Instant, waiting: WaitingReasons | None = None
) -> h.JobSummary:
    """Return one line of the job list. `now` gives the age of outages. Pass one `waiting` for all
    jobs of a list."""
    return h.JobSummary(
        id=job.id,
        name=job.spec.name,
        user=job.user,
        state=job_state(job),
        reason=_reason(state, job, now, waiting or WaitingReasons(state)),
        nodes=job.spec.nodes,
        pool=job.spec.pool,
        priority=job.spec.priority,
        attempt=job.last_attempt,
        submitted_at=timestamp(job.submitted_at),
        started_at=maybe_timestamp(
            next((t.started_at for t in job.attempts if t.started_at), None)
        ),
        ended_at=maybe_timestamp(job.ended_at),
        exit_code=job.cause.exit_code if job.cause is not None else None,
        failure=_failure(job),
        limit_at=maybe_timestamp(_limit_at(job)),
        limit_pending=() if job.current is None else nodes_without_terms(job.current),
        kill_at=maybe_timestamp(_kill_at(job)),
        max_nodes=job.spec.max_nodes if job.spec.elastic else None,
        nodes_now=len(job.current.present) if job.current is not None else None,
        rerun_of=job.rerun_of,
        held_by=job.hold.user if job.hold is not None else "",
        held_at=timestamp(job.hold.at) if job.hold is not None else None,
        gpus=job_gpus(state, job),
        starts_by=maybe_timestamp(job.starts_by),
        time_limit_s=job.spec.time_limit_s,
        ended_unseen_at=maybe_timestamp(_ended_unseen(job)),
    )


def _ended_unseen(job: Job) -> float | None:
    ended = job.ended_at is not None and bool(job.attempts)
    return ended_unseen(job.attempts[-1]) if ended else None


def job_view(state: State, job: Job, now: Instant) -> h.JobView:
    """Return everything about one job."""
    summary: dict[str, Any] = msgspec.structs.asdict(job_summary(state, job, now))
    return h.JobView(
        **summary,
        spec=to_mapping(job.spec),
        attempts=tuple(_attempt_view(state, job, attempt) for attempt in job.attempts),
        timeline=tuple(timeline(job, job_state(job))),
        pending_webhooks=tuple(
            h.WebhookView(host_of(job, hook), webhook.event, timestamp(webhook.at), webhook.problem)
            for (_, hook), webhook in job.queued_webhooks.items()
        ),
    )


def node_seen(state: State, node: Node, now: Instant) -> h.NodeView:
    """Return one node, including what only the whole state shows."""
    warnings = (
        *restore_warnings(state, node.name),
        *certificate_warnings(state.enrolment, node.name, now.wall),
        *filter(None, (refused_warning(state.enrolment, node),)),
    )
    joined = state.enrolment.nodes.get(node.name)
    if joined is not None and claim_warning(node, now):
        warnings += (copied_key_text(node.name),)
    revoked = joined is not None and joined.revoked
    return node_view(node, now, lasts(state, node), warnings, revoked=revoked)


def node_view(
    node: Node,
    now: Instant,
    keeps_until: float | None = None,
    seen_in_state: tuple[str, ...] = (),
    *,
    revoked: bool = False,
) -> h.NodeView:
    """Return one node, from its link, its inventory and its jobs.

    `keeps_until` is when the tasks of an unreachable node have ended at the latest, None if that is
    open. `seen_in_state` are warnings that only the whole state shows. `revoked`: its
    certificate is not accepted any more.
    """
    holders = sorted(node.holders)
    job, attempt = holders[0] if holders else (None, None)
    seen = node.heard_at > 0.0
    warnings = (*node_warnings(node, now), *seen_in_state)
    return h.NodeView(
        name=node.name,
        link=node.link.value,
        state=_warned(node_state(node, now, keeps_until, revoked=revoked), warnings),
        address=node.inventory.address,
        pool=node.inventory.pool,
        gpus=node.inventory.gpus,
        gpu_model=node.inventory.gpu_model,
        cpus=node.inventory.cpus,
        memory_bytes=node.inventory.memory_bytes,
        labels=node.inventory.labels,
        job=job,
        attempt=attempt,
        last_seen_s=max(0.0, now.mono - node.heard_at) if seen else None,
        version=node.version,
        warnings=warnings,
        hostname=node.inventory.hostname,
        python=node.inventory.python,
        interfaces=tuple(
            h.InterfaceView(
                name=interface.name,
                kind=interface.kind.value,
                addresses=interface.addresses,
                running=interface.running,
                rdma=interface.rdma,
                speed_mbps=interface.speed_mbps,
            )
            for interface in node.inventory.interfaces
        ),
        peer=node.peer,
        connected_s=_connected_s(node, now),
        jobs=tuple(name for name, _ in holders),
        gpus_used=gpus_used(node),
        devices=gpu_views(node),
        admin=node.admin.value,
        drain=None if node.drain is None else _drain_view(node.drain),
        faults=tuple(h.FaultView(it.job, it.attempt, it.text, it.since) for it in node.faults),
        faults_before=node.faults_gone,
        hardware=tuple(
            h.HardwareView(timestamp(at), event.grade.value, event.text)
            for at, event in node.hardware
        ),
        rdma=_rdma(node.inventory.rdma),
        unenforced=node.inventory.unenforced,
        settings=tuple(h.SettingView(it.name, it.value, it.origin) for it in node.settings),
    )


def _rdma(rdma: NodeRdma | None) -> h.RdmaView | None:
    if rdma is None:
        return None
    return h.RdmaView(rdma.group, rdma.ports, rdma.expected, rdma.kind, rdma.why)


def _drain_view(drain: Drain) -> h.DrainView:
    left_s = drain.left_s
    return h.DrainView(
        user=drain.user,
        reason=drain.reason,
        at=timestamp(drain.at),
        ends_at=None if left_s is None else timestamp(drain.left_at + left_s),
        quarantine=bool(drain.jobs),
        jobs=drain.jobs,
        after_checkpoint=drain.after_checkpoint,
    )


def _warned(state: h.Reason, warnings: tuple[str, ...]) -> h.Reason:
    return h.Reason(state.code, "; ".join((state.text, *warnings))) if warnings else state


def _connected_s(node: Node, now: Instant) -> float | None:
    if node.link is not LinkState.CONNECTED:
        return None
    return max(0.0, now.mono - node.connected_at)


def _failure(job: Job) -> str:
    cause = job.cause
    if cause is None and job.attempts:
        cause = job.attempts[-1].cause
    return cause.kind if cause is not None else ""


def _limit_at(job: Job) -> float | None:
    attempt, limit_s = job.current, job.spec.time_limit_s
    if attempt is None or attempt.phase is not AttemptPhase.RUNNING or limit_s is None:
        return None
    return None if attempt.started_at is None else attempt.started_at + limit_s


def _kill_at(job: Job) -> float | None:
    """The end of a stopping attempt's grace period (UTC seconds).

    Returns None if nothing of the job had started, or if the job ended by itself.
    """
    attempt = job.current
    if attempt is None or attempt.stopping_at is None or attempt.released_at is None:
        return None
    grace_s = stop_grace_s(job, attempt)
    return None if grace_s is None else attempt.stopping_at + grace_s


def _reason(state: State, job: Job, now: Instant, waiting: WaitingReasons) -> h.Reason:
    match job.phase:
        case JobPhase.QUEUED:
            return h.Reason("waiting", waiting.why(job))
        case JobPhase.HELD:
            return h.Reason("held", _why_held(job))
        case JobPhase.BACKOFF:
            cause = job.attempts[-1].cause
            why = f"{cause.text}; " if cause is not None else ""
            pause = f"{job.retry_after_s:g} s"
            return h.Reason("backoff", f"{why}attempt {job.next_attempt} follows in {pause}")
        case JobPhase.ENDED:
            if job.cause is None:
                raise AssertionError(f"job {job.id} ended without a cause")
            return h.Reason(job.cause.code.value, job.cause.text)
        case JobPhase.ACTIVE:
            return _active_reason(state, job.attempts[-1], now)
        case _:
            assert_never(job.phase)


def _why_held(job: Job) -> str:
    if job.hold is None:
        raise AssertionError(f"job {job.id} is not held")
    return f"held by {job.hold.user}" + (f": {job.hold.reason}" if job.hold.reason else "")


def _active_reason(state: State, attempt: Attempt, now: Instant) -> h.Reason:
    if attempt.phase in (AttemptPhase.STOPPING, AttemptPhase.CLOSED):
        return _stopping_reason(state, attempt, now)
    away = [t for t in attempt.present if state.nodes[t.node].link is not LinkState.CONNECTED]
    if away:
        presumed = ", job presumed running" if attempt.phase is AttemptPhase.RUNNING else ""
        waits = wait_text(state, attempt, away, now)
        return h.Reason("unreachable", f"{_away(state, away, now)}{presumed}; {waits}")
    match attempt.phase:
        case AttemptPhase.PREPARING:
            if any(t.refusal is not None for t in attempt.tasks):
                return h.Reason("refused", refusal_cause(attempt).text)
            return h.Reason("preparing", _progress(attempt, TaskState.PREPARED, "ready"))
        case AttemptPhase.ARRANGING:
            return h.Reason("arranging", _progress(attempt, TaskState.ARRANGED, "have the plan"))
        case AttemptPhase.RUNNING:
            if attempt.started_at is None:
                return h.Reason("starting", _progress(attempt, TaskState.STARTED, "started"))
            progress = _and(checkpoint_text(state.jobs[attempt.job], attempt, now))
            progress += _and(ended_line(state.jobs[attempt.job], attempt))
            progress += _and(_hang_text(attempt)) + _and(attempt.idle)
            where = named([task.node for task in attempt.present])
            return h.Reason("running", f"on {where}{_size(state, attempt)}{progress}")
        case _:
            assert_never(attempt.phase)


def _stopping_reason(state: State, attempt: Attempt, now: Instant) -> h.Reason:
    """Return the cause of the stop, its progress, and the unreachable nodes that it waits for.

    These include nodes that an elastic gang continued without, as their tasks may still run.
    """
    cause = attempt.cause.text if attempt.cause is not None else "stopping"
    text = f"{cause}; {_progress(attempt, TaskState.CLEANED, 'clean')}"
    away = [
        task
        for task in attempt.tasks
        if task.state is not TaskState.LOST
        and not reached(task.state, TaskState.CLEANED)
        and (node := state.nodes.get(task.node)) is not None
        and node.link is not LinkState.CONNECTED
    ]
    if not away:
        return h.Reason("stopping", text)
    waits = wait_text(state, attempt, away, now)
    return h.Reason("unreachable", f"{text}; {_away(state, away, now)}; {waits}")


def _away(state: State, tasks: Sequence[Task], now: Instant) -> str:
    """Name the unreachable nodes, and for how long."""
    node = state.nodes[tasks[0].node]
    since = f" for {now.mono - node.heard_at:.0f} s" if node.heard_at > 0.0 else ""
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"{node.name}{more} unreachable{since}"


def _progress(attempt: Attempt, wanted: TaskState, word: str) -> str:
    done = sum(1 for t in attempt.tasks if reached(t.state, wanted))
    return f"{done} of {count(len(attempt.tasks), 'node')} {word}"


def _size(state: State, attempt: Attempt) -> str:
    """The size of an elastic gang, and how long torchrun waits for more nodes."""
    spec = state.jobs[attempt.job].spec
    if not spec.elastic:
        return ""
    here = len(attempt.present)
    text = f"; {here} of {nodes_text(spec)} nodes"
    if here == spec.max_nodes:
        return text
    return (
        f"{text}: whenever torchrun starts its ranks, it first waits {last_call_s(spec)} s "
        "for more to join (its last call)"
    )


def _attempt_view(state: State, job: Job, attempt: Attempt) -> h.AttemptView:
    master = host_port(attempt.master_addr, attempt.master_port) if attempt.master_port else None
    odd = odd_versions(attempt)
    ranks = ranks_of(job, attempt) if attempt is job.current else {}
    return h.AttemptView(
        number=attempt.number,
        state=attempt.phase.value,
        tasks=tuple(
            _task_view(
                t,
                odd.get(t.id),
                state.nodes.get(t.node) if attempt is job.current else None,
                ranks.get(t.id, range(0)),
                hint(attempt, t.node),
            )
            for t in attempt.tasks
        ),
        cause=attempt.cause,
        master=master,
        placed_at=timestamp(attempt.placed_at),
        started_at=maybe_timestamp(attempt.started_at),
        closed_at=maybe_timestamp(attempt.closed_at),
        network=attempt.network or None,
        fabric=attempt.fabric.text if attempt.fabric is not None else None,
        proof=proof_line(job, attempt),
        checkpoint=_checkpoint_view(attempt),
        hang=_hang_text(attempt),
    )


def _checkpoint_view(attempt: Attempt) -> h.CheckpointView | None:
    last = attempt.checkpoint
    return None if last is None else h.CheckpointView(timestamp(last.at), last.name, last.node)


def _hang_text(attempt: Attempt) -> str:
    if attempt.hang is None:
        return ""
    quiet = duration_text(float(round(attempt.hang.quiet_s)))
    return f"{attempt.hang.text}; no progress for {quiet}"


def _task_view(
    task: Task, odd: str | None, node: Node | None, running: range, advice: str
) -> h.TaskView:
    """`node` is the task's node, None once the attempt is over.

    `running` are ranks to show until the agent reports them.
    """
    refusal = task.refusal
    clock = "" if node is None else clock_warning(node)
    return h.TaskView(
        node=task.node,
        node_rank=task.rank,
        role="launcher" if task.rank == 0 else "worker",
        state=task.state,
        ranks=tuple(h.RankView(r.rank, r.exit, r.stopped) for r in task.ranks)
        or tuple(h.RankView(rank, None) for rank in running),
        exit=task.exit,
        refusal=h.Reason(refusal.code, refusal.text) if refusal is not None else None,
        left=task.left,
        warnings=(
            *task.warnings,
            *(said for said in (odd, clock, _overlooked(task), advice) if said),
        ),
        gpus=task.gpus or None,
        start=task.start,
    )


def _overlooked(task: Task) -> str:
    """Return a warning if the script ended with code 0 although ranks failed, else ""."""
    if not any(rank.exit is not None and rank.exit.ok and rank.error for rank in task.ranks):
        return ""
    return (
        "a torchrun of the script reported ranks that failed, and the script ended with code 0: "
        "let it end with torchrun's code, such as by `exec torchrun ...` in its last line"
    )


def _and(text: str) -> str:
    return f"; {text}" if text else ""


def node_state(
    node: Node, now: Instant, keeps_until: float | None = None, *, revoked: bool = False
) -> h.Reason:
    """Return what a node is doing, or why it is unreachable or out of service."""
    linked, drain = _link_state(node, now, keeps_until, revoked=revoked), node.drain
    if drain is None:
        return linked
    if node.link is LinkState.CONNECTED and not node.holders:
        return h.Reason(node.admin.value, drained_by(drain, now))
    code = node.admin.value if node.link is LinkState.CONNECTED else linked.code
    ends = deadline_text(drain, now) if node.holders else ""
    texts = (linked.text, drained_by(drain, now), ends)
    return h.Reason(code, "; ".join(text for text in texts if text))


def _link_state(node: Node, now: Instant, keeps_until: float | None, *, revoked: bool) -> h.Reason:
    left = "" if keeps_until is None else f" for {max(0.0, keeps_until - now.mono):.0f} s"
    more = f"; its jobs may continue{left}" if node.holders else ""
    if revoked and node.link is not LinkState.CONNECTED:
        back = f"to take it back: muster join, then muster node accept {node.name}"
        return h.Reason("revoked", f"revoked{more}; {back}")
    match node.link:
        case LinkState.CONNECTED:
            if not node.holders and (why := starts_nothing(node)) is not None:
                return h.Reason(why.code, why.words)
            if not node.holders and (why := without_torch(node)) is not None:
                fix = "set `python` in its agent.yaml to an environment with torch"
                return h.Reason(why.code, f"{node.no_torch}, for jobs that name no `python`; {fix}")
            if not node.holders:
                return h.Reason("free", "free")
            running = f"runs {jobs_named(node.holders)}"
            if (why := starts_nothing(node)) is not None:
                return h.Reason(why.code, f"{running}; {why.words}")
            if any(share.whole for share in node.holders.values()):
                return h.Reason("busy", running)
            free = node.inventory.gpus - gpus_used(node)
            text = f"{running}; {free} of {node.inventory.gpus} GPUs free"
            return h.Reason("shared" if free else "busy", text)
        case LinkState.OFFLINE:
            return h.Reason("offline", "no message since the coordinator started")
        case LinkState.SUSPECT | LinkState.LOST:
            what = "lost" if node.link is LinkState.LOST else "unreachable"
            return h.Reason(what, f"{what}{more}")
        case _:
            assert_never(node.link)
