"""The job files of the documents are read without an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.spec.parse import parse_job

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/reference/job-file.md", "docs/tutorial/first-job.md")
EXAMPLES = [
    example
    for page in PAGES
    for example in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_parses(text: str) -> None:
    parse_job(text)
