"""Declarations of facts: a fact without its properties cannot be defined."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from orchestrator.core.facts.base import EPHEMERAL, LAZY, PROPERTIES, SYNC, BaseFact, JobFact
from orchestrator.core.facts.jobs import Fact

DECLARED: dict[str, Any] = {
    "durability": EPHEMERAL,
    "reschedules": False,
    "milestone": False,
    "revises": False,
}


def define(base: type[BaseFact] = BaseFact, **declared: Any) -> type[BaseFact]:
    return types.new_class("Happened", (base,), declared, lambda it: it.update(__module__=__name__))


@pytest.mark.parametrize("absent", PROPERTIES)
def test_a_fact_must_declare_each_property(absent: str) -> None:
    declared = {name: value for name, value in DECLARED.items() if name != absent}
    with pytest.raises(TypeError, match=f"the fact Happened must declare {absent}"):
        define(**declared)


def test_a_fact_has_the_properties_that_it_declares() -> None:
    made = define(**DECLARED)
    assert {name: getattr(made, name) for name in PROPERTIES} == DECLARED
    assert made().reschedules is False


def test_a_family_may_declare_a_property_for_its_facts() -> None:
    family = define(family=True, **{**DECLARED, "milestone": True})
    assert define(family).milestone
    assert not define(family, milestone=False).milestone


def test_a_durable_fact_must_describe_itself() -> None:
    with pytest.raises(TypeError, match=r"must define describe\(\)"):
        define(**{**DECLARED, "durability": LAZY})


@pytest.mark.parametrize(("base", "durability"), [(BaseFact, SYNC), (JobFact, EPHEMERAL)])
def test_only_a_durable_fact_of_a_job_revises_it(base: type[BaseFact], durability: Any) -> None:
    with pytest.raises(TypeError, match="must be a durable JobFact"):
        define(base, **{**DECLARED, "durability": durability, "revises": True})


def test_every_fact_is_in_the_union() -> None:
    assert set(_facts(BaseFact)) == set(get_args(Fact))


def _facts(base: type[BaseFact]) -> Iterator[type[BaseFact]]:
    for kind in base.__subclasses__():
        if kind.__subclasses__():
            yield from _facts(kind)
        elif kind.__module__.startswith("orchestrator."):
            yield kind
