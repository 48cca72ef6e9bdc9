"""The JSON Schema of a job file, for editors and for clients of the HTTP API.

It describes shapes and spellings; `parse` remains the judge. Numbers may be written as text, since
the reader of job files gives us text.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.failures import FailureKind
from muster.spec import fields
from muster.spec.fields import MAX_NODES
from muster.spec.parse import MAX_RETRIES
from muster.spec.roles import MAX_NPROC
from muster.spec.types import (
    DEFAULT_POOL,
    DEFAULT_PRIORITY,
    MAX_PRIORITY,
    SCHEMA_VERSION,
    Launcher,
    Rdma,
    Rendezvous,
)

_WARN: Final = r"^[A-Za-z0-9]+(@.+)?$"

Schema = dict[str, object]

_NAME: Final = "^[a-z][a-z0-9-]{0,62}$"
_DURATION: Final = (
    r"^(\s*[0-9]+(\.[0-9]+)?\s*(w|d|h|ms|m|s))+$"
    r"|^[0-9]+:[0-5][0-9]:[0-5][0-9]$"
    r"|^[0-9]+-[0-9]{1,2}(:[0-5][0-9]){0,2}$"
)


def job_schema() -> Schema:
    """A JSON Schema (2020-12) of everything that this release accepts."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Muster job, schema_version {SCHEMA_VERSION}",
        "type": "object",
        "anyOf": [
            {"required": ["run"]},
            {"required": ["roles"], "properties": {"roles": _own_run()}},
        ],
        "additionalProperties": False,
        "properties": _properties(),
    }


def job_keys() -> frozenset[str]:
    """Every key that a job may have."""
    return frozenset(_properties())


def _properties() -> dict[str, Schema]:
    nodes = _nodes_of_job()
    limit = _duration("The longest that the job may take.")
    gpu = _gpu()
    return {
        "schema_version": {
            "enum": [SCHEMA_VERSION, str(SCHEMA_VERSION)],
            "default": SCHEMA_VERSION,
        },
        "name": _text("Default: made of the command.", pattern=_NAME),
        "nodes": nodes,
        "num_nodes": nodes,
        "resources": _map(
            {
                "gpu": gpu,
                "accelerators": gpu,
                "cpu": {"type": ["integer", "string"], "description": "The least CPUs of a node."},
                "memory": _text("The least memory of a node: 200GB."),
            }
        ),
        "accelerators": gpu,
        "nproc_per_node": _nproc(),
        "roles": _map({"launcher": _role(), "worker": _role()}),
        "workdir": _workdir(),
        "python": _text("Interpreter, virtual environment or conda prefix on the nodes."),
        "setup": _command("Run once per node and attempt; a string is a bash script."),
        "launcher": {
            "enum": [launcher.value for launcher in Launcher],
            "default": Launcher.TORCHRUN.value,
        },
        "rendezvous": {
            "enum": [rendezvous.value for rendezvous in Rendezvous],
            "description": "Of torchruns. A range of nodes implies c10d.",
        },
        "run": _command("What a rank runs; under `launcher: none` a string is a bash script."),
        "env": _env(),
        "time_limit": limit,
        "max_duration": limit,
        "time": limit,
        "stop": _map(
            {
                "signal": {"type": ["string", "integer"], "default": "SIGTERM"},
                "grace": _duration("From the signal to SIGKILL.", default="30s"),
                "warn": _text("A signal, and how long before the time limit: USR1@5m.", _WARN),
            }
        ),
        "retry": _retry(),
        "priority": _number("Higher is first.", 0, MAX_PRIORITY, default=DEFAULT_PRIORITY),
        "pool": {**_text("Where the job queues.", pattern=_NAME), "default": DEFAULT_POOL},
        "rdma": {
            "enum": [rdma.value for rdma in Rdma],
            "default": Rdma.PREFERRED.value,
            "description": "required: without RDMA between all nodes the job does not start.",
        },
        "nccl_debug": {
            "enum": [True, False, "true", "false"],
            "default": False,
            "description": "NCCL says what it chooses and why.",
        },
        "placement": _map({"include": _nodes(), "exclude": _nodes(), "labels": _labels()}),
    }


