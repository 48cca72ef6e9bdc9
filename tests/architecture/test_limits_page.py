"""docs/reference/limits.md names tests that are there."""

from __future__ import annotations

import re

from muster.protocol.link.log_channel import STREAMS_PER_TASK_MAX
from tests.architecture.sources import TREE

PAGE = (TREE / "docs/reference/limits.md").read_text(encoding="utf-8")


def test_every_test_that_it_names_is_there() -> None:
    named = set(re.findall(r"`([\w/]+/test_\w+\.py)`", PAGE.partition("## ")[2]))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (TREE / "tests" / name).exists()] == []


def test_the_bound_of_streams_is_there() -> None:
    assert f"at most {STREAMS_PER_TASK_MAX} " in PAGE
