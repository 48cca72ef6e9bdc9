"""Bounds of what an agent reports: each text and each list is cut to its maximum when decoded.

An agent keeps to these bounds itself. One that lies does not: its texts would reach the journal,
and its lists loops over all pairs. A field that is not named here has the default bounds, so that a
new field is bounded, too.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from muster.protocol.link.control_channel import (
    Hello,
    Inventory,
    NodeChanges,
    NodeObservations,
    Prepared,
    RankReport,
    Refusal,
    StacksReport,
    TaskReport,
)
from muster.protocol.observations.disks import DiskHealth
from muster.protocol.observations.fabric import (
    GPUS_MAX,
    PORTS_MAX,
    FabricGpu,
    FabricPort,
    MissingPort,
    NodeFabric,
    NodeRdma,
)
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.hangs import RankStacks
from muster.protocol.observations.hardware_events import HardwareEvent
from muster.protocol.observations.interfaces import Interface
from muster.protocol.observations.node_settings import NodeSetting
from muster.protocol.observations.tasks import Checkpoint, TaskObservations
from muster.protocol.observations.traffic import (
    NcclEvidence,
    PortFigures,
    PortHealth,
    SocketFigures,
)


class Limit(NamedTuple):
    """Characters of each text and members of each collection of a field, and of what is in it."""

    chars: int = 4096
    members: int = 256


_DEFAULT: Final = Limit()
_ENDLESS: Final = Limit(1 << 20, 1 << 20)
"""Bounded by the size of a message, and checked elsewhere."""
_TAIL: Final = Limit(chars=16 << 10)
"""Ends of outputs and lines of the kernel, of which an agent sends less."""
_RANKS: Final = Limit(members=4096)

# Refused where they are too large: `inventory_problem` and its neighbours.
_REFUSED: Final = (Inventory, Interface, GpuDevice, NodeRdma, HardwareEvent, DiskHealth)
_OF_TYPE: Final[dict[type[msgspec.Struct], Limit]] = {
    **dict.fromkeys(_REFUSED, _ENDLESS),
    **dict.fromkeys(
        (NodeFabric, FabricPort, MissingPort, FabricGpu), Limit(512, max(PORTS_MAX, GPUS_MAX))
    ),
    **dict.fromkeys((NcclEvidence, PortFigures, PortHealth, SocketFigures), Limit(512)),
    Checkpoint: Limit(chars=256),
    NodeSetting: Limit(chars=512),
}
_OF_FIELD: Final[dict[tuple[type[msgspec.Struct], str], Limit]] = {
    (Hello, "tasks"): _ENDLESS,
    **{(NodeObservations, name): _ENDLESS for name in ("hardware", "disks")},
    **{(NodeChanges, name): _ENDLESS for name in ("interfaces", "devices", "hardware", "disks")},
    **{(RankReport, name): _TAIL for name in ("error", "stderr", "kernel", "oom_said")},
    **{(TaskReport, name): _RANKS for name in ("ranks", "survivors")},
    (TaskObservations, "activity"): _RANKS,
    **{(StacksReport, name): _RANKS for name in ("ranks", "activity", "recorded")},
    (TaskReport, "launcher_said"): _TAIL,
    (Refusal, "text"): _TAIL,
    **{(kind, "settings"): Limit(members=32) for kind in (NodeObservations, NodeChanges)},
    (Prepared, "addresses"): Limit(members=1024),
    (RankStacks, "threads"): Limit(members=2048),
}

_T = TypeVar("_T")


def bounded(value: _T, limit: Limit = _DEFAULT) -> _T:
    """Return a decoded value with everything in it cut to its bounds; itself if nothing is."""
    return _bounded(value, limit)  # type: ignore[no-any-return]


def _bounded(value: Any, limit: Limit) -> Any:
    match value:
        case str():
            return value[: limit.chars] if len(value) > limit.chars else value
        case tuple():
            members = value[: limit.members]
            kept = tuple(_bounded(member, limit) for member in members)
            same = len(kept) == len(value) and all(a is b for a, b in zip(kept, value, strict=True))
            return value if same else kept
        case dict():
            first = list(value.items())[: limit.members]
            changed = {_bounded(key, limit): _bounded(inner, limit) for key, inner in first}
            return value if changed == value else changed
        case msgspec.Struct():
            return _struct(value)
        case _:
            return value


def _struct(value: msgspec.Struct) -> msgspec.Struct:
    kind, changes = type(value), {}
    limit = _OF_TYPE.get(kind, _DEFAULT)
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        if not inner or isinstance(inner, (bool, int, float)):
            continue
        cut = _bounded(inner, _OF_FIELD.get((kind, name), limit))
        if cut is not inner:
            changes[name] = cut
    return msgspec.structs.replace(value, **changes) if changes else value