def _text(description: str, pattern: str | None = None) -> Schema:
    made: Schema = {"type": "string", "description": description, "minLength": 1}
    return {**made, "pattern": pattern} if pattern else made


def _number(description: str, low: int, high: int, default: int | None = None) -> Schema:
    made: Schema = {
        "type": ["integer", "string"],
        "description": description,
        "minimum": low,
        "maximum": high,
        "pattern": "^[0-9]+$",
    }
    return made if default is None else {**made, "default": default}


def _duration(description: str, default: str | None = None) -> Schema:
    made: Schema = {"type": "string", "description": description, "pattern": _DURATION}
    return made if default is None else {**made, "default": default}


def _gpu() -> Schema:
    return {
        "type": ["integer", "string"],
        "description": "Per node: 8, or H100:8. Default: the whole node.",
        "minimum": 0,
        "pattern": "^([A-Za-z][A-Za-z0-9_.-]*:)?[0-9]+$",
    }


def _command(description: str) -> Schema:
    words: Schema = {"type": "array", "minItems": 1, "items": {"type": ["string", "number"]}}
    return {"description": description, "anyOf": [{"type": "string", "minLength": 1}, words]}


def _map(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _nodes_of_job() -> Schema:
    number = _number("All nodes of the job.", 1, MAX_NODES, default=1)
    bounds: Schema = {
        "type": "string",
        "description": "Any number of nodes between two bounds; it may change while the job runs.",
        "pattern": r"^[1-9][0-9]*\s*\.\.\s*[1-9][0-9]*$",
    }
    return {"anyOf": [number, bounds]}


def _nproc() -> Schema:
    number = _number("Ranks per node. Default: its GPUs, else 1.", 1, MAX_NPROC)
    by_name: Schema = {
        "type": "object",
        "description": "By role (launcher, worker) or by name of a node.",
        "additionalProperties": number,
    }
    return {"anyOf": [number, by_name]}


def _role() -> Schema:
    return _map(
        {
            "run": _command("Instead of the job's own."),
            "nproc_per_node": _number("Ranks on each node of this role.", 1, MAX_NPROC),
            "env": _env(),
        }
    )


def _own_run() -> Schema:
    """Without a `run` of the job, its launcher has one, and so have its workers if it has any."""
    return {"required": ["launcher"], "properties": {"launcher": {"required": ["run"]}}}


def _workdir() -> Schema:
    folder: Schema = {
        "type": "string",
        "description": "A folder that exists on the nodes.",
        "pattern": "^/",
    }
    ship: Schema = {"enum": [False, "false"]}
    return {"anyOf": [folder, {**_map({"path": folder, "ship": ship}), "required": ["path"]}]}


def _env() -> Schema:
    name = "^[A-Za-z_][A-Za-z0-9_]*"
    by_name: Schema = {
        "type": "object",
        "propertyNames": {"pattern": f"{name}$"},
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    }
    in_list: Schema = {"type": "array", "items": {"type": "string", "pattern": f"{name}(=|$)"}}
    return {"description": "A bare name is the submitter's own.", "anyOf": [by_name, in_list]}


def _retry() -> Schema:
    user = _number("Tries after a failure of the program.", 0, MAX_RETRIES, default=0)
    codes: Schema = {
        "type": "array",
        "description": "Only these codes are tried again on the `user` budget.",
        "items": _number("An exit code.", 1, 255),
    }
    never_on: Schema = {
        "type": "array",
        "description": "Failures that are not tried again on the `user` budget; OOM is every kind "
        "of memory used up.",
        "items": {"enum": [fields.ANY_OOM, *(kind.value for kind in FailureKind)]},
    }
    parts = {
        "infra": _number("Tries after a fault of the cluster.", 0, MAX_RETRIES, default=3),
        "user": user,
        "on_exit_codes": codes,
        "never_on": never_on,
        "backoff": _duration("Pause before the next try.", default="30s"),
    }
    return {"anyOf": [user, _map(parts)]}


def _labels() -> Schema:
    return {
        "type": "object",
        "description": "Labels that a node must have, as its agent's configuration gives them.",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }


def _nodes() -> Schema:
    return {"type": "array", "items": _text("The name of a node.")}
