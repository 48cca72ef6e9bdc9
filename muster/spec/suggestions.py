"""Suggestions for unknown keys of a job.

Three sources: keys of other systems that have no equivalent, their other spellings, which no edit
distance finds, and then the nearest known key.
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
        "dependency": "after",
        "entrypoint": "run",
        "envs": "env",
        "environment": "env",
        "env_variables": "env",
        "exclude": "placement.exclude",
        "git": "workdir.git",
        "gpu": "resources.gpu",
        "gpus": "resources.gpu",
        "gpus_per_node": "resources.gpu",
        "export": "outputs",
        "job_name": "name",
        "max_restarts": "retry.user",
        "max_retries": "retry.user",
        "mem": "resources.memory",
        "memory": "resources.memory",
        "network_tier": "rdma",
        "nnodes": "nodes",
        "nproc": "nproc_per_node",
        "node_count": "nodes",
        "nodelist": "placement.include",
        "ntasks_per_node": "nproc_per_node",
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
    "workdir": {
        "branch": "ref",
        "dir": "path",
        "local": "path",
        "repo": "git",
        "revision": "ref",
        "tag": "ref",
        "url": "git",
    },
}


_STORAGE: Final = "leave it out: jobs see the storage that the nodes mount; write its path there"
_CODE: Final = (
    "leave it out: the files beside the job file travel with the job (`workdir: .`), and jobs see "
    "the storage that the nodes mount"
)
_ORDER: Final = "leave it out: `priority` and `pool` decide the order of jobs"
_LOGS: Final = "leave it out: the output of all ranks is stored (muster logs ID)"
_MAIL: Final = (
    "leave it out: Muster sends no mail; `notify: [https://hooks.example.com/team]` names a webhook"
)
_NETWORK: Final = (
    "leave it out: Muster finds the networks of each node; `rdma: required` demands RDMA"
)

# Keys of a job file elsewhere that Muster has no equivalent for, and the replacement.
_REPLACED: Final = {
    "account": _ORDER,
    "annotation": _NETWORK,
    "annotations": _NETWORK,
    "array": "leave it out, and submit one job for each index",
    "constraint": "write the labels of the nodes: `placement: {labels: {KEY: VALUE}}`",
    "cpus_per_task": "write the CPUs per node, of all its ranks: `resources: {cpu: 64}`",
    "error": _LOGS,
    "extended_resource": _NETWORK,
    "extended_resources": _NETWORK,
    "files": _CODE,
    "gres": "write the GPUs per node: `resources: {gpu: 8}`",
    "import": _CODE,
    "large_shm": "leave it out: jobs have the /dev/shm of the node",
    "mail_type": _MAIL,
    "mail_user": _MAIL,
    "ntasks": "write the ranks per node: `nproc_per_node: 8`",
    "output": _LOGS,
    "pvc": _STORAGE,
    "qos": _ORDER,
    "reservation": "leave it out; `placement: {include: [NODE]}` restricts a job to some nodes",
    "shm_size": "leave it out: jobs have the /dev/shm of the node",
    "volumes": _STORAGE,
    "workers": "write the number of all nodes: where `workers` does not count the first, "
    "`workers: 3` is `nodes: 4`",
}


def replacement(path: str, key: str) -> str | None:
    """Return the hint for a key of another system that has no equivalent in section `path`."""
    return None if path else _REPLACED.get(_plain(key))


def _plain(key: str) -> str:
    return key[:_MAX_COMPARED_CHARS].lower().strip().replace("-", "_").replace(" ", "_")


def suggestion(path: str, key: str, known: Iterable[str]) -> str | None:
    """Return the key of section `path` that the user probably meant by `key`, or None."""
    plain = _plain(key)
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
