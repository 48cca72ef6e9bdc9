"""The published schema agrees with the parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from muster.spec.errors import SpecError
from muster.spec.model import Argv
from muster.spec.parse import parse_job, parse_mapping
from muster.spec.schema import job_schema
from muster.spec.serialize import to_mapping

jsonschema = pytest.importorskip("jsonschema")

PAGE = (Path(__file__).parents[2] / "docs/reference/job-file.md").read_text()

ACCEPTED: dict[str, list[object]] = {
    "schema_version": [1, "1"],
    "name": ["x", "qwen-sft"],
    "nodes": [2, "2", "2..4"],
    "num_nodes": [2, "1 .. 3"],
    "rendezvous": ["static", "c10d"],
    "torchrun_args": [["--role", "trainer"], ["--monitor_interval=1"], []],
    "resources": [{}, {"gpu": 1}, {"accelerators": "H100:8"}, {"cpu": "16..", "memory": "200GB"}],
    "accelerators": ["H100:8", 0],
    "nproc_per_node": [1, "8", {"launcher": 4, "worker": "2"}, {"a": 4, "b.c": 2}],
    "roles": [
        {},
        {"launcher": {}},
        {"launcher": {"nproc_per_node": 4}, "worker": {"run": ["y.py", 1], "env": ["A=1"]}},
    ],
    "workdir": [
        "/x",
        ".",
        "src/x",
        "none",
        {"path": "/x"},
        {"path": "/x", "ship": False},
        {"path": "x", "ship": True},
        {"bundle": "0" * 64},
    ],
    "python": ["/x", "python3.12"],
    "setup": ["x", ["x", "y"]],
    "launcher": ["none", "torchrun", "processes", "accelerate", "deepspeed"],
    "run": ["x.py", ["x.py", 1]],
    "lease": ["15s", "30m", "2d"],
    "checkpoint_dir": ["/data/ckpt"],
    "env": [{}, {"A": 1, "B": "x", "C": True}, ["A=1"]],
    "time_limit": ["1h", "1d 2h", "1-00:00:00", "36:00:00", "500.5s"],
    "max_duration": ["1h"],
    "time": ["1h"],
    "stop": [{}, {"signal": 15, "grace": "500ms"}],
    "retry": [1, {}, {"user": 1, "on_exit_codes": [75], "never_on": ["OOM"], "backoff": "1m"}],
    "priority": [0, "100"],
    "rdma": ["required", "preferred", "off"],
    "nccl_debug": [True, "false"],
    "preflight": ["quick"],
    "start_method": ["fork", "exec"],
    "preload": [[]],
    "hang": ["notify", "dump", "restart"],
    "idle": [{}, {"for": "30m"}, {"gpu_util_below": "10", "for": "2h", "action": "stop"}],
    "notify": [["https://hooks.example.com/x?a=b", "http://10.0.0.1:8080"], []],
    "pool": ["x"],
    "placement": [{}, {"include": ["a"]}, {"exclude": ["a", "b.c"]}, {"labels": {"rack": "r1"}}],
}

REFUSED: list[dict[str, object]] = [
    {"nam": "x"},
    {"secrets": ["x"]},
    {"name": "X"},
    {"rdma": "on"},
    {"nccl_debug": "yes"},
    {"notify": ["ftp://x/y"]},
    {"preflight": "full"},
    {"start_method": "spawn"},
    {"start_method": "fork", "preload": ["./train.py"]},
    {"idle": "1h"},
    {"idle": {"action": "kill"}},
    {"idle": {"gpu_util_below": 0}},
    {"notify": [f"https://x/{n}" for n in range(9)]},
    {"nodes": 0},
    {"nodes": "2.."},
    {"nodes": "2-4"},
    {"rendezvous": "etcd"},
    {"resources": {"cpu": []}},
    {"workdir": "~/x"},
    {"workdir": "https://host/x.git"},
    {"workdir": {"bundle": "x"}},
    {"workdir": {"git": "http://host/x.git"}},
    {"workdir": {"git": "https://ann:pw@host/x.git"}},
    {"workdir": {"git": "https://host/x", "ref": "-x"}},
    {"workdir": {"git": "https://host/x", "ref": "x/"}},
    {"workdir": {"git": "https://host/x", "commit": "abc"}},
    {"workdir": {"git": "https://host/x", "secret": "../x"}},
    {"workdir": {"git": "https://host/x", "path": "/x"}},
    {"workdir": {"ref": "main"}},
    {"workdir": {"path": ".", "ship": False}},
    {"workdir": {"path": "/x", "bundle": "0" * 64}},
    {"workdir": {}},
    {"workdir": {"path": "/x", "ship": True}},
    {"launcher": "mpirun"},
    {"nproc_per_node": {"worker": 0}},
    {"roles": {"master": {}}},
    {"roles": {"worker": {"setup": "x"}}},
    {"time_limit": 90},
    {"time_limit": "90"},
    {"time_limit": "1h", "stop": {"warn": "B:USR1@5m"}},
    {"retry": {"user": 1, "never_on": ["oom"]}},
    {"priority": 101},
    {"placement": {"spread": "switch"}},
    {"env": {"1A": "x"}},
    {"schema_version": 2},
    {"run": None},
]


def test_it_is_a_schema_with_every_key() -> None:
    schema = job_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    assert set(properties) == set(ACCEPTED)


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in ACCEPTED.items() for value in values]
)
def test_both_accept(key: str, value: object) -> None:
    spec = parse_mapping({"run": "x.py", key: value})
    jsonschema.validate({"run": "x.py", key: value}, job_schema())
    jsonschema.validate(to_mapping(spec), job_schema())


@pytest.mark.parametrize("change", REFUSED)
def test_both_refuse(change: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        parse_mapping({"run": "x.py", **change})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"run": "x.py", **change}, job_schema())


def test_a_job_without_a_run_of_its_own() -> None:
    roles: dict[str, object] = {"roles": {"launcher": {"run": "x.py"}}}
    assert parse_mapping(roles).run == Argv(("x.py",))
    jsonschema.validate(roles, job_schema())
    for refused in ({}, {"roles": {"worker": {"run": "x.py"}}}):
        with pytest.raises(SpecError):
            parse_mapping(refused)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(refused, job_schema())


def test_the_examples_of_the_page() -> None:
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        parse_job(text)
        jsonschema.validate(yaml.safe_load(text), job_schema())
