"""Command-line overrides of a job file."""

from __future__ import annotations

import pytest

from muster.spec.errors import SpecError
from muster.spec.model import JobSpec
from muster.spec.overrides import apply_overrides, override_document
from muster.spec.parse import parse_document, parse_mapping
from muster.spec.yaml.loader import read_yaml


def job(
    text: str, *sets: str, env: tuple[str, ...] = (), caller: dict[str, str] | None = None
) -> JobSpec:
    return parse_mapping(apply_overrides(read_yaml(text).tree, sets, env), caller)


def test_an_override_wins_over_every_spelling() -> None:
    assert job("run: x.py\nnum_nodes: 2", "nodes=4").nodes == 4
    assert job("run: x.py\nnodes: 2", "num_nodes=4").nodes == 4
    assert job("run: x.py\ntime: 1h", "time_limit=2h").time_limit_s == 7200
    assert job("run: x.py\naccelerators: 8", "resources.gpu=4").resources.gpu == 4
    assert job("run: x.py\nresources: {gpu: 8}", "accelerators=H100:4").resources.gpu == 4
    assert job("run: x.py\nresources: {accelerators: 8}", "resources.gpu=2").resources.gpu == 2


def test_sections_and_short_forms() -> None:
    assert job("run: x.py", "retry.infra=1").retry.infra == 1
    retry = job("run: x.py\nretry: 3", "retry.infra=1").retry
    assert (retry.infra, retry.user) == (1, 3)
    assert job("run: x.py\nworkdir: /a", "workdir.path=/b").workdir == "/b"


def test_values_are_text_unless_bracketed() -> None:
    assert job("run: x.py", "run=y.py --lr 1").run == job("run: y.py --lr 1").run
    assert job("run: x.py", "placement.exclude=[a, b]").placement.exclude == ("a", "b")
    assert job("run: x.py", "env.A=b=c").env == {"A": "b=c"}


def test_env() -> None:
    assert job("run: x.py\nenv: {A: 1}", env=("A=2", "B=")).env == {"A": "2", "B": ""}
    assert job("run: x.py\nenv: [A=1, C]", env=("B=x",), caller={"C": "c"}).env == {
        "A": "1",
        "C": "c",
        "B": "x",
    }
    assert job("run: x.py", env=("HF_HOME",), caller={"HF_HOME": "/h"}).env == {"HF_HOME": "/h"}


def test_options_then_sets() -> None:
    tree = apply_overrides({"run": "x.py"}, ["nodes=3"], options={"nodes": "2", "name": "a"})
    assert tree == {"run": "x.py", "name": "a", "nodes": "3"}


def test_the_file_is_not_touched() -> None:
    tree = {"run": "x.py", "resources": {"accelerators": "8"}, "env": ["A=1"]}
    apply_overrides(tree, ["resources.gpu=4"], ["A=2"])
    assert tree == {"run": "x.py", "resources": {"accelerators": "8"}, "env": ["A=1"]}


def test_an_overridden_field_points_at_no_line() -> None:
    document = read_yaml("run: x.py\nnodes: 2\npriority: 500\n")
    _, changed = override_document(document, ["nodes=0"])
    with pytest.raises(SpecError) as caught:
        parse_document(changed)
    assert {p.field: p.line for p in caught.value.problems} == {"nodes": None, "priority": 3}


@pytest.mark.parametrize(
    "text", ["nodes", "=4", "a..b=1", "a b=1", "placement.exclude=[a", "stop.grace=1s"]
)
def test_bad_overrides(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        apply_overrides({"run": "x.py", "stop": "30s"}, [text])
    assert caught.value.problems[0].message


@pytest.mark.parametrize("text", ["=x", "", "1A=x", "A.B=x", "RANK=1"])
def test_bad_variables(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        job("run: x.py", env=(text,))
    assert "x" not in (caught.value.problems[0].value or "")


def test_overrides_of_something_that_is_no_job() -> None:
    with pytest.raises(SpecError):
        apply_overrides(["run"], ["nodes=2"])
    assert apply_overrides(None, ["run=x.py"]) == {"run": "x.py"}
