"""YAML loader without types. Other packages use `loader.read_yaml`.

A separate module, so that programs that read no YAML do not load the parser.
"""

from __future__ import annotations

from typing import Final, NoReturn

import yaml

from muster.spec.errors import SpecProblem, printable
from muster.spec.yaml.loader import MAX_DEPTH, MAX_VALUES, TOO_MANY, Document, duplicate, fail, join

# The C parser is some thirty times faster, and a large file must not block a coordinator.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Container = dict[str, object] | list[object]


def compose(text: str) -> Document:
    """Load the document in a checked text. Raises `SpecError`."""
    composer = _Composer()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            composer.take(event)
    except yaml.MarkedYAMLError as error:
        _refuse_syntax(text, error)
    except yaml.YAMLError as error:
        fail(None, f"not YAML: {printable(str(error))}")
    return Document(composer.root, composer.lines, tuple(composer.problems))


class _Frame:
    """A list or map under construction."""

    def __init__(self, made: Container, path: str, line: int) -> None:
        self.made = made
        self.path = path
        self.line = line
        self.key: str | None = None
        self.repeated = False


class _Composer:
    """Builds the tree from the parser's events, without recursion and without typing scalars."""

    def __init__(self) -> None:
        self.root: object = None
        self.lines: dict[str, int] = {}
        self.problems: list[SpecProblem] = []
        self._stack: list[_Frame] = []
        self._documents = 0
        self._values = 0

    def take(self, event: yaml.Event) -> None:
        mark = event.start_mark
        line = mark.line + 1 if mark else 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                fail(line, "a second document begins here", "one file is one job; remove `---`")
            return
        self._refuse_indirection(event, line)
        self._values += 1
        if self._values > 3 * MAX_VALUES:  # keys, values and the ends of maps
            fail(line, *TOO_MANY)
        match event:
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.MappingStartEvent():
                self._open({}, line)
            case yaml.SequenceStartEvent():
                self._open([], line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._stack.pop()
            case _:
                pass  # the ends of streams and documents

    def _refuse_indirection(self, event: yaml.Event, line: int) -> None:
        anchor = getattr(event, "anchor", None)
        if anchor:
            is_alias = isinstance(event, yaml.AliasEvent)
            mark, what = ("*", "an alias") if is_alias else ("&", "an anchor")
            fail(
                line,
                f"`{mark}{printable(str(anchor))}` is {what}",
                "write the value out, or quote text that begins with this symbol",
            )
        tag = getattr(event, "tag", None)
        if tag and tag != "!":
            fail(line, f"`{printable(str(tag))}` is a tag", "quote text that begins with `!`")

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        frame = self._stack[-1] if self._stack else None
        if frame is not None and isinstance(frame.made, dict) and frame.key is None:
            self._key(frame, event, line)
            return
        left_empty = event.value == "" and event.style in (None, "")
        self._place(None if left_empty else event.value, line)

    def _key(self, frame: _Frame, event: yaml.ScalarEvent, line: int) -> None:
        key: str = event.value
        path = join(frame.path, key)
        if key == "<<":
            fail(line, "`<<` merges another map", "write the keys out")
        if key == "":
            fail(line, "a key is empty", "name the key before the colon")
        frame.key = key
        frame.repeated = key in frame.made
        if frame.repeated:
            self.problems.append(duplicate(path, key, line, self.lines.get(path)))
        else:
            self.lines[path] = line

    def _open(self, made: Container, line: int) -> None:
        if len(self._stack) >= MAX_DEPTH:
            fail(line, f"nested deeper than {MAX_DEPTH} levels", "flatten the job")
        path = self._place(made, line)
        self._stack.append(_Frame(made, path, line))

    def _place(self, value: object, line: int) -> str:
        """Add `value` to the current frame. Returns its path."""
        if not self._stack:
            self.root = value
            return ""
        frame = self._stack[-1]
        if isinstance(frame.made, list):
            path = f"{frame.path}[{len(frame.made)}]"
            self.lines[path] = line
            frame.made.append(value)
            return path
        if frame.key is None:
            fail(line, "a key is itself a list or a map", "keys are names")
        path = join(frame.path, frame.key)
        if not frame.repeated:
            frame.made[frame.key] = value
        frame.key = None
        return path


def _refuse_syntax(text: str, error: yaml.MarkedYAMLError) -> NoReturn:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    problem = error.problem or "not YAML"
    hint = "check the indentation, and quote text that holds `: `, ` #` or begins with a symbol"
    if line is not None and _indented_by_tab(text, line):
        problem, hint = "indented with a tab", "YAML takes spaces only"
    elif "mapping values are not allowed" in problem:
        problem = "a second `: ` on one line"
        hint = "put the value in quotes, or check the indentation"
    elif "while" in (error.context or ""):
        problem = f"{problem} {error.context}"
    fail(line, printable(problem), hint)


def _indented_by_tab(text: str, line: int) -> bool:
    # The parser may point at the line after the one that holds the tab.
    near = text.split("\n")[max(line - 2, 0) : line]
    return any("\t" in row[: len(row) - len(row.lstrip())] for row in near)
