"""docs/reference/job-file-keys.md comes from the types; every key is explained, examples work."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.spec.key_docs import KEYS, alias_of
from muster.spec.model import JobSpec, Resources, Retry, Stop
from muster.spec.parse import parse_job
from muster.spec.schema import flat_keys, job_schema
from tools.docs.job_file_keys import reference

PAGE = Path(__file__).parents[2] / "docs/reference/job-file-keys.md"


def test_the_page_is_what_the_types_say() -> None:
    again = "python -m tools.docs.job_file_keys > docs/reference/job-file-keys.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), again


def test_every_key_of_the_schema_is_reported_and_no_other() -> None:
    documented = {*KEYS, *(alias for about in KEYS.values() for alias in about.aliases)}
    assert documented == set(flat_keys())


def test_the_schema_says_the_same() -> None:
    properties = job_schema()["properties"]
    assert isinstance(properties, dict)
    assert properties["time_limit"]["description"] == KEYS["time_limit"].what
    assert properties["stop"]["properties"]["grace"]["description"] == KEYS["stop.grace"].what
    assert "time_limit" in properties["max_duration"]["description"]
    for path, schema in flat_keys().items():
        assert schema["description"], path


@pytest.mark.parametrize("key", KEYS)
def test_an_example_is_read_and_changes_the_job(key: str) -> None:
    example = KEYS[key].example
    rest = "" if key == "run" else "\nrun: train.py"
    text = f"{example[:-1]}, run: train.py}}" if example.startswith("{") else f"{example}{rest}"
    spec = parse_job(text)
    plain = parse_job("run: train.py")
    assert spec != plain or key in ("schema_version", "launcher")


def test_defaults_are_those_of_the_types() -> None:
    known = {key: schema["default"] for key, schema in flat_keys().items() if "default" in schema}
    plain = JobSpec(name="x", run=parse_job("run: x.py").run)
    assert known["priority"] == plain.priority
    assert known["pool"] == plain.pool
    assert known["retry.infra"] == Retry().infra
    assert known["retry.user"] == Retry().user
    assert known["launcher"] == plain.launcher.value
    assert known["rdma"] == plain.rdma.value
    assert known["stop.signal"] == Stop().signal
    assert Resources() == plain.resources


def test_an_alias_names_its_key() -> None:
    assert alias_of("time") == "time_limit"
    assert alias_of("nodes") is None
