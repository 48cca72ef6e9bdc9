"""Defaults of a pool: below all that a job says, in whatever spelling, above the built-in ones."""

from __future__ import annotations

import pytest

from muster.spec.errors import SpecError
from muster.spec.model import JobSpec
from muster.spec.parse import parse_document
from muster.spec.pool_defaults import check_defaults, fill_in
from muster.spec.yaml.loader import read_yaml

BIG: dict[str, object] = {
    "time_limit": "24h",
    "retry": {"infra": 9, "user": 1},
    "env": {"HF_HOME": "/data", "A": "1"},
    "resources": {"gpu": 8},
    "placement": {"labels": {"rack": "r1"}, "exclude": ["gpu-07"]},
}
DEFAULTS: dict[str, dict[str, object]] = {"big": BIG, "default": {"priority": 20}}


def filled(text: str) -> tuple[JobSpec, tuple[str, ...]]:
    document, keys = fill_in(read_yaml(f"run: x.py\n{text}"), DEFAULTS)
    return parse_document(document), keys


def test_all_that_is_not_said_is_filled_in() -> None:
    spec, keys = filled("pool: big")
    assert (spec.time_limit_s, spec.retry.infra, spec.retry.user) == (86400.0, 9, 1)
    assert spec.env == {"HF_HOME": "/data", "A": "1"}
    assert (spec.resources.gpu, spec.placement.exclude) == (8, ("gpu-07",))
    assert spec.placement.labels == {"rack": "r1"}
    assert set(keys) == {
        *("time_limit", "retry.infra", "retry.user", "env.HF_HOME", "env.A", "resources.gpu"),
        *("placement.labels.rack", "placement.exclude"),
    }


def test_keys_of_the_job_win_in_any_spelling() -> None:
    spec, keys = filled(
        "pool: big\ntime: 1h\nretry: 3\nenv: [A=2]\naccelerators: 4\n"
        "placement: {labels: {rack: r2}, exclude: [gpu-01]}"
    )
    assert (spec.time_limit_s, spec.retry.infra, spec.retry.user) == (3600.0, 9, 3)
    assert spec.env == {"A": "2", "HF_HOME": "/data"}
    assert spec.resources.gpu == 4
    assert (spec.placement.labels, spec.placement.exclude) == ({"rack": "r2"}, ("gpu-01",))
    assert set(keys) == {"retry.infra", "env.HF_HOME"}


def test_a_pool_can_set_the_lease_of_its_jobs() -> None:
    defaults = {"big": {"lease": "10m"}}
    check_defaults("big", defaults["big"])
    jobs = {"": 600.0, "nodes: 2": 600.0, "lease: 1h": 3600.0}
    for text, lease_s in jobs.items():
        document, _ = fill_in(read_yaml(f"run: x.py\npool: big\n{text}"), defaults)
        assert parse_document(document).lease_s == lease_s


def test_a_job_without_a_pool_is_in_the_default_one() -> None:
    assert filled("")[0].priority == 20
    assert filled("priority: 70")[0].priority == 70
    assert filled("pool: other") == (parse_document(read_yaml("run: x.py\npool: other")), ())


@pytest.mark.parametrize("text", ["retry: [1]", "env: 7", "placement: x", "resources: [8]"])
def test_a_mistake_of_the_job_is_reported_as_its_own(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        filled(f"pool: big\n{text}")
    with pytest.raises(SpecError) as alone:
        parse_document(read_yaml(f"run: x.py\n{text}"))
    assert [p.field for p in caught.value.problems] == [p.field for p in alone.value.problems]


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ({"run": "x.py"}, "run"),
        ({"name": "n"}, "name"),
        ({"pool": "p"}, "pool"),
        ({"time_limt": "1h"}, "time_limt"),
        ({"time_limit": 90}, "time_limit"),
        ({"stop": {"grace": "-1s"}}, "stop.grace"),
    ],
)
def test_defaults_that_no_job_could_have_are_refused(tree: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_defaults("big", tree)
    assert [p.field for p in caught.value.problems] == [field]
