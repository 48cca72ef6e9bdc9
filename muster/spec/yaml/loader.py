"""Loader of text as strings, lists and maps, without type conversion.

YAML's own typing turns `off` into a boolean, `1.10` into 1.1, `010` into 8 and a date into an
object. Here every scalar stays as typed; the spec assigns its type. Dangerous or ambiguous features
of YAML (aliases, tags, merge keys, duplicate keys, several documents, deep nesting) are refused
with the line.

An empty value (`KEY:`) is None, unlike the empty string (`KEY: ""`).
"""

from __future__ import annotations

import json
import math
import re
from typing import Final, NoReturn

import msgspec

from muster.spec.errors import InvalidValueError, ProblemKind, SpecError, SpecProblem, printable

MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 20
MAX_VALUES: Final = 20_000
_MAX_INT_BITS: Final = 64

# Match invalid text, not valid text: compiling the wide ranges would cost every command 8 ms.
_NOT_TEXT: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]"
)

TOO_MANY: Final = (f"holds more than {MAX_VALUES} values", "a job is short; ship data as files")


class Document(msgspec.Struct, frozen=True):
    """A parsed document: the tree, the line of each field path, and problems that did not stop
    parsing.

    `options` are the field paths that the command line set, each with its option.
    """

    tree: object
    lines: dict[str, int] = {}
    problems: tuple[SpecProblem, ...] = ()
    options: dict[str, str] = {}


def read_yaml(text: str) -> Document:
    """Load one YAML document of at most 1 MiB. `SpecError` names the line of a refused part."""
    # Commands without a job file do not need YAML, whose parser takes a tenth of their start time.
    from muster.spec.yaml.yaml_loader import compose

    return compose(checked_text(text))


def read_json(text: str) -> Document:
    """Load a JSON text of at most 1 MiB. Numbers stay as typed; `true` and `null` are real."""
    text = checked_text(text, control_characters=True)
    repeated: list[SpecProblem] = []

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        made: dict[str, object] = {}
        for key, value in items:
            if key in made:
                repeated.append(duplicate(key, key, None, None))
            else:
                made[key] = value
        return made

    try:
        tree = json.loads(
            text,
            object_pairs_hook=pairs,
            parse_int=str,
            parse_float=str,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        fail(error.lineno, f"not JSON: {error.msg}")
    except RecursionError:
        fail(None, f"nested deeper than {MAX_DEPTH} levels", "flatten the job")
    return Document(tree, {}, tuple(repeated))


def check_tree(tree: object) -> None:
    """Refuse anything but text, numbers, booleans, None, lists and string-keyed maps.

    Also refused: nesting beyond `MAX_DEPTH`, more than `MAX_VALUES` values, NUL, and half
    characters that no file name or environment could carry. Raises `SpecError`.
    """
    waiting: list[tuple[str, object, int]] = [("", tree, 0)]
    values = 0
    while waiting:
        path, value, depth = waiting.pop()
        values += len(value) if isinstance(value, dict | list | tuple) else 0
        if values > MAX_VALUES:
            fail(None, *TOO_MANY)
        wrong = _wrong_with(value, depth)
        if wrong:
            message, hint = wrong
            where = printable(path, len(path))  # the path itself may be unprintable
            raise SpecError([SpecProblem(where, None, message, hint, ProblemKind.SYNTAX)])
        if isinstance(value, dict):
            for key, item in value.items():
                waiting.append((join(path, key), key, depth + 1))
                waiting.append((join(path, key), item, depth + 1))
        elif isinstance(value, list | tuple):
            waiting.extend((f"{path}[{i}]", item, depth + 1) for i, item in enumerate(value))


def join(path: str, key: object) -> str:
    """Return the path of `key` under `path`."""
    return f"{path}.{key}" if path else str(key)


def _wrong_with(value: object, depth: int) -> tuple[str, str] | None:
    match value:
        case str():
            if "\0" in value:
                return "contains a NUL character", "remove it"
            if any("\ud800" <= char <= "\udfff" for char in value):
                return "contains half of a character (a lone surrogate)", "write it as UTF-8"
        case bool() | None:
            pass
        case int():
            if value.bit_length() > _MAX_INT_BITS:
                return "is a number out of range", ""
        case float():
            if not math.isfinite(value):
                return "is not a finite number", ""
        case dict() | list() | tuple():
            if depth >= MAX_DEPTH:
                return f"is nested deeper than {MAX_DEPTH} levels", "flatten the job"
            if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
                return "has a key that is not text", "keys are names"
        case _:
            return f"is a {type(value).__name__}, which is not allowed in a job", "use text"
    return None


def checked_text(text: str, *, control_characters: bool = False) -> str:
    """Return `text` without a byte order mark, after checking its type and length."""
    text = text.removeprefix("\ufeff")
    size = len(text) if len(text) > MAX_BYTES else len(text.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        fail(None, f"larger than {MAX_BYTES // 1024} KiB", "a job is short; ship data as files")
    bad = None if control_characters else _NOT_TEXT.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        fail(line, f"control character U+{ord(bad.group()):04X}", "write it as an escape in quotes")
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise SpecError([SpecProblem("", name, "is not a finite number", "", ProblemKind.SYNTAX)])


def duplicate(path: str, key: str, line: int | None, first: int | None) -> SpecProblem:
    seen = f", first on line {first}" if first is not None else ""
    return SpecProblem(
        path, None, f"`{printable(key)}` is given twice{seen}", "keep one", ProblemKind.SYNTAX, line
    )


def fail(line: int | None, message: str, hint: str = "") -> NoReturn:
    raise SpecError([SpecProblem("", None, message, hint, ProblemKind.SYNTAX, line)])


def scalar_text(value: object) -> str:
    """Return a scalar as typed, booleans as in JSON. Raises `InvalidValueError` for others."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case float():
            return repr(value)
        case None:
            raise InvalidValueError("is empty", "give a value, or leave the key out")
        case _:
            raise InvalidValueError("must be text, not a list or a map", "write one value")
