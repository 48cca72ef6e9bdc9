"""Command-line overrides of a job file: `--set`, `-e` and the short options.

They apply to the unchecked tree, so that an override is checked like the rest. An override replaces
every spelling of its key: `--set nodes=4` overrides `num_nodes: 2` in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from muster.spec.errors import SpecError, SpecProblem, printable
from muster.spec.yaml.loader import Document, read_yaml

_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*")

# Each group is one setting; messages use its first spelling.
SPELLINGS: Final = (
    ("nodes", "num_nodes"),
    ("time_limit", "max_duration", "time"),
    ("resources.gpu", "resources.accelerators", "accelerators"),
    ("workdir.path", "workdir.bundle", "workdir.git"),
    # Another branch is another commit, which only the client can find.
    ("workdir.ref", "workdir.commit"),
    ("roles.launcher.nproc_per_node", "nproc_per_node.launcher"),
    ("roles.worker.nproc_per_node", "nproc_per_node.worker"),
)

# Sections with a short form, and the key that the short form sets.
_SHORT_FORMS: Final = {"retry": "user", "workdir": "path"}

Tree = dict[str, object]


def apply_overrides(
    obj: object,
    sets: Sequence[str] = (),
    env: Sequence[str] = (),
    *,
    options: Mapping[str, str] | None = None,
) -> Tree:
    """Return a copy of `obj` with the overrides applied.

    `sets` are `path=value` (a value that begins with `[` or `{` is read as a list or map, any other
    is text). `env` are `K=V`, or `K` for the submitter's value. `options` map a path to its text
    (`{"time_limit": "2h"}`). The order is options, then `sets`, then `env`; the last wins. Raises
    `SpecError` that names every invalid override.
    """
    return override_document(Document(obj), sets, env, options=options)[0]


def override_document(
    document: Document,
    sets: Sequence[str] = (),
    env: Sequence[str] = (),
    *,
    options: Mapping[str, str] | None = None,
) -> tuple[Tree, Document]:
    """Apply overrides like `apply_overrides`. The second result is the document to parse, in which
    overridden fields no longer have a line of the file.
    """
    tree = document.tree
    if tree is not None and not isinstance(tree, dict):
        raise SpecError(
            [SpecProblem("", None, "a job is a map of keys", "begin with `run: train.py`")]
        )
    changed: Tree = {str(key): value for key, value in (tree or {}).items()}
    lines = dict(document.lines)
    problems: list[SpecProblem] = []
    origins = dict(document.options)
    for path, value, option in _changes(options or {}, sets, env, problems):
        problem = put(changed, path, value)
        if problem is not None:
            problems.append(problem)
        for spelling in spellings(path):
            _forget(lines, spelling)
        origins[path] = option
    if problems:
        raise SpecError(problems)
    return changed, replace(document, tree=changed, lines=lines, options=origins)


def _changes(
    options: Mapping[str, str], sets: Sequence[str], env: Sequence[str], problems: list[SpecProblem]
) -> Iterator[tuple[str, object, str]]:
    """Yield path, value and the option to name in errors; "" if the path is clear enough."""
    for path, given in options.items():
        yield path, given, ""
    for text in sets:
        path, equals, value = text.partition("=")
        if not equals or not _PATH.fullmatch(path):
            hint = "write `--set key=value`, such as `--set retry.user=2`"
            problems.append(SpecProblem("--set", printable(path), "is not `key=value`", hint))
            continue
        try:
            yield path, _value(value), f"--set {path}"
        except SpecError as error:
            problems.extend(
                SpecProblem(path, None, p.message, p.hint, p.kind) for p in error.problems
            )
    for text in env:
        name, equals, value = text.partition("=")
        if not name:
            problems.append(SpecProblem("-e", None, "names no variable", "write `-e KEY=value`"))
            continue
        yield f"env.{name}", value if equals else None, f"-e {name}"


def _value(text: str) -> object:
    return read_yaml(text).tree if text.startswith(("[", "{")) else text


def spellings(path: str) -> tuple[str, ...]:
    """Return all names of a setting."""
    return next((group for group in SPELLINGS if path in group), (path,))


def put(tree: Tree, path: str, value: object) -> SpecProblem | None:
    """Set a key of a tree without changing its own maps. Returns the problem if a value is in the
    way.
    """
    for spelling in spellings(path):
        _remove(tree, spelling.split("."))
    # A variable's name may contain anything until it is checked, so only the first dot separates.
    *sections, key = path.split(".", 1) if path.startswith("env.") else path.split(".")
    at = tree
    for index, section in enumerate(sections):
        inner = as_map(section, at.get(section))
        if inner is None:
            where = ".".join(sections[: index + 1])
            return SpecProblem(
                path, None, f"`{where}` is not a map in this job", f"set `{where}` itself"
            )
        at[section] = inner
        at = inner
    at[key] = value
    return None


def as_map(section: str, value: object) -> Tree | None:
    """Return a copy of a section as a map, from its map, list (`env`) or short form."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return dict(value)
    if section == "env" and isinstance(value, list | tuple):
        if not all(isinstance(item, str) for item in value):
            return None
        pairs = [item.partition("=") for item in value]
        return {name: text if equals else None for name, equals, text in pairs}
    if section in _SHORT_FORMS and not isinstance(value, list | tuple):
        return {_SHORT_FORMS[section]: value}
    return None


def _remove(tree: Tree, path: Sequence[str]) -> None:
    *sections, key = path
    at = tree
    for section in sections:
        inner = at.get(section)
        if not isinstance(inner, dict):
            return
        at[section] = dict(inner)
        at = at[section]  # type: ignore[assignment]
    at.pop(key, None)


def _forget(lines: dict[str, int], path: str) -> None:
    for known in [
        name for name in lines if name == path or name.startswith((f"{path}.", f"{path}["))
    ]:
        del lines[known]
