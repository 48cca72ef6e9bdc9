"""Changes to a submitted job, and the problems of invalid ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from muster.spec.errors import ProblemKind, SpecError, SpecProblem, printable
from muster.spec.model import JobSpec
from muster.spec.parse import parse_mapping
from muster.spec.schema import job_keys
from muster.spec.serialize import to_mapping
from muster.spec.suggestions import nearest, suggestion

CHANGEABLE: Final = ("priority", "time_limit", "name")
KEYS_MAX: Final = 8
_ALIASES: Final = {"max_duration": "time_limit", "time": "time_limit"}


class Amendment(NamedTuple):
    """A change. UNSET keeps a value; a time limit of None removes the limit."""

    priority: int | UnsetType = UNSET
    time_limit_s: float | UnsetType | None = UNSET
    name: str | UnsetType = UNSET


def amend(spec: JobSpec, given: Mapping[str, object], job: int) -> Amendment:
    """Parse changes of job `job`: values as in a job file, None for no time limit.

    Raises SpecError with every problem.
    """
    if len(given) > KEYS_MAX:
        # The search for what each may have meant costs much.
        hint = f"changeable keys: {', '.join(CHANGEABLE)}"
        raise SpecError(
            [SpecProblem("", None, f"{len(given)} keys; {KEYS_MAX} are the most", hint)]
        )
    wanted: dict[str, object] = {}
    problems: list[SpecProblem] = []
    for typed, value in given.items():
        key = _ALIASES.get(typed, typed)
        if key not in CHANGEABLE:
            problems.append(_not_changeable(key, job))
        elif key in wanted:
            said = f"is another name of `{key}`, which is given too"
            problems.append(SpecProblem(typed, None, said, f"keep `{key}`"))
        elif value is None and key != "time_limit":
            problems.append(SpecProblem(key, None, "is empty", "give a value"))
        else:
            wanted[key] = value
    if problems:
        raise SpecError(problems)
    tree = to_mapping(spec)
    for key, value in wanted.items():
        if value is None:
            tree.pop(key, None)
        else:
            tree[key] = value
    changed = parse_mapping(tree)
    return Amendment(
        changed.priority if "priority" in wanted else UNSET,
        changed.time_limit_s if "time_limit" in wanted else UNSET,
        changed.name if "name" in wanted else UNSET,
    )


def _not_changeable(key: str, job: int) -> SpecProblem:
    shown = printable(key)
    known = job_keys()
    if key.partition(".")[0] in known:
        return SpecProblem(
            shown,
            None,
            "cannot be changed once a job is submitted",
            f"submit it again: muster rerun {job} --set {shown}=VALUE, then muster cancel {job}",
        )
    meant = nearest(key, CHANGEABLE) or suggestion("", key, known)
    hint = f"did you mean `{meant}`? " if meant else ""
    return SpecProblem(
        shown,
        None,
        "is not a key of a job",
        f"{hint}changeable keys: {', '.join(CHANGEABLE)}",
        ProblemKind.UNKNOWN,
    )
