"""Remedies for code that git could not fetch."""

from __future__ import annotations

import pytest

from orchestrator.core.failures.git_fetch import ADVICE, RULES, FetchRule, advice_on, last_line


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example)
def test_each_line_has_its_remedy(rule: FetchRule) -> None:
    assert advice_on(rule.example) == rule.advice


def test_the_line_that_says_most_is_quoted() -> None:
    said = (
        "remote: Enumerating objects\n"
        "Host key verification failed.\n"
        "fatal: Could not read from remote repository.\n\n"
        "hint: see the manual\n"
    )
    assert last_line(said) == "Host key verification failed."
    assert last_line("error: one\nfatal: two\n") == "fatal: two"
    assert last_line("remote: x\n") == ""
    assert len(last_line("x" * 9000)) == 300
    assert advice_on("") == ADVICE
