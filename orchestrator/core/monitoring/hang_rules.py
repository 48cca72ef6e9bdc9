"""Rules that decide if a gang hangs, from the activity of its ranks. They know nothing of jobs.

A suspicion needs silence of every sign: log bytes, bytes of sockets, HCAs and disks, and CPU
progress. The silence must cover all ranks, or a few against the others. It must exceed the gang's
longest gap by the factor in `HangLimits`, normally five. Two stack dumps then distinguish a hang
from slowness. A rank that computes, or waits for a disk or a file server, is at most slow.

A gang that has shown no steps yet is suspected in one case only: at least half of its ranks have
ended, and all others are idle.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, assert_never

from muster.protocol.observations.hangs import (
    Doing,
    Frame,
    HangKind,
    HangVerdict,
    RankActivity,
    RankStacks,
    StackGroup,
)
from orchestrator.core.model.limits import HangLimits
from orchestrator.core.monitoring.stack_analysis import (
    grouped,
    odd_one,
    place_of,
    ranks_text,
    reads_or_writes,
    waits,
)

SIGNS_MIN: Final = 2
"""Silence of one sign alone is no evidence."""
_RANKS_KEPT: Final = 64
_GROUPS_KEPT: Final = 8
_THREADS_KEPT: Final = 16


class HangRule(enum.Enum):
    """IDLE: no rank does anything. STILL: no bytes move, but some ranks compute. ODD: a few ranks
    do nothing while the others go on.
    """

    IDLE = "idle"
    STILL = "still"
    ODD = "odd"


class Suspicion(NamedTuple):
    """`ranks` do nothing for `quiet_s` seconds; the limit of the rule is `limit_s`."""

    rule: HangRule
    ranks: frozenset[int]
    quiet_s: float
    limit_s: float


def suspicion(ranks: Sequence[RankActivity], limits: HangLimits) -> Suspicion | None:
    """The suspicion about a gang from the current activity of all its ranks, or None."""
    for due in _dues(ranks, limits):
        if due.quiet_s >= due.limit_s:
            return due
    return None


def due_in_s(ranks: Sequence[RankActivity], limits: HangLimits) -> float | None:
    """Seconds until a suspicion arises if nothing changes; None if none can arise."""
    dues = [max(0.0, due.limit_s - due.quiet_s) for due in _dues(ranks, limits)]
    return min(dues, default=None)


def _dues(ranks: Sequence[RankActivity], limits: HangLimits) -> list[Suspicion]:
    alive = [rank for rank in ranks if rank.doing is not Doing.GONE]
    if not alive or any(rank.doing is Doing.TRACED for rank in alive):
        # A debugger is attached to a rank.
        return []
    if any(not rank.learned or len(rank.signs) < SIGNS_MIN for rank in alive):
        left = _left_behind(alive, [rank for rank in ranks if rank.doing is Doing.GONE], limits)
        return [] if left is None else [left]
    idle = [rank for rank in alive if rank.idle_s is not None]
    names = frozenset(rank.rank for rank in idle)
    still = [rank.still_s for rank in alive if rank.still_s is not None]
    found = []
    if len(idle) == len(alive):
        # A gap of the gang is a gap of every rank, so the shortest one bounds it.
        limit_s = limits.of_gap(min(rank.idle_gap_s for rank in alive))
        found.append(Suspicion(HangRule.IDLE, names, min(r.idle_s or 0.0 for r in idle), limit_s))
    elif len(still) == len(alive):
        limit_s = limits.of_gap(min(rank.still_gap_s for rank in alive))
        found.append(Suspicion(HangRule.STILL, names, min(still), limit_s))
    elif idle and 2 * len(idle) < len(alive):
        limit_s = limits.of_gap(max(rank.idle_gap_s for rank in idle))
        found.append(Suspicion(HangRule.ODD, names, min(r.idle_s or 0.0 for r in idle), limit_s))
    return found


def _left_behind(
    alive: Sequence[RankActivity], ended: Sequence[RankActivity], limits: HangLimits
) -> Suspicion | None:
    """The suspicion about ranks that stay idle after the others have ended.

    They may be at their exit, or in a call that waits for the ended ranks. The silence counts from
    the last of these ends, because the ranks may have waited for it. The limit is that of a gang
    that pauses for `quiet_s`. No learned signs are required: a program of a few seconds may have
    shown all of its own before the first sample.
    """
    quiet = [rank.idle_s for rank in (*alive, *ended)]
    if len(ended) < len(alive) or None in quiet:
        return None
    quiet_s = min(seconds for seconds in quiet if seconds is not None)
    names = frozenset(rank.rank for rank in alive)
    return Suspicion(HangRule.IDLE, names, quiet_s, limits.of_gap(limits.quiet_s))


AT_ITS_END: Final = (
    "where a rank stands at its exit: torch (2.13, with gloo) can block there after a collective "
    "in the last milliseconds, as the thread that frees DDP waits for gloo's threads while it "
    "holds the GIL (pytorch #56297, #190489); a barrier and a short pause before the end of the "
    "program help, such as time.sleep(0.02), destroy_process_group() alone does not"
)
"""A hint for a rank that does nothing after others have ended."""


def ended_text(ranks: Sequence[RankActivity]) -> str:
    """Text such as `ranks 0 to 2 have ended`; empty if none has ended, or all have."""
    gone = tuple(sorted(rank.rank for rank in ranks if rank.doing is Doing.GONE))
    if not gone or len(gone) == len(ranks):
        return ""
    return f"{ranks_text(gone)} {'has' if len(gone) == 1 else 'have'} ended"


class Opinion(enum.Enum):
    """The result of two stack dumps. DISMISSED: the gang moves, or the evidence is unclear."""

    HUNG = "hung"
    SLOW = "slow"
    DISMISSED = "dismissed"


def opinion(
    suspected: Suspicion,
    ranks: Sequence[RankActivity],
    first: Mapping[int, RankStacks],
    second: Mapping[int, RankStacks],
) -> Opinion:
    """Judge by two stack dumps; stacks that could not be read are missing or empty."""
    alive = [rank for rank in ranks if rank.doing is not Doing.GONE]
    stood = {
        rank.rank: second[rank.rank].main
        for rank in alive
        if rank.rank in first
        and rank.rank in second
        and first[rank.rank].main
        and first[rank.rank].main == second[rank.rank].main
    }
    moved = {
        rank.rank
        for rank in alive
        if rank.rank in first
        and rank.rank in second
        and first[rank.rank].main
        and second[rank.rank].main
        and rank.rank not in stood
    }
    if any(rank.doing is Doing.DISK for rank in alive):
        return Opinion.SLOW
    if any(reads_or_writes(frames) for frames in stood.values()):
        return Opinion.SLOW
    idle = [rank for rank in alive if rank.rank in suspected.ranks]
    if moved:
        return Opinion.SLOW if suspected.rule is HangRule.STILL else Opinion.DISMISSED
    match suspected.rule:
        case HangRule.IDLE:
            return Opinion.HUNG
        case HangRule.STILL:
            # A GPU driver spins while it waits. The stack then shows a waiting call, or a line of
            # the job's own code in a rank that waits for an idle one.
            busy = [rank for rank in alive if rank.rank not in suspected.ranks]
            spins = all(rank.rank in stood and waits(stood[rank.rank]) for rank in busy)
            stay = all(rank.rank in stood for rank in busy)
            held = stay and 0 < 2 * len(idle) < len(alive) and _stuck(idle, stood)
            stopped = any(rank.doing is Doing.STOPPED for rank in alive)
            return Opinion.HUNG if spins or held or stopped else Opinion.SLOW
        case HangRule.ODD:
            return Opinion.HUNG if _stuck(idle, stood) else Opinion.DISMISSED
        case _:
            assert_never(suspected.rule)


def _stuck(idle: Sequence[RankActivity], stood: Mapping[int, Sequence[Frame]]) -> bool:
    """True if these ranks do nothing, although they wait for no other rank."""
    return all(
        rank.doing is Doing.STOPPED or (rank.rank in stood and not waits(stood[rank.rank]))
        for rank in idle
    )


def verdict(
    kind: HangKind,
    suspected: Suspicion,
    ranks: Sequence[RankActivity],
    stacks: Mapping[int, RankStacks],
    nodes: Mapping[int, str],
    notes: tuple[str, ...] = (),
) -> HangVerdict:
    """The verdict in words, with its evidence."""
    alive = [rank for rank in ranks if rank.doing is not Doing.GONE]
    groups = grouped([stacks[rank.rank] for rank in alive if rank.rank in stacks], nodes)
    odd = _odd(suspected, alive, groups, stacks)
    rank = odd[0] if len(odd) == 1 else None
    place = place_of(stacks[odd[0]].main) if odd and odd[0] in stacks else ""
    stopped = [r.rank for r in alive if r.doing is Doing.STOPPED]
    if odd:
        where = ranks_text(odd) + (f" at {place}" if place else "")
        where += " (stopped by a signal)" if stopped and set(odd) <= set(stopped) else ""
    else:
        where = _everywhere(alive, groups)
    ended = ended_text(ranks)
    at_its_end = bool(ended) and kind is HangKind.HUNG and suspected.rule is HangRule.IDLE
    notes = (*notes, AT_ITS_END) if at_its_end and not stopped else notes
    order = sorted(alive, key=lambda one: (one.rank not in odd, one.rank))
    known = [stacks[one.rank] for one in order if one.rank in stacks]
    return HangVerdict(
        kind=kind,
        text=f"{kind.value}: {where}" + (f"; {ended}" if ended else ""),
        quiet_s=round(suspected.quiet_s, 1),
        limit_s=round(suspected.limit_s, 1),
        firm=bool(stopped) or all(r.rank in stacks and stacks[r.rank].main for r in alive),
        rank=rank,
        node=nodes.get(odd[0], "") if odd else "",
        place=place,
        ranks=tuple(order[:_RANKS_KEPT]),
        groups=groups[:_GROUPS_KEPT],
        threads=tuple(one for one in known if len(one.threads) > 1)[:_THREADS_KEPT],
        notes=notes,
    )


def _odd(
    suspected: Suspicion,
    alive: Sequence[RankActivity],
    groups: Sequence[StackGroup],
    stacks: Mapping[int, RankStacks],
) -> tuple[int, ...]:
    """The ranks to name: stopped ones, the few that do nothing, or those with the odd stack."""
    stopped = tuple(rank.rank for rank in alive if rank.doing is Doing.STOPPED)
    if stopped and len(stopped) < len(alive):
        return stopped
    if suspected.rule is HangRule.ODD:
        return tuple(sorted(suspected.ranks))
    slow = tuple(
        rank.rank
        for rank in alive
        if rank.doing is Doing.DISK
        or (rank.rank in stacks and reads_or_writes(stacks[rank.rank].main))
    )
    if slow and len(slow) < len(alive):
        return slow
    found = odd_one(groups)
    if found is not None and len(found.ranks) < len(alive):
        return found.ranks
    idle = tuple(sorted(suspected.ranks))
    return idle if len(alive) == 1 or 0 < 2 * len(idle) < len(alive) else ()


def _everywhere(alive: Sequence[RankActivity], groups: Sequence[StackGroup]) -> str:
    known = [group for group in groups if group.place]
    if len(known) > 1:
        return ", ".join(f"{ranks_text(g.ranks)} at {g.place}" for g in known[:4])
    every = ranks_text(tuple(rank.rank for rank in alive))
    return every + (f" at {known[0].place}" if known else "")
