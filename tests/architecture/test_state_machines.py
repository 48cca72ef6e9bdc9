"""The state machines in CONTRIBUTING.md are those of the code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from agent.core.network_phase import NETWORK_TRANSITIONS
from agent.shim.messages import ShimPhase
from orchestrator.core.model.attempt import ATTEMPT_TRANSITIONS
from orchestrator.core.model.job import JOB_TRANSITIONS
from orchestrator.core.model.node import LINK_TRANSITIONS
from orchestrator.core.model.task import TASK_TRANSITIONS
from tests.architecture.sources import TREE

_State = TypeVar("_State", bound=Enum)


def by_name(table: Mapping[_State, frozenset[_State]]) -> dict[str, set[str]]:
    """The transitions of a table. A state that nothing follows is left out."""
    return {state.name: {one.name for one in after} for state, after in table.items() if after}


TABLES = {
    "Job": by_name(JOB_TRANSITIONS),
    "Attempt": by_name(ATTEMPT_TRANSITIONS),
    "Task": by_name(TASK_TRANSITIONS),
    "Node": by_name(LINK_TRANSITIONS),
    "Network": by_name(NETWORK_TRANSITIONS),
}

PAGE = (TREE / "CONTRIBUTING.md").read_text("utf-8")


def test_the_page_has_every_transition() -> None:
    lines = re.findall(r"^(\w+) +([A-Z]+) +-> ([A-Z ]+)$", PAGE, re.MULTILINE)
    shown = {(machine, state): set(after.split()) for machine, state, after in lines}
    tables = {
        (machine, state): after
        for machine, table in TABLES.items()
        for state, after in table.items()
    }
    assert shown == tables


def test_the_page_names_every_phase_of_the_shim() -> None:
    section = PAGE.partition("## State machines")[2].partition("\n## ")[0]
    assert [phase.name for phase in ShimPhase if phase.name not in section] == []
