"""Variables that a job takes from whoever submits it: the coordinator cannot see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_variables(job: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """`job` with the values of the bare names in its `env` and those of its roles. One that is not
    set here stays bare, for the coordinator to refuse.
    """
    filled = _filled(job, environ)
    roles = job.get("roles")
    if isinstance(roles, Mapping):
        filled["roles"] = {
            name: _filled(role, environ) if isinstance(role, Mapping) else role
            for name, role in roles.items()
        }
    return filled


def _filled(part: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    env = part.get("env")
    if isinstance(env, Mapping):
        env = {name: _own(name, environ) if value is None else value for name, value in env.items()}
    elif isinstance(env, list | tuple):
        env = [
            item if (value := _own(item, environ)) is None else f"{item}={value}" for item in env
        ]
    return {**part, "env": env} if "env" in part else dict(part)


def _own(name: object, environ: Mapping[str, str]) -> str | None:
    return environ.get(name) if isinstance(name, str) else None
