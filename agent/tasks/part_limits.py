"""The limits of a task that shares this node, by what is on the node now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from agent.probe.fabric.fs_root import FsRoot, Unread
from agent.probe.fabric.gpus import minors_of
from agent.shims.limits import NO_LIMITS, NodeParts, Rule, TaskLimits, limits_of
from muster.protocol.link.control_channel import Inventory, PrepareTask

_DEVICES: Final = "dev"
_VERBS: Final = "dev/infiniband"
# It is made at the first use of CUDA, by a program of NVIDIA's that a closed list would stop.
_UVM: Final = "nvidia-uvm"

_log = structlog.get_logger("agent.tasks.part_limits")


def read_limits(
    prepare: PrepareTask,
    inventory: Inventory,
    tree: FsRoot,
    rule: Rule,
    allowed: Sequence[str] = (),
) -> TaskLimits:
    """Return the limits of a task on the node of that inventory."""
    if not prepare.gpus or rule == "none":
        return NO_LIMITS
    node = NodeParts(
        inventory.cpus,
        inventory.memory_bytes,
        inventory.devices,
        minors_of(tree) if _UVM in _names(tree, _DEVICES) else {},
        sorted(name for name in _names(tree, _VERBS) if name.startswith("uverbs")),
        allowed,
    )
    limits = limits_of(prepare, node, rule)
    if limits != NO_LIMITS and limits.devices is None:
        _log.warning(
            "devices_not_limited",
            task=prepare.task,
            why="there is no /dev/nvidia-uvm yet, or the driver does not name the device file of "
            "each GPU of the task in /proc/driver/nvidia",
        )
    return limits


def _names(tree: FsRoot, folder: str) -> list[str]:
    names = tree.names(folder)
    return [] if isinstance(names, Unread) else list(names)
