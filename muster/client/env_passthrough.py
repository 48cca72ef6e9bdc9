"""Variables that a job takes from the submitter's environment, which the coordinator cannot see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_variables(job: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return `job` with values for the bare names in its `env` and in its roles' `env`. Names that
    are not set here stay bare, so that the coordinator refuses them."""
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
