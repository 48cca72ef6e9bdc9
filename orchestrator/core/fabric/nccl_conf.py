"""NCCL configuration files of the nodes, and their conflicts with the plan.

A file's value applies unless the job's environment sets the variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from muster.fabric.gids import Family
from muster.fabric.nccl_env import Port
from muster.fabric.nccl_version import DYNAMIC, Version
from orchestrator.core.fabric.port_slots import FabricMember
from orchestrator.core.model.fabric_plan import NodePlan

_INDEX: Final = "NCCL_IB_GID_INDEX"
_FAMILY: Final = "NCCL_IB_ADDR_FAMILY"
_RANGE: Final = "NCCL_IB_ADDR_RANGE"
CHOOSE: Final = "-1"
"""GID index with which NCCL chooses the index itself."""


def overruling(
    conf: Mapping[str, str], ports: Sequence[Port], family: Family, nccl: Version | None
) -> dict[str, str]:
    """Variables that keep a node's NCCL file from overriding the choice of the GID.

    They let NCCL choose the index itself, within the plan's address family. Returns {} for versions
    that cannot choose: their plan contains the index anyway.
    """
    known = [port for port in ports if port.index is not None]
    if not known or (nccl is not None and nccl < DYNAMIC):
        return {}
    made = {}
    index = _value(conf.get(_INDEX, CHOOSE))
    if index != CHOOSE and any(str(port.index) != index for port in known):
        made[_INDEX] = CHOOSE
    if _value(conf.get(_FAMILY, family)) != family:
        made[_FAMILY] = family
    return made


def file_notes(
    members: Sequence[FabricMember], made: Sequence[NodePlan], *, roce: bool
) -> list[str]:
    """Notes on conflicts between files and the plan; nodes with the same note are merged."""
    found: dict[str, list[str]] = {}
    for member, plan in zip(members, made, strict=True):
        for name in (_INDEX, _FAMILY, _RANGE) if roce else ():
            setting = member.fabric.nccl_conf.get(name)
            if setting is not None and (text := _said(name, setting, plan.env)):
                found.setdefault(text, []).append(member.node)
    return [f"{_named(nodes)}: {text}" for text, nodes in found.items()]


def _said(name: str, setting: str, env: Mapping[str, str]) -> str:
    file = setting.partition(" (from ")[2].removesuffix(")") or "a file"
    value, ours = _value(setting), env.get(name)
    if ours is not None:
        wins = f", the plan {ours}: the jobs' environment wins"
        return "" if ours == value else f"{file} sets {name}={value}{wins}"
    if name == _RANGE and _INDEX not in env:
        return f"{file} sets {name}={value}: NCCL takes addresses of this network alone"
    return ""


def _value(setting: str) -> str:
    return setting.partition(" (from ")[0]


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - 1
    return nodes[0] + (f" and {more} more node{'s' if more > 1 else ''}" if more else "")
