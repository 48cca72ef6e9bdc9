"""Problems of a job, reported all at once.

Checking never stops at the first mistake: problems are collected, and one `SpecError` carries all
of them. Messages never repeat values of `env` and of keys that hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

MAX_PROBLEMS = 100
_SHOWN_CHARS = 80
_SAID_CHARS = 2000  # a correction may hold the whole command
_SHOWN_ITEMS = 8


class ProblemKind(Enum):
    """Kind of a problem."""

    SYNTAX = "syntax"  # the text cannot be read
    UNKNOWN = "unknown"  # a key that nobody defined
    LATER = "later"  # a key or value that a later release will support
    INVALID = "invalid"  # a known key with a bad value


class SpecProblem(msgspec.Struct, frozen=True):
    """A problem of a job.

    `field` is its path (`retry.on_exit_codes[1]`; empty for the text as a whole), `value` is the
    text as typed, shortened and safe to print (None if there is none or it may be secret), `line`
    is the line in the user's file if known, `option` is the command-line option that set the field
    (`-e RANK`).
    """

    field: str
    value: str | None
    message: str
    hint: str = ""
    kind: ProblemKind = ProblemKind.INVALID
    line: int | None = None
    option: str = ""

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line is not None else []
        where += [printable(self.option)] if self.option else []
        where += [printable(self.field)] if self.field else []
        where += [f"`{self.value}`"] if self.value is not None else []
        said = ": ".join([*where, self.message])
        return f"{said}\n    {self.hint}" if self.hint else said


class SpecError(ValueError):
    """The job is refused. `problems` holds every reason, in the order of the file. `notes` describe
    how the job was read, such as ignored parts of a batch script.
    """

    def __init__(self, problems: Sequence[SpecProblem], notes: Sequence[str] = ()) -> None:
        self.problems: tuple[SpecProblem, ...] = tuple(problems)
        self.notes: tuple[str, ...] = tuple(notes)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InvalidValueError(ValueError):
    """A value that a pure parser (of a unit, a command) refuses; the caller adds the field."""

    def __init__(
        self, message: str, hint: str = "", kind: ProblemKind = ProblemKind.INVALID
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind


class SeveralRefusedError(InvalidValueError):
    """Several problems of one value; the message is that of the first."""

    def __init__(self, refused: Sequence[InvalidValueError]) -> None:
        super().__init__(refused[0].message, refused[0].hint, refused[0].kind)
        self.refused = tuple(refused)


def raise_refused(refused: Sequence[InvalidValueError]) -> None:
    """Raise the collected problems, if any."""
    single = [one for several in refused for one in each_refused(several)]
    if len(single) == 1:
        raise single[0]
    if single:
        raise SeveralRefusedError(single)


def each_refused(refused: InvalidValueError) -> Sequence[InvalidValueError]:
    """Return the single problems of a refusal."""
    return refused.refused if isinstance(refused, SeveralRefusedError) else (refused,)


class Problems:
    """Collects problems with the line of each field, and limits their number against hostile files.

    `lines` maps field paths to lines of the user's file; empty if there was no file. `options` maps
    field paths to the command-line option that set them.
    """

    def __init__(
        self, lines: Mapping[str, int] | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self._lines = lines or {}
        self._options = options or {}
        self._found: list[SpecProblem] = []
        self._left_out = 0

    @property
    def full(self) -> bool:
        """True if further problems are only counted."""
        return len(self._found) >= MAX_PROBLEMS

    def add(
        self,
        field: str,
        value: str | None,
        message: str,
        hint: str = "",
        kind: ProblemKind = ProblemKind.INVALID,
    ) -> None:
        """Record a problem; beyond `MAX_PROBLEMS` it is only counted."""
        if self.full:
            self._left_out += 1
            return
        said = printable(message, _SAID_CHARS)
        advice = printable(hint, _SAID_CHARS)
        line, option = self._origin_of(field)
        self._found.append(SpecProblem(field, value, said, advice, kind, line, option))

    def refuse(self, field: str, value: str | None, refused: InvalidValueError) -> None:
        """Record the problems of a pure parser's refusal."""
        for one in each_refused(refused):
            self.add(field, value, one.message, one.hint, one.kind)

    def extend(self, problems: Sequence[SpecProblem]) -> None:
        """Add problems that already know their line."""
        room = max(MAX_PROBLEMS - len(self._found), 0)
        self._found.extend(problems[:room])
        self._left_out += len(problems[room:])

    def raise_if_any(self) -> None:
        """Raise `SpecError` with all problems, in file order."""
        if not self._found:
            return
        last = float("inf")
        found = sorted(self._found, key=lambda p: last if p.line is None else p.line)
        if self._left_out:
            found.append(
                SpecProblem("", None, f"and {self._left_out} more problems", "fix these first")
            )
        raise SpecError(found)

    def _origin_of(self, field: str) -> tuple[int | None, str]:
        """Return the line and the option that set the field, or those of the nearest enclosing
        section.
        """
        path = field
        while path:
            if path in self._options:
                return None, self._options[path]
            if path in self._lines:
                return self._lines[path], ""
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return None, ""


def printable(text: str, limit: int = _SHOWN_CHARS) -> str:
    """Return `text` shortened, with control characters and terminal escapes spelled out."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in short
    )


def shown(value: object) -> str | None:
    """Return `value` as typed, safe to print: only the keys of a map, because values may be secret.

    Returns None for an empty value.
    """
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case str():
            return printable(value)
        case dict():
            return printable("{" + ", ".join(str(key) for key in list(value)[:_SHOWN_ITEMS]) + "}")
        case list() | tuple():
            items = [shown(item) or "" for item in list(value)[:_SHOWN_ITEMS]]
            return printable("[" + ", ".join(items) + "]")
        case int() | float():
            return printable(repr(value))
        case _:
            return printable(type(value).__name__)
