"""The JSON Schema of a job file, for editors and for clients of the HTTP API.

It describes structure and spellings; `parse` decides. Numbers may be text, because the loader of
job files returns text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.observations.hangs import Hang
from muster.spec import field_readers, git
from muster.spec.field_readers import MAX_NODES
from muster.spec.key_docs import KEYS, alias_of
from muster.spec.model import (
    DEFAULT_POOL,
    DEFAULT_PRIORITY,
    MAX_PRIORITY,
    SCHEMA_VERSION,
    IdleAction,
    Launcher,
    NumaBinding,
    Preflight,
    Rdma,
    Rendezvous,
    StartMethod,
)
from muster.spec.parse import MAX_RETRIES, MAX_WEBHOOKS
from muster.spec.roles import MAX_NPROC

_WARN: Final = r"^[A-Za-z0-9]+(@.+)?$"

Schema = dict[str, Any]

_NAME: Final = "^[a-z][a-z0-9-]{0,62}$"
_DURATION: Final = (
    r"^(\s*[0-9]+(\.[0-9]+)?\s*(w|d|h|ms|m|s))+$"
    r"|^[0-9]+:[0-5][0-9]:[0-5][0-9]$"
    r"|^[0-9]+-[0-9]{1,2}(:[0-5][0-9]){0,2}$"
)


def job_schema() -> Schema:
    """Return the JSON Schema (2020-12) of everything that this release accepts."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Muster job, schema_version {SCHEMA_VERSION}",
        "type": "object",
        "anyOf": [
            {"required": ["run"]},
            {"required": ["roles"], "properties": {"roles": _own_run()}},
        ],
        "additionalProperties": False,
        "properties": _described(_properties()),
    }


def job_keys() -> frozenset[str]:
    """Return every key of a job."""
    return frozenset(_properties())


def flat_keys() -> dict[str, Schema]:
    """Return every key with its sections, joined by dots: `stop.grace`."""
    return dict(_flat(_described(_properties())))


def _flat(properties: dict[str, Schema], section: str = "") -> Iterator[tuple[str, Schema]]:
    for name, schema in properties.items():
        parts = _parts(schema)
        if parts is None or f"{section}{name}" in KEYS:
            yield f"{section}{name}", schema
        else:
            yield from _flat(parts, f"{section}{name}.")


def _parts(schema: Schema) -> dict[str, Schema] | None:
    """Return the keys of a section, whatever its other forms."""
    for form in (schema, *cast(list[Schema], schema.get("anyOf", []))):
        if "properties" in form:
            return cast(dict[str, Schema], form["properties"])
    return None


def _described(properties: dict[str, Schema], section: str = "") -> dict[str, Schema]:
    """Add the descriptions of `key_docs`, which override those of the parts."""
    made: dict[str, Schema] = {}
    for name, schema in properties.items():
        path = f"{section}{name}"
        alias = alias_of(path)
        if alias is not None:
            made[name] = {**schema, "description": f"Another name of `{alias}`."}
        elif path in KEYS:
            made[name] = {**schema, "description": KEYS[path].what}
        else:
            made[name] = _with_parts(schema, f"{path}.")
    return made


def _with_parts(schema: Schema, section: str) -> Schema:
    if "properties" in schema:
        parts = cast(dict[str, Schema], schema["properties"])
        return {**schema, "properties": _described(parts, section)}
    forms = cast(list[Schema], schema.get("anyOf", []))
    return {**schema, "anyOf": [_with_parts(form, section) for form in forms]} if forms else schema


def _properties() -> dict[str, Schema]:
    nodes = _nodes_of_job()
    limit = _duration()
    gpu = _gpu()
    return {
        "schema_version": {
            "enum": [SCHEMA_VERSION, str(SCHEMA_VERSION)],
            "default": SCHEMA_VERSION,
        },
        "name": _text(pattern=_NAME),
        "nodes": nodes,
        "num_nodes": nodes,
        "resources": _map(
            {
                "gpu": gpu,
                "accelerators": gpu,
                "cpu": {"type": ["integer", "string"]},
                "memory": _text(),
                "numa_binding": {"enum": [binding.value for binding in NumaBinding]},
            }
        ),
        "accelerators": gpu,
        "nproc_per_node": _nproc(),
        "roles": _map({"launcher": _role(), "worker": _role()}),
        "workdir": _workdir(),
        "python": _text(),
        "setup": _command(),
        "launcher": {
            "enum": [launcher.value for launcher in Launcher],
            "default": Launcher.TORCHRUN.value,
        },
        "torchrun_args": {"type": "array", "items": {"type": ["string", "number"]}},
        "rendezvous": {
            "enum": [rendezvous.value for rendezvous in Rendezvous],
        },
        "run": _command(),
        "env": _env(),
        "time_limit": limit,
        "max_duration": limit,
        "time": limit,
        "lease": _duration(),
        "checkpoint_dir": _text(),
        "stop": _map(
            {
                "signal": {"type": ["string", "integer"], "default": "SIGTERM"},
                "grace": _duration(default="30s"),
                "warn": _text(_WARN),
            }
        ),
        "retry": _retry(),
        "priority": _number(0, MAX_PRIORITY, default=DEFAULT_PRIORITY),
        "pool": {**_text(pattern=_NAME), "default": DEFAULT_POOL},
        "rdma": {
            "enum": [rdma.value for rdma in Rdma],
            "default": Rdma.PREFERRED.value,
        },
        "hang": {"enum": [hang.value for hang in Hang], "default": Hang.NOTIFY.value},
        "idle": _map(
            {
                "gpu_util_below": _number(1, 100, default=5),
                "for": _duration(default="1h"),
                "action": {
                    "enum": [action.value for action in IdleAction],
                    "default": IdleAction.NOTIFY.value,
                },
            }
        ),
        "nccl_debug": {
            "enum": [True, False, "true", "false"],
            "default": False,
        },
        "preflight": {"enum": [preflight.value for preflight in Preflight]},
        "start_method": {
            "enum": [method.value for method in StartMethod],
            "default": StartMethod.FORK.value,
        },
        "preload": {
            "type": "array",
            "maxItems": field_readers.MAX_PRELOAD,
            "items": _text(rf"^\s*{field_readers.MODULE_NAME}\s*$"),
        },
        "notify": {
            "type": "array",
            "maxItems": MAX_WEBHOOKS,
            "items": _text(r"^\s*https?://[^\s@#]+\s*$"),
        },
        "placement": _map(
            {
                "include": _nodes(),
                "exclude": _nodes(),
                "labels": _labels(),
                "spread": _text(f"^{field_readers.SPREAD}$"),
            }
        ),
    }


