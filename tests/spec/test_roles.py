"""Nodes of one job that differ: `roles`, `nproc_per_node` as a map, and ranks that we start."""

from __future__ import annotations

import pytest

from muster.cli.input.job_input import Typed, read_job
from muster.spec.command import needs_interpreter
from muster.spec.errors import ProblemKind, SpecError, SpecProblem
from muster.spec.model import (
    Argv,
    JobSpec,
    Role,
    Roles,
    Seat,
    Shell,
    env_on_node,
    nproc_on_node,
    run_on_node,
)
from muster.spec.overrides import apply_overrides
from muster.spec.parse import parse_job, parse_mapping


def job(text: str) -> JobSpec:
    return parse_job("run: x.py\nnodes: 2\n" + text)


def problems_of(text: str) -> tuple[SpecProblem, ...]:
    with pytest.raises(SpecError) as caught:
        parse_job(text)
    return caught.value.problems


def counts(spec: JobSpec, *seats: tuple[int, str, int]) -> list[int]:
    return [nproc_on_node(spec, Seat(*seat)) for seat in seats]


def test_a_map_by_role_is_what_roles_say() -> None:
    short = job("nproc_per_node: {launcher: 4, worker: 2}")
    long = job("roles: {launcher: {nproc_per_node: 4}, worker: {nproc_per_node: 2}}")
    assert short == long
    assert counts(short, (0, "a", 8), (1, "b", 8)) == [4, 2]


def test_a_role_left_open_takes_the_nodes_gpus() -> None:
    assert counts(job("nproc_per_node: {worker: 2}"), (0, "a", 4), (1, "b", 4)) == [4, 2]
    general = job("nproc_per_node: 3\nroles: {worker: {nproc_per_node: 2}}")
    assert counts(general, (0, "a", 4), (1, "b", 4)) == [3, 2]


def test_a_map_by_node_means_these_nodes() -> None:
    spec = job("nproc_per_node: {gpu-01: 4, gpu-02: 2}")
    assert spec.placement.include == ("gpu-01", "gpu-02")
    assert counts(spec, (1, "gpu-01", 8), (0, "gpu-02", 8), (0, "other", 8)) == [4, 2, 8]


def test_with_a_number_for_all_others_any_node_will_do() -> None:
    spec = job("nproc_per_node: {gpu-01: 4, worker: 2}")
    assert spec.placement.include == ()
    assert counts(spec, (1, "gpu-01", 8), (1, "gpu-02", 8), (0, "gpu-02", 8)) == [4, 2, 8]


def test_a_role_has_its_own_run_and_environment() -> None:
    spec = job("env: {A: 1, B: 1}\nroles: {worker: {run: serve.py --port 1, env: {B: 2}}}")
    assert spec.roles == Roles(worker=Role(Argv(("serve.py", "--port", "1")), env={"B": "2"}))
    assert [run_on_node(spec, rank) for rank in (0, 1)] == [
        Argv(("x.py",)),
        Argv(("serve.py", "--port", "1")),
    ]
    assert [env_on_node(spec, rank) for rank in (0, 1)] == [
        {"A": "1", "B": "1"},
        {"A": "1", "B": "2"},
    ]


def test_a_role_of_a_script_is_a_script() -> None:
    spec = parse_job("launcher: none\nrun: a\nroles: {worker: {run: 'b; c'}}")
    assert spec.roles.worker.run == Shell("b; c")


def test_the_roles_runs_may_be_all_there_is() -> None:
    spec = parse_job("nodes: 2\nroles: {launcher: {run: a.py}, worker: {run: b.py}}")
    assert (spec.run, spec.roles.worker.run) == (Argv(("a.py",)), Argv(("b.py",)))
    assert spec.name == "a"
    (problem,) = problems_of("nodes: 2\nroles: {launcher: {run: a.py}}")
    assert (problem.field, problem.message) == ("run", "is missing")


def test_every_mistake_with_its_field() -> None:
    text = """
nodes: 2
run: x.py
nproc_per_node: {launcher: 0, worker: 2, "bad[1-2]": 1, gpu-01: auto, gpu-02: }
placement: {include: [gpu-02]}
roles:
  master: {run: y.py}
  launcher: 4
  worker: {run: torchrun x.py, nproc_per_node: 3, setup: make, env: {RANK: 1}}
"""
    found = {problem.field: problem for problem in problems_of(text)}
    assert set(found) == {
        "nproc_per_node.launcher",
        "nproc_per_node.bad[1-2]",
        "nproc_per_node.gpu-01",
        "nproc_per_node.gpu-02",
        "placement.include",
        "roles.master",
        "roles.launcher",
        "roles.worker.run",
        "roles.worker.nproc_per_node",
        "roles.worker.setup",
        "roles.worker.env.RANK",
    }
    assert found["roles.master"].hint == "did you mean `launcher`?"
    assert found["roles.worker.setup"].kind is ProblemKind.UNKNOWN
    assert found["roles.worker.nproc_per_node"].message.startswith("is given in `nproc_per_node")
    assert all(problem.line is not None for problem in found.values())


