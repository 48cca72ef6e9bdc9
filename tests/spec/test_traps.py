"""YAML traps in a job: each value is kept as typed or refused with its field and value. The wrong
types are made from the types of the specification."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from muster.spec.errors import SpecError, SpecProblem
from muster.spec.model import JobSpec
from muster.spec.parse import MAX_LAUNCH_BYTES, parse_job, parse_json

KIB = 1024
DIGITS = "9" * 5000  # more than Python makes a number of

# Spelling of the fields of a `JobSpec` in a job file, where it is not the field's name.
SPELLED = {
    "max_nodes": "nodes",
    "nproc_on": "nproc_per_node",
    "time_limit_s": "time_limit",
    "grace_s": "grace",
    "backoff_s": "backoff",
    "gpu_model": "gpu",
    "argv": "run",
    "git": "workdir",
}
WRONG: dict[str, Any] = {"a list": [[["x"]]], "a deep map": {"x": {"y": {"z": []}}}, "null": None}


def refused(text: str) -> tuple[SpecProblem, ...]:
    with pytest.raises(SpecError) as caught:
        parse_job(text)
    return caught.value.problems


def keys(kind: type[msgspec.Struct], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key of a job file, made from the types."""
    for name, hint in get_type_hints(kind).items():
        path = (*above, SPELLED.get(name, name))
        choices = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
        structs = [c for c in choices if isinstance(c, type) and issubclass(c, msgspec.Struct)]
        yield path
        if structs and structs[0].__name__ not in {"Argv", "GitCode", "Shell", "Warn"}:
            yield from keys(structs[0], path)


PATHS = sorted(set(keys(JobSpec)))


def nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def test_the_list_of_keys_is_that_of_the_types() -> None:
    assert {("run",), ("retry", "backoff"), ("roles", "worker", "env")} <= set(PATHS)
    assert len(PATHS) >= 30


@pytest.mark.parametrize("path", PATHS, ids=".".join)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_type_is_reported_with_its_field(path: tuple[str, ...], wrong: str) -> None:
    body = {"run": "x.py", "time_limit": "1h", **nested(path, WRONG[wrong])}
    with pytest.raises(SpecError) as caught:
        parse_json(json.dumps(body))
    name = ".".join(path)
    fields = [p.field for p in caught.value.problems]
    assert all(field.startswith(name) for field in fields), fields
    assert all(p.message and p.hint for p in caught.value.problems)


@pytest.mark.parametrize(
    "path",
    [p for p in PATHS if p[-1] in {"nodes", "priority", "infra", "user", "schema_version", "gpu"}],
    ids=".".join,
)
@pytest.mark.parametrize(
    "typed",
    [DIGITS, "-1", "1e3", "1_000", "0x10", "010", "1.10", ".inf", ".nan", "yes", "٣", "1 2"],
)
def test_an_invalid_number_is_reported_with_the_value(path: tuple[str, ...], typed: str) -> None:
    (problem,) = refused(f"run: x.py\n{json.dumps(path[0])}: {_flow(path[1:], typed)}\n")
    assert problem.field == ".".join(path)
    assert problem.value == (f"{typed[:77]}..." if len(typed) > 80 else typed)
    assert problem.line == 2


@pytest.mark.parametrize("path", [("time_limit",), ("stop", "grace"), ("retry", "backoff")])
@pytest.mark.parametrize("typed", [f"{DIGITS}h", "1e400h", "nan", ".inf", "-1h", "off", "on"])
def test_an_invalid_duration_is_reported_with_the_value(path: tuple[str, ...], typed: str) -> None:
    (problem,) = refused(f"run: x.py\n{path[0]}: {_flow(path[1:], typed)}\n")
    assert problem.field == ".".join(path)


def _flow(rest: tuple[str, ...], typed: str) -> str:
    return "{" * len(rest) + "".join(f"{name}: " for name in rest) + typed + "}" * len(rest)