def _text(pattern: str | None = None) -> Schema:
    made: Schema = {"type": "string", "minLength": 1}
    return {**made, "pattern": pattern} if pattern else made


def _number(low: int, high: int, default: int | None = None) -> Schema:
    made: Schema = {
        "type": ["integer", "string"],
        "minimum": low,
        "maximum": high,
        "pattern": "^[0-9]+$",
    }
    return made if default is None else {**made, "default": default}


def _duration(default: str | None = None) -> Schema:
    made: Schema = {"type": "string", "pattern": _DURATION}
    return made if default is None else {**made, "default": default}


def _gpu() -> Schema:
    return {
        "type": ["integer", "string"],
        "minimum": 0,
        "pattern": "^([A-Za-z][A-Za-z0-9_.-]*:)?[0-9]+$",
    }


def _command() -> Schema:
    words: Schema = {"type": "array", "minItems": 1, "items": {"type": ["string", "number"]}}
    return {"anyOf": [{"type": "string", "minLength": 1}, words]}


def _map(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _nodes_of_job() -> Schema:
    number = _number(1, MAX_NODES, default=1)
    bounds: Schema = {
        "type": "string",
        "pattern": r"^[1-9][0-9]*\s*\.\.\s*[1-9][0-9]*$",
    }
    return {"anyOf": [number, bounds]}


def _nproc() -> Schema:
    number = _number(1, MAX_NPROC)
    by_name: Schema = {
        "type": "object",
        "additionalProperties": number,
    }
    return {"anyOf": [number, by_name]}


def _role() -> Schema:
    return _map(
        {
            "run": _command(),
            "nproc_per_node": _number(1, MAX_NPROC),
            "env": _env(),
        }
    )


def _own_run() -> Schema:
    """Without a `run` of the job, the launcher must have one, and the workers if there are any."""
    return {"required": ["launcher"], "properties": {"launcher": {"required": ["run"]}}}


def _workdir() -> Schema:
    here: Schema = {"type": "string", "pattern": "^(?![~/]|[a-z+]+://|git@)."}
    there: Schema = {"type": "string", "pattern": "^/"}
    sent: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    return {
        "anyOf": [
            {"anyOf": [here, there]},
            {**_map({"path": here, "ship": {"enum": [True, "true"]}}), "required": ["path"]},
            {**_map({"path": there, "ship": {"enum": [False, "false"]}}), "required": ["path"]},
            {**_map({"bundle": sent}), "required": ["bundle"]},
            {**_map(_git()), "required": ["git"]},
        ]
    }


def _git() -> dict[str, Schema]:
    return {
        "git": _text(rf"^({git.HTTPS}|{git.SSH})$"),
        "ref": {**_text(rf"^{git.REF}$"), "not": {"pattern": r"[/.]$"}},
        "commit": _text(f"^{git.COMMIT}$"),
        "secret": _text(f"^{git.FILE_NAME}$"),
        "submodules": {"enum": [True, False, "true", "false"], "default": False},
    }


def _env() -> Schema:
    name = "^[A-Za-z_][A-Za-z0-9_]*"
    by_name: Schema = {
        "type": "object",
        "propertyNames": {"pattern": f"{name}$"},
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    }
    in_list: Schema = {"type": "array", "items": {"type": "string", "pattern": f"{name}(=|$)"}}
    return {"anyOf": [by_name, in_list]}


def _retry() -> Schema:
    user = _number(0, MAX_RETRIES, default=0)
    codes: Schema = {
        "type": "array",
        "items": _number(1, 255),
    }
    never_on: Schema = {
        "type": "array",
        "items": {"enum": [field_readers.ANY_OOM, *(kind.value for kind in FailureKind)]},
    }
    parts = {
        "infra": _number(0, MAX_RETRIES, default=3),
        "user": user,
        "on_exit_codes": codes,
        "never_on": never_on,
        "backoff": _duration(default="30s"),
    }
    return {"anyOf": [user, _map(parts)]}


def _labels() -> Schema:
    return {
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }


def _nodes() -> Schema:
    return {"type": "array", "items": _text()}