@pytest.mark.parametrize(
    ("typed", "meant"), [("workers", "worker"), ("lancher", "launcher"), ("master", "launcher")]
)
def test_a_misspelt_role_is_not_taken_for_a_node(typed: str, meant: str) -> None:
    (problem,) = problems_of(f"nodes: 2\nrun: x.py\nnproc_per_node: {{launcher: 4, {typed}: 2}}")
    assert problem.field == f"nproc_per_node.{typed}"
    assert meant in problem.hint


def test_a_node_may_be_called_like_a_role_with_its_number() -> None:
    spec = parse_job("nodes: 1\nrun: x.py\nnproc_per_node: {worker-1: 2}")
    assert counts(spec, (0, "worker-1", 0)) == [2]


def test_named_nodes_must_be_enough_and_allowed() -> None:
    (few,) = problems_of("nodes: 3\nrun: x.py\nnproc_per_node: {a: 4, b: 2}")
    assert (few.field, few.message) == ("nproc_per_node", "leaves 2 nodes for a job of 3")
    (other,) = problems_of(
        "nodes: 1\nrun: x.py\nnproc_per_node: {a: 4, b: 2}\nplacement: {include: [a]}"
    )
    assert other.field == "nproc_per_node.b"


@pytest.mark.parametrize(
    ("file", "override", "wanted"),
    [
        ({}, "roles.worker.nproc_per_node=2", {0: 1, 1: 2}),
        ({"nproc_per_node": {"worker": 4}}, "roles.worker.nproc_per_node=2", {0: 1, 1: 2}),
        ({"roles": {"worker": {"nproc_per_node": 4}}}, "nproc_per_node.worker=2", {0: 1, 1: 2}),
        ({}, "nproc_per_node={launcher: 4, worker: 2}", {0: 4, 1: 2}),
        ({"nproc_per_node": {"worker": 4}}, "nproc_per_node=3", {0: 3, 1: 3}),
    ],
)
def test_overrides(file: dict[str, object], override: str, wanted: dict[int, int]) -> None:
    spec = parse_mapping(apply_overrides({"run": "x.py", "nodes": 2, **file}, [override]))
    assert counts(spec, (0, "a", 0), (1, "b", 0)) == [wanted[0], wanted[1]]


def test_variables_of_a_role_are_taken_from_the_caller() -> None:
    sets = ("roles.worker.env={TOKEN: }", "roles.launcher.run=y.py")
    typed = Typed(None, ("x.py",), sets, (), {})
    made = read_job(typed, {"TOKEN": "t"})
    assert made.spec.roles.worker.env == {"TOKEN": "t"}
    assert parse_mapping(made.mapping, {}).roles == made.spec.roles


@pytest.mark.parametrize(
    ("run", "argv", "interpreter"),
    [
        ("train.py --lr 1e-5", ("train.py", "--lr", "1e-5"), True),
        ("python -u train.py x", ("train.py", "x"), True),
        ("python3 -m pkg.train", ("-m", "pkg.train"), True),
        ("-m pkg.train", ("-m", "pkg.train"), True),
        ("./bench --all 'a b'", ("./bench", "--all", "a b"), False),
        ("python -c 'print(1)'", ("python", "-c", "print(1)"), False),
        ("python train", ("python", "train"), False),
        (["python", "train.py"], ("python", "train.py"), False),
        (["train.py", 1], ("train.py", "1"), True),
    ],
)
def test_the_command_of_a_rank(run: object, argv: tuple[str, ...], interpreter: bool) -> None:
    spec = parse_mapping({"launcher": "processes", "run": run})
    assert spec.run == Argv(argv)
    assert needs_interpreter(argv) == interpreter


@pytest.mark.parametrize("run", ["torchrun x.py", "A=1 ./x", "", "a | b", "-m", []])
def test_impossible_commands_of_a_rank(run: object) -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping({"launcher": "processes", "run": run})
    (problem,) = caught.value.problems
    assert problem.field == "run"


def test_a_bare_command_for_each_rank() -> None:
    typed = Typed(None, ("python", "x.py", "a b"), ("launcher=processes",), (), {})
    assert read_job(typed, {}).spec.run == Argv(("x.py", "a b"))
