"""Apply facts about a restored journal."""

from __future__ import annotations

from typing import assert_never

from orchestrator.core.facts import links as lf
from orchestrator.core.facts import restored as rf
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import State


def apply_restored(state: State, fact: rf.OfRestore) -> None:
    match fact:
        case rf.JournalRestored(left_out, nodes, attempts, go, first):
            seen = dict(attempts)
            for job in state.jobs.values():
                if job.phase is not JobPhase.ENDED:
                    last = max(job.last_attempt, job.left_out_to, seen.get(job.id, 0))
                    job.left_out_to = max(last + left_out, first) - 1
            state.awaited = set() if go else state.awaited | {*state.nodes, *nodes}
        case rf.RestoredNodeSettled(name):
            state.awaited.discard(name)
            state.answered.discard(name)
        case rf.NodeDeclaredLost(name):
            state.awaited.discard(name)
            state.unknown.replace(name, ())
            node = state.nodes.get(name)
            if node is not None:
                node.declared_lost = True
                if node.link in (LinkState.OFFLINE, LinkState.SUSPECT):
                    node.link = LinkState.LOST
        case _:
            assert_never(fact)


def apply_unknown(state: State, fact: lf.UnknownTasksHeld | lf.UnknownTaskOver) -> None:
    match fact:
        case lf.UnknownTasksHeld(name, tasks):
            state.unknown.replace(name, tasks)
            if name in state.awaited:
                state.answered.add(name)
        case lf.UnknownTaskOver(name, task):
            state.unknown.discard(name, task)
        case _:
            assert_never(fact)
