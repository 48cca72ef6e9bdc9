"""Forecast: the latest start of a waiting job, if every job before it uses its whole time limit.

Runs the scheduler's own placement on a copy of the nodes, and releases jobs as their limits end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from muster.protocol.instant import Instant
from muster.protocol.text import count, named
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.grace import stop_grace_s
from orchestrator.core.model.node import SUPPOSED
from orchestrator.core.model.state import Attempt, Job, Node, State
from orchestrator.core.scheduling.gpus import given, share_of, used_by_strangers
from orchestrator.core.scheduling.placement import Waiting, place, unfit
from orchestrator.core.scheduling.reasons import cannot_start

VERDICTS_MAX: Final = 30_000
"""Maximum of node verdicts for one forecast, about a tenth of a second.

In a larger cluster the forecast reaches less far.
"""


class Forecast(msgspec.Struct, frozen=True):
    """The latest start, `in_s` seconds from now; None is unknown, and `text` says why."""

    in_s: float | None
    text: str


def forecast(state: State, job: Job, line: list[Job], now: Instant) -> Forecast:
    """The forecast for a job that waits behind those of `line`, in their order."""
    pool = [it for it in state.nodes.values() if it.inventory.pool == job.spec.pool]
    nodes = {it.name: replace(it, holders=dict(it.holders)) for it in pool}
    trial = State(networks=state.networks, nodes=nodes)
    trial.jobs = state.jobs
    ends = {
        name: ends_in_s(state, state.jobs[name], now)
        for name in {name for it in pool for name, _ in it.holders}
    }
    at, looked = 0.0, 0
    for next_one in [*line, job]:
        looked += len(trial.nodes)
        while isinstance(gang := place(trial, next_one), Waiting):
            looked += len(trial.nodes)
            known = [(end, name) for name, end in ends.items() if end is not None]
            if not known:
                return Forecast(None, _unknown(trial, next_one, job))
            end, ended = min(known)
            at = max(at, end)
            del ends[ended]
            for node in trial.nodes.values():
                for holder in [it for it in node.holders if it[0] == ended]:
                    del node.holders[holder]
            if looked > VERDICTS_MAX:
                break
        if isinstance(gang, Waiting) or looked > VERDICTS_MAX:
            return Forecast(None, "unknown: too many jobs are before it")
        if next_one is job:
            break
        holder = (next_one.id, next_one.next_attempt)
        for name in gang:
            share = share_of(next_one.spec, given(trial, next_one.spec, name))
            trial.nodes[name].holders[holder] = share
        limit_s = next_one.spec.time_limit_s
        ends[next_one.id] = None if limit_s is None else at + limit_s + next_one.spec.stop.grace_s
    return Forecast(at, "by the time limits of the jobs before it")


def ends_in_s(state: State, job: Job, now: Instant) -> float | None:
    """Seconds until an active job has released its nodes, at the latest; None if unknown."""
    attempt = job.current
    if attempt is None:
        return 0.0
    if attempt.phase is AttemptPhase.STOPPING:
        return _stopped_in_s(job, attempt, now)
    limit_s = job.spec.time_limit_s
    if limit_s is None:
        return None
    since = state.running.get(job.id)
    left_s = limit_s if since is None else max(0.0, since + limit_s - now.mono)
    return left_s + job.spec.stop.grace_s


def _stopped_in_s(job: Job, attempt: Attempt, now: Instant) -> float:
    """By the wall clock, because the result is only shown."""
    grace_s = stop_grace_s(job, attempt)
    if attempt.stopping_at is None or grace_s is None or attempt.released_at is None:
        return 0.0
    return min(max(0.0, attempt.stopping_at + grace_s - now.wall), grace_s)


def _unknown(trial: State, waiting: Job, job: Job) -> str:
    """Return why `waiting`, which is `job` or a job before it, cannot be placed at any time."""
    fitting = [node for node in trial.nodes.values() if unfit(waiting.spec, node) is None]
    used = [node for node in fitting if node.in_service]
    holders = sorted({name for node in used for name, _ in node.holders})
    who = "" if waiting is job else f"job {waiting.id}, which is before it, "
    if holders:
        names = named([str(name) for name in holders])
        jobs = f"job {names} has" if len(holders) == 1 else f"jobs {names} have"
        return f"unknown: {who and who + 'waits, and '}{jobs} no time limit"
    if waiting.user != job.user:
        # For which nodes another's job waits, and why, is not for everybody.
        return f"unknown: {who}waits"
    if drained := drained_nodes(fitting):
        return f"unknown: {who}waits for a drained node to be resumed: {named(drained)}"
    away = len([node for node in fitting if node.session is None])
    if away:
        return f"unknown: {who}waits for {count(away, 'node')} to come back"
    refusing = [it.name for it in fitting if cannot_start(waiting.spec, it) is not None]
    if refusing:
        return f"unknown: {who}waits until {named(refusing)} can start tasks (muster nodes)"
    strange = [it.name for it in fitting if used_by_strangers(it)]
    if strange:
        where = f"on {named(strange)}"
        return f"unknown: {who}waits for GPUs that foreign processes use, {where}"
    return f"never: {who or 'it '}does not fit the known nodes"


def drained_nodes(nodes: Iterable[Node]) -> list[str]:
    """The drained ones of these nodes, each with the user who drained it."""
    drains = [(node.name, node.drain) for node in nodes if node.drain is not None]
    return [name if it == SUPPOSED else f"{name} ({it.user})" for name, it in drains]
