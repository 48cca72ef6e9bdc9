"""A pool's defaults for its jobs: below the job file and options, above the built-in defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from muster.spec.errors import SpecError, SpecProblem
from muster.spec.model import DEFAULT_POOL, JobSpec
from muster.spec.overrides import as_map, put, spellings
from muster.spec.parse import parse_mapping
from muster.spec.yaml.loader import Document

Tree = Mapping[str, object]
PoolDefaults = Mapping[str, Tree]

# Keys that identify a job, so they cannot have a default.
_OF_A_JOB: Final = ("run", "roles", "name", "pool", "schema_version")


class Filled(NamedTuple):
    """A document to parse, and the keys that its pool has filled in."""

    document: Document
    keys: tuple[str, ...]


def check_defaults(pool: str, tree: Tree) -> JobSpec:
    """Check the defaults with a sample job, which is returned. Raises SpecError."""
    wrong = [key for key in _OF_A_JOB if key in tree]
    if wrong:
        why = "differs for each job, and cannot be a default"
        raise SpecError([SpecProblem(key, None, why, "remove it") for key in wrong])
    spec = parse_mapping({"run": "x.py", "pool": pool, **tree})
    if spec.bundle or spec.git or not (spec.workdir or "/").startswith("/"):
        hint = "write an absolute path that exists on the nodes"
        raise SpecError([SpecProblem("workdir", None, "cannot be sent with each job", hint)])
    return spec


def fill_in(document: Document, defaults: PoolDefaults) -> Filled:
    """Add the pool's defaults for keys that the document lacks, in any spelling. A document that is
    not a map is left for the parser to refuse."""
    if not defaults or not isinstance(document.tree, dict):
        return Filled(document, ())
    found = defaults.get(str(document.tree.get("pool", DEFAULT_POOL)))
    if not found:
        return Filled(document, ())
    tree = {str(key): value for key, value in document.tree.items()}
    keys = []
    for path, value in _leaves(found):
        if _given(tree, path):
            continue
        # A section that is not a map is the job's mistake; the parser reports it.
        if put(tree, path, value) is None:
            keys.append(path)
    return Filled(replace(document, tree=tree), tuple(keys))


def _leaves(tree: Tree, above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        path = f"{above}{key}"
        inner = as_map(path, value)
        if inner:
            yield from _leaves(inner, f"{path}.")
        else:
            yield path, value


def _given(tree: Tree, path: str) -> bool:
    return any(_has(tree, spelling) for spelling in spellings(path))


def _has(tree: Tree, path: str) -> bool:
    *sections, key = path.split(".", 1) if path.startswith("env.") else path.split(".")
    at: Tree = tree
    for section in sections:
        if section not in at:
            return False
        inner = as_map(section, at[section])
        if inner is None:
            return True  # the value has another type
        at = inner
    return key in at
