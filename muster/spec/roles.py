"""Differences between the nodes of one job: `roles`, and `nproc_per_node` as a map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from muster.spec import field_readers
from muster.spec.env import read_env
from muster.spec.errors import InvalidValueError, Problems, printable, shown
from muster.spec.model import Command, Role, Roles
from muster.spec.yaml.loader import join
from muster.spec.yaml.mapping_reader import GivenValue, Section, whole_number

MAX_NPROC: Final = 1024
_ROLES: Final = ("launcher", "worker")

ReadCommand = Callable[[GivenValue], Command]


class Nproc(NamedTuple):
    """`nproc_per_node` as given: one number, or by role and by node."""

    everywhere: int | None = None
    by_role: Mapping[str, int] = {}
    by_node: Mapping[str, int] = {}


def read_nproc(job: Section) -> Nproc:
    found = job.take("nproc_per_node")
    if found is None:
        return Nproc()
    if not isinstance(found.value, dict):
        return Nproc(_number(job, found))
    by_role: dict[str, int] = {}
    by_node: dict[str, int] = {}
    for name, value in found.value.items():
        path = join(found.path, printable(str(name)))
        if value is None:
            job.problems.add(path, None, "is empty", "give a number, or leave it out")
            continue
        count = _number(job, GivenValue(path, value))
        if name in _ROLES:
            by_role[name] = count
            continue
        meant = _role_meant(str(name))
        if meant is not None:
            problems = job.problems
            problems.add(path, None, "is neither a role nor a valid node name", f"write `{meant}`")
            continue
        try:
            by_node[field_readers.node_name(str(name))] = count
        except InvalidValueError as refused:
            hint = f"{refused.hint}, or write launcher or worker"
            job.problems.add(path, None, refused.message, hint, refused.kind)
    return Nproc(None, by_role, by_node)


def _role_meant(name: str) -> str | None:
    """Return the role that a name misspells, or None. Node names end in their number."""
    if name[-1:].isdecimal():
        return None
    if name == "master":
        return "launcher"
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, _ROLES, 1)), None)


def read_roles(
    job: Section, nproc: Nproc, command: ReadCommand, caller: Mapping[str, str]
) -> Roles:
    """Parse `roles`, with the counts of `nproc_per_node`. `command` parses a `run`."""
    found = job.take("roles")
    part = Section({}, "roles", job.problems)
    if found is not None and isinstance(found.value, dict):
        part = Section(found.value, found.path, job.problems)
    elif found is not None:
        example = "`roles: {worker: {nproc_per_node: 2}}`"
        job.problems.add(found.path, shown(found.value), "must be a map", f"write {example}")
    read = {name: _role(part, name, nproc.by_role.get(name), command, caller) for name in _ROLES}
    part.finish()
    return Roles(**read)


def _role(
    part: Section,
    name: str,
    nproc: int | None,
    command: ReadCommand,
    caller: Mapping[str, str],
) -> Role:
    found = part.take(name)
    if found is None:
        return Role(nproc_per_node=nproc)
    problems: Problems = part.problems
    if not isinstance(found.value, dict):
        problems.add(found.path, shown(found.value), "must be a map", "write `{run: train.py}`")
        return Role(nproc_per_node=nproc)
    keys = Section(found.value, found.path, problems)
    run, env, own = keys.take("run"), keys.take("env"), keys.take("nproc_per_node")
    role = Role(
        run=None if run is None else command(run),
        nproc_per_node=nproc if own is None else _number(keys, own),
        env={} if env is None else read_env(env, caller, problems),
    )
    keys.finish()
    if own is not None and nproc is not None:
        problems.add(
            own.path, shown(own.value), f"is given in `nproc_per_node.{name}` too", "keep one"
        )
    return role


def command_of_roles(roles: Roles, nodes: int) -> tuple[Command, Roles] | None:
    """Return the job's `run` if only its roles have one; None if a node would have none."""
    run = roles.launcher.run
    if run is None or (nodes > 1 and roles.worker.run is None):
        return None
    return run, msgspec.structs.replace(
        roles, launcher=msgspec.structs.replace(roles.launcher, run=None)
    )


def _number(section: Section, found: GivenValue) -> int:
    if found.value in ("auto", "gpu"):
        section.problems.add(
            found.path,
            shown(found.value),
            "is not a number",
            "leave the key out: one process for each GPU is the default",
        )
        return 1
    return section.typed(found, whole_number(1, MAX_NPROC), 1)
