"""docs/reference/failures.md is the taxonomy of failures, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.outcome import ExitStatus
from orchestrator.core.failures.classify import judge
from orchestrator.core.failures.taxonomy import RULES, FailureRule
from tools.docs.failures_page import advice_of, page

PAGE = Path(__file__).parents[2] / "docs/reference/failures.md"


def test_the_page_is_made_from_the_table() -> None:
    again = "python -m tools.docs.failures_page > docs/reference/failures.md"
    assert PAGE.read_text(encoding="utf-8") == page(), again


def test_every_class_is_reported() -> None:
    text = page()
    assert [kind for kind in FailureKind if f"\n| `{kind}` |" not in text] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sign[:40])
def test_examples_are_judged_by_their_own_row(rule: FailureRule) -> None:
    verdict = judge(ExitStatus(1), f"{rule.sign}\n")
    found = (verdict.kind, verdict.said, verdict.advice, verdict.infra)
    assert found == (rule.kind, rule.sign, advice_of(rule), rule.infra)
