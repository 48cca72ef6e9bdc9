"""The examples of docs/reference/job-file.md are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.spec.parse import parse_job

PAGE = (Path(__file__).parents[2] / "docs/reference/job-file.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_parses(text: str) -> None:
    parse_job(text)
