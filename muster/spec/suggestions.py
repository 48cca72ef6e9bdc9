"""Suggestions for unknown keys of a job.

Two sources: the spellings of other systems, which no edit distance finds, and then the nearest
known key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MAX_COMPARED_CHARS: Final = 64

# Section path, key there -> the key of a job file.
_ELSEWHERE: Final = {
    "": {
        "args": "run",
        "chdir": "workdir",
        "command": "run",
        "commands": "run",
        "cpus": "resources.cpu",
        "cwd": "workdir",
        "entrypoint": "run",
        "envs": "env",
        "environment": "env",
        "env_variables": "env",
        "exclude": "placement.exclude",
        "files": "file_mounts",
        "gpu": "resources.gpu",
        "gpus": "resources.gpu",
        "gpus_per_node": "resources.gpu",
        "import": "file_mounts",
        "export": "outputs",
        "job_name": "name",
        "max_restarts": "retry.user",
        "max_retries": "retry.user",
        "memory": "resources.memory",
        "network_tier": "rdma",
        "nnodes": "nodes",
        "node_count": "nodes",
        "nodelist": "placement.include",
        "partition": "pool",
        "queue": "pool",
        "script": "run",
        "signal": "stop.signal",
        "stop_duration": "stop.grace",
        "working_dir": "workdir",
    },
    "resources": {"accelerator": "gpu", "gpus": "gpu", "cpus": "cpu", "mem": "memory"},
    "stop": {"duration": "grace", "kill_signal": "signal", "kill_timeout": "grace"},
    "retry": {
        "duration": "backoff",
        "max_restarts": "user",
        "max_retries": "user",
        "recover_on_exit_codes": "on_exit_codes",
    },
    "placement": {"nodelist": "include", "nodes": "include"},
    "roles": {
        "chief": "launcher",
        "head": "launcher",
        "leader": "launcher",
        "master": "launcher",
        "workers": "worker",
    },
    "workdir": {"local": "path", "dir": "path"},
}


def suggestion(path: str, key: str, known: Iterable[str]) -> str | None:
    """Return the key of section `path` that the user probably meant by `key`, or None."""
    plain = key[:_MAX_COMPARED_CHARS].lower().strip().replace("-", "_").replace(" ", "_")
    names = sorted(known)
    if plain in names:
        return plain
    elsewhere = _ELSEWHERE.get(path, {}).get(plain)
    if elsewhere:
        return elsewhere
    import difflib

    near = difflib.get_close_matches(plain, names, n=1, cutoff=0.7)
    return near[0] if near else None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` nearest in spelling to `word`, or None."""
    import difflib

    near = difflib.get_close_matches(word[:_MAX_COMPARED_CHARS].lower(), sorted(known), n=1)
    return near[0] if near else None
