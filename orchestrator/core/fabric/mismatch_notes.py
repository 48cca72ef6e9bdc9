"""Notes on differences between nodes that do not change the gang's rails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.core.fabric.port_slots import FabricMember, is_part
from orchestrator.core.fabric.rails import Rails

_OF_ONE_NODE: Final = "NCCL_TOPO_FILE"
"""A setting that legitimately differs: each kind of machine has its own file."""


def mismatch_notes(
    rails: Rails, agreed: Sequence[int], members: Sequence[FabricMember]
) -> list[str]:
    """Notes on whole nodes whose GPUs are near other rails than on the first kind of node.

    NCCL sends by the nearest port, so their traffic crosses from rail to rail.
    """
    first: tuple[FabricMember, Mapping[int, frozenset[int]]] | None = None
    notes = []
    for kind, nodes in _by_kind(rails, members).items():
        if is_part(nodes[0]):
            continue
        mine = _rails_of_gpus(rails, agreed, kind)
        if not mine:
            continue
        if first is None:
            first = nodes[0], mine
            continue
        other, its = first
        unlike = sorted(gpu for gpu in mine.keys() & its.keys() if mine[gpu] != its[gpu])
        if unlike:
            gpu = unlike[0]
            alone = len(unlike) == len(nodes) == 1
            whose = f"{_count(len(unlike), 'GPU')} of {_count(len(nodes), 'node')}"
            notes.append(
                f"{nodes[0].node}: GPU {gpu} is nearest to {_named(mine[gpu])}, that of "
                f"{other.node} to {_named(its[gpu])}: its traffic crosses from rail to rail"
                + ("" if alone else f" (so it is with {whose})")
            )
    return notes


def settings_notes(members: Sequence[FabricMember]) -> list[str]:
    """Notes on site settings that differ between the nodes."""
    notes = []
    names = dict.fromkeys(name for it in members for name in it.fabric.settings)
    for name in names:
        node_of: dict[str, str] = {}
        for member in members:
            node_of.setdefault(member.fabric.settings.get(name, ""), member.node)
        if name != _OF_ONE_NODE and len(node_of) > 1:
            (one, here), (other, there), *_ = node_of.items()
            notes.append(
                f"{name} is {one or 'not set'} on {here} and {other or 'not set'} on {there} "
                "(fabric.settings of their agents)"
            )
    return notes


def _by_kind(rails: Rails, members: Sequence[FabricMember]) -> dict[int, list[FabricMember]]:
    found: dict[int, list[FabricMember]] = {}
    for kind, member in zip(rails.kinds, members, strict=True):
        found.setdefault(kind, []).append(member)
    return found


def _rails_of_gpus(rails: Rails, agreed: Sequence[int], kind: int) -> dict[int, frozenset[int]]:
    """For each GPU, the rails whose ports are nearest to it."""
    found: dict[int, set[int]] = {}
    for rail in agreed:
        port = rails.ports[rail][kind]
        for gpu in () if port is None else port.near:
            found.setdefault(gpu, set()).add(rail)
    return {gpu: frozenset(own) for gpu, own in found.items()}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _named(rails: frozenset[int]) -> str:
    numbers = ", ".join(map(str, sorted(rails)))
    return f"rail {numbers}" if len(rails) == 1 else f"rails {numbers}"
