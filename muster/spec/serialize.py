"""A checked job in its canonical spelling, for printing, storing and HTTP.

`parse_mapping(to_mapping(spec)) == spec` for every parsed spec.
"""

from __future__ import annotations

from typing import assert_never

from muster.protocol.git_code import GitCode
from muster.protocol.observations.hangs import Hang
from muster.spec.model import (
    Argv,
    Command,
    JobSpec,
    Placement,
    Rendezvous,
    Role,
    Shell,
    StartMethod,
    Stop,
)
from muster.spec.units import duration_text, gpu_text, size_text


def to_mapping(spec: JobSpec) -> dict[str, object]:
    """Return `spec` as in a job file, with defaults and without unset keys."""
    made: dict[str, object] = {
        "schema_version": spec.schema_version,
        "name": spec.name,
        "nodes": nodes_text(spec),
    }
    if spec.rendezvous is not Rendezvous.STATIC:
        made["rendezvous"] = spec.rendezvous.value
    resources = spec.resources
    wanted: dict[str, object] = {}
    if resources.gpu is not None:
        wanted["gpu"] = gpu_text(resources.gpu, resources.gpu_model)
    if resources.cpu is not None:
        wanted["cpu"] = resources.cpu
    if resources.memory_bytes is not None:
        wanted["memory"] = size_text(resources.memory_bytes)
    if resources.numa_binding is not None:
        wanted["numa_binding"] = resources.numa_binding.value
    if wanted:
        made["resources"] = wanted
    if spec.nproc_on:
        made["nproc_per_node"] = dict(spec.nproc_on)
    elif spec.nproc_per_node is not None:
        made["nproc_per_node"] = spec.nproc_per_node
    made |= _workdir(spec)
    if spec.python is not None:
        made["python"] = spec.python
    if spec.setup is not None:
        made["setup"] = _command(spec.setup)
    made |= _launcher(spec)
    made["run"] = _command(spec.run)
    if spec.env:
        made["env"] = dict(spec.env)
    roles = {"launcher": _role(spec.roles.launcher), "worker": _role(spec.roles.worker)}
    if any(roles.values()):
        made["roles"] = {name: role for name, role in roles.items() if role}
    if spec.time_limit_s is not None:
        made["time_limit"] = duration_text(spec.time_limit_s)
    made |= _endurance(spec)
    made["stop"] = _stop(spec.stop)
    made["retry"] = {
        "infra": spec.retry.infra,
        "user": spec.retry.user,
        "on_exit_codes": list(spec.retry.on_exit_codes),
        "never_on": [kind.value for kind in spec.retry.never_on],
        "backoff": duration_text(spec.retry.backoff_s),
    }
    made["priority"] = spec.priority
    made["pool"] = spec.pool
    made["rdma"] = spec.rdma.value
    if spec.nccl_debug:
        made["nccl_debug"] = True
    if spec.preflight is not None:
        made["preflight"] = spec.preflight.value
    made |= _start(spec)
    if spec.notify:
        made["notify"] = list(spec.notify)
    if placed := _placement(spec.placement):
        made["placement"] = placed
    return made


def _start(spec: JobSpec) -> dict[str, object]:
    made: dict[str, object] = {}
    # Its default is shown where the key has an effect.
    if spec.launcher.torchruns or spec.start_method is not StartMethod.FORK:
        made["start_method"] = spec.start_method.value
    if spec.preload:
        made["preload"] = list(spec.preload)
    return made


def _workdir(spec: JobSpec) -> dict[str, object]:
    if spec.workdir is not None:
        return {"workdir": spec.workdir}
    if spec.git is not None:
        return {"workdir": _git(spec.git)}
    return {} if spec.bundle is None else {"workdir": {"bundle": spec.bundle}}


def _git(code: GitCode) -> dict[str, object]:
    texts = {"git": code.url, "ref": code.ref, "commit": code.commit, "secret": code.secret}
    made: dict[str, object] = {key: text for key, text in texts.items() if text}
    return {**made, "submodules": True} if code.submodules else made


def _launcher(spec: JobSpec) -> dict[str, object]:
    made: dict[str, object] = {"launcher": spec.launcher.value}
    if spec.torchrun_args:
        made["torchrun_args"] = list(spec.torchrun_args)
    return made


def _placement(placement: Placement) -> dict[str, object]:
    chosen = {"include": list(placement.include), "exclude": list(placement.exclude)}
    made: dict[str, object] = {key: names for key, names in chosen.items() if names}
    if placement.labels:
        made["labels"] = dict(placement.labels)
    if placement.spread is not None:
        made["spread"] = placement.spread
    return made


def _endurance(spec: JobSpec) -> dict[str, object]:
    made: dict[str, object] = {}
    if spec.lease_s is not None:
        made["lease"] = duration_text(spec.lease_s)
    if spec.checkpoint_dir is not None:
        made["checkpoint_dir"] = spec.checkpoint_dir
    if spec.idle is not None:
        made["idle"] = {
            "gpu_util_below": spec.idle.gpu_util_below,
            "for": duration_text(spec.idle.for_s),
            "action": spec.idle.action.value,
        }
    if spec.hang is not Hang.NOTIFY:
        made["hang"] = spec.hang.value
    return made


def _stop(stop: Stop) -> dict[str, str]:
    made = {"signal": stop.signal, "grace": duration_text(stop.grace_s)}
    if stop.warn is not None:
        made["warn"] = f"{stop.warn.signal}@{duration_text(stop.warn.before_s)}"
    return made


def nodes_text(spec: JobSpec) -> int | str:
    """Return `4`, or `2..4`."""
    return f"{spec.nodes}..{spec.max_nodes}" if spec.elastic else spec.nodes


def _role(role: Role) -> dict[str, object]:
    made: dict[str, object] = {}
    if role.run is not None:
        made["run"] = _command(role.run)
    if role.nproc_per_node is not None:
        made["nproc_per_node"] = role.nproc_per_node
    if role.env:
        made["env"] = dict(role.env)
    return made


def _command(command: Command) -> str | list[str]:
    match command:
        case Argv(argv=argv):
            return list(argv)
        case Shell(script=script):
            return script
        case _:
            assert_never(command)