def test_env_is_what_was_typed() -> None:
    typed = [
        "off",
        "on",
        "yes",
        "no",
        "010",
        "1.10",
        "2026-01-02",
        "~",
        "null",
        "0x10",
        "1_000",
        ".inf",
        ".nan",
        "12:30:00",
        "1e5",
        "=",
    ]
    text = "run: x.py\nenv:\n" + "".join(f"  A{n}: {word}\n" for n, word in enumerate(typed))
    assert list(parse_job(text).env.values()) == typed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: !!python/object/apply:os.system ['id']", "is a tag"),
        ("run: !!binary aGk=", "is a tag"),
        ("%TAG ! tag:evil,2026:\n---\nrun: x.py", ""),
        ("run: x.py\n...\n---\nrun: y.py", "second document"),
        ("run: x.py\nenv: *base", "alias"),
        ("run: x.py\n<<: *base", "merges another map"),
        ("run: x.py\n<<: {nodes: 2}", "merges another map"),
        ("\x00", "U+0000"),
        ("run: x.py\nname: a\x1bb", "U+001B"),
        ("run: x.py".encode("utf-16").decode("latin-1"), "U+0000"),
        ("env:\n\tA: 1", "tab"),
        ("", "there is no job here"),
        ("---\n...\n", "there is no job here"),
        ("run: " + "x" * (KIB * KIB), "larger than 1024 KiB"),
        ("run: x.py\nenv:\n" + "".join(f" A{n}: 1\n" for n in range(100_000)), "larger than"),
        ("run: x.py\nenv: {" + ",".join(f"A{n}: 1" for n in range(60_000)) + "}", "20000 values"),
        ("[" * 5000, "nested deeper"),
        ("run: x.py\nenv: {A: " + "{b: " * 30 + "1" + "}" * 30 + "}", "nested deeper"),
        ("run: x.py\nenv: {A: {b: c}}", "must be text"),
        ("run: x.py\nname: " + "a" * 100_000, "is not a name"),
        ("run: x.py\nworkdir: /" + "a" * 5000, "is not a path"),
    ],
)
def test_a_trap_is_refused_in_words(text: str, said: str) -> None:
    if not said:
        parse_job(text)
        return
    problems = refused(text)
    assert any(said in problem.message for problem in problems), problems
    assert len(str(SpecError(problems))) < 5000


def test_a_byte_order_mark_and_windows_line_ends_are_taken() -> None:
    assert parse_job("\ufeffrun: x.py\r\nnodes: 2\r\n").nodes == 2


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("run: [x.py, {long}]", "run"),
        ("run: x.py {long}", "run"),
        ("launcher: none\nrun: echo {long}", "run"),
        ("launcher: processes\nrun: [/bin/echo, {long}]", "run"),
        ("run: x.py\nsetup: echo {long}", "setup"),
        ("run: x.py\nenv: {{A: {long}}}", "env.A"),
        ("run: x.py\nenv: [A={long}]", "env[0]"),
        ("run: x.py\nroles: {{worker: {{run: [x.py, {long}]}}}}", "roles.worker.run"),
        ("run: x.py\nroles: {{launcher: {{env: {{A: {long}}}}}}}", "roles.launcher.env.A"),
    ],
)
def test_strings_too_long_for_execve_are_refused_at_submit(text: str, field: str) -> None:
    (problem,) = refused(text.format(long="a" * 128 * KIB))
    assert problem.field == field
    assert "128 KiB that Linux takes" in problem.message
    parse_job(text.format(long="a" * 120 * KIB))


def many(count: int) -> str:
    return "{" + ", ".join(f"A{n}: {'a' * 100_000}" for n in range(count)) + "}"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("run: x.py\nenv: {6}", "env"),
        ("run: [x.py" + f", {'a' * 100_000}" * 6 + "]", "run"),
        ("run: x.py\nenv: {3}\nroles: {{worker: {{env: {3b}}}}}", "roles.worker"),
    ],
)
def test_too_much_data_together_is_refused_at_submit(text: str, field: str) -> None:
    filled = text.replace("{6}", many(6)).replace("{3b}", many(3).replace("A", "B"))
    filled = filled.replace("{3}", many(3)).replace("{{", "{").replace("}}", "}")
    (problem,) = refused(filled)
    assert problem.field == field
    assert f"{MAX_LAUNCH_BYTES // KIB} KiB is the limit" in problem.message
