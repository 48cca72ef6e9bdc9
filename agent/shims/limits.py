"""Limits of tasks that share a node, as properties of units and as files of cgroups.

These are pure functions. agent/tasks/part_limits.py reads the node; systemd and the shim apply the
limits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import msgspec

from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.observations.gpus import GpuDevice, usable

Rule = Literal["requests", "shares", "none"]
"""The value of `part_limits` in an agent's configuration."""

SHIM_BYTES: Final = 64 << 20
"""Memory of a task's unit beyond the task's own limit. A task that needs too much then reaches
its own limit first, and the shim lives to report it."""
SHIM_TASKS: Final = 64

_WEIGHT_OF_NODE: Final = 100
_MIB: Final = 1 << 20

COMMON_DEVICES: Final = (
    "/dev/nvidiactl rw",
    "/dev/nvidia-modeset rw",
    "char-nvidia-uvm rwm",
    "char-nvidia-caps rw",
    "char-nvidia-caps-imex-channels rw",
    "char-nvidia-fs rw",
    "/dev/gdrdrv rw",
    "/dev/infiniband/rdma_cm rw",
    "/dev/fuse rw",
    "/dev/ptmx rw",
    "/dev/tty rw",
    "char-pts rw",
    # The shim looks there for the reason of a failure.
    "/dev/kmsg r",
)
"""Devices for every task, besides null, zero, full and random, which systemd adds. It ignores those
that a node does not have."""


class TaskLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of one task; None is no limit. `cpu_weight` counts among the tasks of the node.
    `devices` are the only ones that the task may open, each as in systemd's DeviceAllow.
    """

    memory_bytes: int | None = None
    cpu_weight: int | None = None
    devices: tuple[str, ...] | None = None


NO_LIMITS: Final = TaskLimits()


class NodeParts(msgspec.Struct, frozen=True):
    """The resources that tasks of a node share. `minors` are the numbers of the GPUs' device files
    by PCI address, `verbs` the names of the device files of the HCAs. `allowed` are devices that
    the site lets every task open.
    """

    cpus: int
    memory_bytes: int
    gpus: tuple[GpuDevice, ...]
    minors: Mapping[str, int]
    verbs: Sequence[str] = ()
    allowed: Sequence[str] = ()


def limits_of(prepare: PrepareTask, node: NodeParts, rule: Rule) -> TaskLimits:
    """Return the limits of a task. One that has its node to itself has none.

    Which HCAs a gang uses is decided after its shims have started, so a task may open all of them.
    """
    given = usable(node.gpus)
    mine = [gpu for gpu in given if gpu.uuid in prepare.gpus]
    if rule == "none" or not 0 < len(mine) < len(given):
        return NO_LIMITS
    share = len(mine) / len(given)
    memory = prepare.memory_bytes
    if not memory and rule == "shares":
        memory = int(node.memory_bytes * share) // _MIB * _MIB
    cpus = prepare.cpus / node.cpus if prepare.cpus and node.cpus else share
    return TaskLimits(
        memory_bytes=memory or None,
        cpu_weight=min(max(round(_WEIGHT_OF_NODE * cpus), 1), _WEIGHT_OF_NODE),
        devices=_devices(mine, node),
    )


def _devices(mine: Sequence[GpuDevice], node: NodeParts) -> tuple[str, ...] | None:
    """None if the device file of a GPU is unknown: without it, the task could do nothing."""
    minors = [node.minors.get(gpu.pci) for gpu in mine]
    if None in minors:
        return None
    return (
        *(f"/dev/nvidia{minor} rw" for minor in minors),
        *(f"/dev/infiniband/{name} rw" for name in node.verbs),
        *COMMON_DEVICES,
        *(f"{device} rw" for device in node.allowed),
    )


def properties_of(limits: TaskLimits, processes_max: int | None) -> list[str]:
    """Return the properties of the task's unit; `processes_max` holds for every task."""
    most = "infinity" if processes_max is None else processes_max + SHIM_TASKS
    found = [f"TasksMax={most}"]
    if limits.memory_bytes is not None:
        found.append(f"MemoryMax={limits.memory_bytes + SHIM_BYTES}")
    if limits.cpu_weight is not None:
        found.append(f"CPUWeight={limits.cpu_weight}")
    if limits.devices is not None:
        found += ["DevicePolicy=closed", *(f"DeviceAllow={device}" for device in limits.devices)]
    return found


def files_of(limits: TaskLimits, processes_max: int | None) -> dict[str, str]:
    """Return the files of the task's own cgroup and their content. None limits devices there."""
    content = {
        "pids.max": processes_max,
        "memory.max": limits.memory_bytes,
        "cpu.weight": limits.cpu_weight,
    }
    return {name: str(value) for name, value in content.items() if value is not None}


def unenforced(controllers: Collection[str], open_devices: str) -> dict[str, str]:
    """Return the limits that are not enforced on a node, with the reasons.

    `controllers` are those of the tasks' cgroups. `open_devices` is why devices are not limited, ""
    if they are.
    """
    found = {
        what: f"the {controller} controller is missing"
        for controller, what in LIMITED.items()
        if controller not in controllers
    }
    return found | {DEVICES: open_devices} if open_devices else found


LIMITED: Final = {"memory": "memory", "cpu": "CPU", "pids": "processes"}
"""The limits of a controller of cgroup v2."""
DEVICES: Final = "devices"
