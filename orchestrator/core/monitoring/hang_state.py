"""Changes of the state by the facts about hangs and stack dumps."""

from __future__ import annotations

from typing import Final, assert_never

from orchestrator.core.facts import hangs as hf
from orchestrator.core.model.state import HangSuspicion, StackDump, State

VERDICTS_KEPT: Final = 8
"""Number of an attempt's latest verdicts that the state keeps; the journal has all of them."""


def apply_hang(state: State, fact: hf.OfHang, at: float) -> None:
    match fact:
        case hf.StacksReported(name, report):
            task = state.task(name)
            look = None if task is None else state.stack_dumps.get((task.job, task.attempt))
            if look is not None:
                look.reports[name] = report
                look.awaited.discard(name)
        case hf.HangJudged(job, number, verdict):
            attempt = state.jobs[job].attempt(number)
            attempt.hang = verdict
            attempt.hangs = [*attempt.hangs, (at, verdict)][-VERDICTS_KEPT:]
            attempt.changes.add(at, fact.describe())
            state.watches.pop((job, number), None)
        case hf.HangCleared(job, number):
            attempt = state.jobs[job].attempt(number)
            attempt.hang = None
            attempt.changes.add(at, fact.describe())
        case hf.StackDumpBegun(job, number, count, tasks, until, requests, notes, judges):
            state.look_number = count
            state.stack_dumps[job, number] = StackDump(
                count, set(tasks), until, list(requests), notes, judges
            )
        case hf.StackDumpJoined(job, number, request):
            state.stack_dumps[job, number].requests.append(request)
        case hf.StackDumpEnded(job, number):
            state.stack_dumps.pop((job, number), None)
        case hf.HangSuspected(job, number, stacks, again_at):
            state.watches[job, number] = HangSuspicion(again_at, stacks)
        case hf.HangDismissed(job, number, again_at):
            if again_at:
                state.watches[job, number] = HangSuspicion(again_at)
            else:
                state.watches.pop((job, number), None)
        case _:
            assert_never(fact)
