"""Stacks as text: one block per group of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster.cli.output.format import safe
from muster.protocol.observations.hangs import HangVerdict, StackGroup, StacksView
from muster.protocol.text import count, named

_RANKS = 16


def heading(view: StacksView) -> str:
    """Return the job and the number of its ranks with a stack."""
    ranks = sum(len(group.ranks) for group in view.groups)
    return f"job {view.job}, attempt {view.attempt}  {count(ranks, 'rank')}"


def stack_lines(groups: Sequence[StackGroup]) -> Iterator[str]:
    """Yield the lines of each group, the innermost frame first."""
    for group in groups:
        where = f" on {', '.join(safe(node) for node in group.nodes)}" if group.nodes else ""
        place = f"  {safe(group.place)}" if group.place else ""
        waits = "  (waits for other ranks)" if group.waits else ""
        yield ""
        yield f"{_ranks(group.ranks)}{where}{place}{waits}"
        if group.problem:
            yield f"    {safe(group.problem)}"
        for frame in group.frames:
            yield f"    {safe(frame.name)}  {safe(frame.file)}:{frame.line}"


def verdict_lines(verdict: HangVerdict) -> Iterator[str]:
    """Yield the lines of a verdict with its evidence."""
    yield safe(verdict.text)
    yield f"  no progress for {verdict.quiet_s:.0f} s; reported after {verdict.limit_s:.0f} s"
    for rank in verdict.ranks:
        still = "moves" if rank.still_s is None else f"no bytes for {rank.still_s:.0f} s"
        idle = "computes" if rank.idle_s is None else f"no CPU for {rank.idle_s:.0f} s"
        where = f" in {safe(rank.where)}" if rank.where else ""
        yield (
            f"  rank {rank.rank}: {still}, {idle}; {rank.doing.value}{where}; "
            f"longest pauses before: {rank.still_gap_s:.0f} s without bytes, "
            f"{rank.idle_gap_s:.0f} s without CPU"
        )
    for record in verdict.recorded:
        said = record.problem or (
            f"last collective {record.last}; {record.completed} of {record.enqueued} completed"
        )
        yield f"  flight recorder of rank {record.rank}: {safe(said)}"
    for note in verdict.notes:
        yield f"  {safe(note)}"
    yield from stack_lines(verdict.groups)
    for one in verdict.threads:
        for thread in one.threads[1:]:
            gil = ", holds the GIL" if thread.gil else ""
            yield ""
            yield f"rank {one.rank}, thread {safe(thread.name)}{gil}"
            for frame in thread.frames:
                yield f"    {safe(frame.name)}  {safe(frame.file)}:{frame.line}"


def _ranks(ranks: Sequence[int]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {named([str(rank) for rank in ranks], _RANKS)}"
