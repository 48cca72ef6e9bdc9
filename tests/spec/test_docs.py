"""The examples and the tables of docs/job-file.md are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.spec import later
from muster.spec.parse import parse_job
from muster.spec.schema import job_schema

PAGE = (Path(__file__).parents[2] / "docs" / "job-file.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_parses(text: str) -> None:
    parse_job(text)


def test_every_later_key_is_listed() -> None:
    listed = PAGE.partition("## Not yet")[2]
    for path, keys in later.LATER_KEYS.items():
        if path != "workdir":
            for key in keys:
                assert f"`{path}.{key}`" in listed or (not path and f"`{key}`" in listed), key
    for launcher in later.LATER_LAUNCHERS:
        assert f"`{launcher}`" in listed


def test_every_accepted_key_is_in_the_table() -> None:
    for key in job_schema()["properties"]:  # type: ignore[attr-defined]
        assert f"`{key}" in PAGE
