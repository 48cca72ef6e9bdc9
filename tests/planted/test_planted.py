"""Every planted bug is found, by a check that finds nothing without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted import Bug, Check, wrong
from tests.planted.every import EVERY

CHECKS = sorted({bug.check for bug in EVERY}, key=lambda check: check.__name__)


@pytest.mark.parametrize("bug", EVERY, ids=lambda bug: f"{bug.breaks}: {bug.name}")
def test_a_planted_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    assert wrong(bug.check, tmp_path, bug.patch) is not None, "nothing was found"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_without_a_bug_nothing_is_found(check: Check, tmp_path: Path) -> None:
    assert wrong(check, tmp_path) is None


def test_no_bug_is_planted_twice() -> None:
    assert len({bug.name for bug in EVERY}) == len(EVERY)


def test_each_invariant_of_the_shells_has_several() -> None:
    for invariant in ("I6", "I7", "I8"):
        assert sum(bug.breaks == invariant for bug in EVERY) >= 4
