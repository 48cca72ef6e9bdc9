"""The reader keeps what was typed, and refuses what is ambiguous, with the line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.spec.errors import SpecError, SpecProblem
from muster.spec.yaml.loader import MAX_BYTES, MAX_DEPTH, check_tree, read_json, read_yaml


@pytest.mark.parametrize(
    "typed",
    [
        "off",
        "yes",
        "no",
        "1.10",
        "010",
        "0x1F",
        "1e-5",
        "2026-01-02",
        "null",
        "~",
        "true",
        "12:30:00",
    ],
)
def test_scalars_stay_text(typed: str) -> None:
    assert read_yaml(f"key: {typed}").tree == {"key": typed}


def test_empty_value_differs_from_empty_string() -> None:
    assert read_yaml('a:\nb: ""\nc: []\n').tree == {"a": None, "b": "", "c": []}


def test_lines_of_fields() -> None:
    lines = read_yaml("run: x.py\nretry:\n  infra: 1\n  on_exit_codes:\n    - 1\n    - 2\n").lines
    assert lines["retry.infra"] == 3
    assert lines["retry.on_exit_codes[1]"] == 6


def test_tabs_are_text_inside_a_block() -> None:
    assert read_yaml("run: |\n  a\n  \tb\n").tree == {"run": "a\n\tb\n"}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: &x 2", 2, "anchor"),
        ("a: 1\nb: *x", 2, "alias"),
        ("a: !!int 1", 1, "tag"),
        ("a: !python/object x", 1, "tag"),
        ("<<: {a: 1}", 1, "merges"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("a:\n\tb: 1", 2, "tab"),
        ("a: b: c", 1, "second `: `"),
        ("a: 1\n? [x]\n: 1", 2, "list or a map"),
        ("a: 'x", 1, "quoted scalar"),
        ("a: 1\nb: \x07", 2, "U+0007"),
        ('"": 1', 1, "key is empty"),
        ("a: " + "[" * 30 + "]" * 30, 1, "deeper than 20"),
    ],
)
def test_refused_with_the_line(text: str, line: int, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_yaml(text)
    (problem,) = caught.value.problems
    assert problem.line == line
    assert said in problem.message


def test_duplicate_key_is_reported_and_reading_goes_on() -> None:
    document = read_yaml("a: {x: 1, x: 2}\nb: 3\nb: 4\n")
    assert document.tree == {"a": {"x": "1"}, "b": "3"}
    assert [(p.field, p.line) for p in document.problems] == [("a.x", 1), ("b", 3)]
    assert "first on line 2" in document.problems[1].message


def test_size_is_counted_in_bytes() -> None:
    filler = "é" * (MAX_BYTES // 2)
    with pytest.raises(SpecError, match="larger than 1024 KiB"):
        read_yaml(f"a: {filler}")
    with pytest.raises(SpecError, match="larger than 1024 KiB"):
        read_json(f'"{filler}"')


def test_number_of_values_is_bounded() -> None:
    few, many = ", ".join(["x"] * 19_000), ", ".join(["x"] * 80_000)
    check_tree(read_yaml(f"[{few}]").tree)
    with pytest.raises(SpecError, match="more than 20000 values"):
        read_yaml(f"[{many}]")
    with pytest.raises(SpecError, match="more than 20000 values"):
        check_tree(["x"] * 20_001)


def test_depth_limit_is_exact() -> None:
    assert read_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH).tree
    check_tree(read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH).tree)
    for deeper in (MAX_DEPTH + 1, 5000, 100_000):
        text = "[" * deeper + "]" * deeper
        with pytest.raises(SpecError, match="deeper"):
            check_tree(read_json(text).tree)
        with pytest.raises(SpecError, match="deeper"):
            read_yaml(text)


def test_json_numbers_stay_as_typed() -> None:
    assert read_json('{"a": 1.10, "b": 8, "c": true, "d": null, "e": 1e-5}').tree == {
        "a": "1.10",
        "b": "8",
        "c": True,
        "d": None,
        "e": "1e-5",
    }
    assert read_json('{"a": ' + "9" * 10_000 + "}").tree == {"a": "9" * 10_000}


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": Infinity}', "{", "", '{"a" 1}'])
def test_bad_json(text: str) -> None:
    with pytest.raises(SpecError):
        read_json(text)


def test_json_duplicates() -> None:
    (problem,) = read_json('{"a": {"b": 1, "b": 2}}').problems
    assert "`b` is given twice" in problem.message


@pytest.mark.parametrize(
    "tree",
    [{"a": float("nan")}, {"a": 10**5000}, {1: "a"}, {"a": {1, 2}}, {"a": "\0"}, {"\ud800": "a"}],
)
def test_trees_no_job_can_hold(tree: object) -> None:
    with pytest.raises(SpecError):
        check_tree(tree)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_yaml, read_json):
        problems: tuple[SpecProblem, ...] | None = None
        try:
            read(text)
        except SpecError as error:
            problems = error.problems
        assert problems != ()
