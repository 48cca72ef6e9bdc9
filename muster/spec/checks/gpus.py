"""Checks of settings that conflict with a job's GPUs."""

from __future__ import annotations

from typing import Final

from muster.protocol.text import count
from muster.spec.errors import Problems
from muster.spec.model import JobSpec

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def check_gpus(spec: JobSpec, problems: Problems) -> None:
    """Add the problems of a parsed job."""
    if spec.resources.gpu:
        for where, env in (
            ("env", spec.env),
            ("roles.launcher.env", spec.roles.launcher.env),
            ("roles.worker.env", spec.roles.worker.env),
        ):
            if VISIBLE in env:
                problems.add(
                    f"{where}.{VISIBLE}",
                    None,
                    "is set by Muster where `resources.gpu` is given: the job's GPUs, by UUID",
                    "leave it out; without `resources.gpu` the job has whole nodes and may set it",
                )
    if spec.idle is not None and spec.resources.gpu == 0:
        hint = "leave it out, or ask for GPUs"
        problems.add("idle", None, "is about the job's GPUs, and `gpu` is 0", hint)
    if spec.resources.numa_binding is None:
        return
    where, shown = "resources.numa_binding", spec.resources.numa_binding.value
    if not spec.launcher.torchruns:
        hint = "use `launcher: torchrun`, or bind in the program (`numactl`)"
        problems.add(where, shown, "is provided by torchrun", hint)
    if spec.resources.gpu == 0:
        hint = "leave it out, or ask for GPUs"
        problems.add(where, shown, "binds each rank near its GPU, and `gpu` is 0", hint)


def rank_advice(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence for each number of ranks that is larger than the number of GPUs."""
    gpus = spec.resources.gpu
    if not gpus:
        return ()
    given = {
        "nproc_per_node": spec.nproc_per_node,
        "roles.launcher.nproc_per_node": spec.roles.launcher.nproc_per_node,
        "roles.worker.nproc_per_node": spec.roles.worker.nproc_per_node,
    }
    return tuple(
        f"{where}: {ranks} ranks would share {count(gpus, 'GPU')} on each node, and NCCL refuses "
        "two ranks on one GPU. Leave it out for one rank on each GPU, or ask for more GPUs"
        for where, ranks in given.items()
        if ranks is not None and ranks > gpus
    )
