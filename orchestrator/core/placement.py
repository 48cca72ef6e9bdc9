"""Which nodes a gang gets, and the words for why it gets none: one code for both."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from muster.protocol.ids import NodeName
from muster.spec.types import JobSpec, nproc_wanted
from orchestrator.core.network import Apart, choose, reachable_gang
from orchestrator.core.node import LinkState
from orchestrator.core.policy import blame
from orchestrator.core.state import Job, Node, State


@dataclass(frozen=True, slots=True)
class Waiting:
    """No gang now. `lacking` holds, for each node that could not be taken, the reason."""

    text: str
    lacking: tuple[tuple[NodeName, str], ...]


def unfit(spec: JobSpec, node: Node) -> str | None:
    """Why this node can never run a part of this job as both are now; None if it can."""
    if node.inventory.pool != spec.pool:
        return f"is in pool {node.inventory.pool}"
    if spec.placement.include and node.name not in spec.placement.include:
        return "is not in placement.include"
    if node.name in spec.placement.exclude:
        return "is in placement.exclude"
    wanted = spec.resources.gpu or 0
    if node.inventory.gpus < wanted:
        return f"has {node.inventory.gpus} of the {wanted} GPUs wanted"
    model = spec.resources.gpu_model
    if model and model.lower() not in node.inventory.gpu_model.lower():
        return f"has GPUs of model {node.inventory.gpu_model or 'none'}, not {model}"
    return None


def busy(node: Node) -> str | None:
    """Why a node that fits cannot be taken now; None if it can."""
    if node.link is not LinkState.CONNECTED:
        return "is not connected"
    if node.holder is not None:
        return f"runs job {node.holder[0]}"
    return None


def never_fits(state: State, spec: JobSpec) -> str | None:
    """A sentence that says why the nodes known can never hold this job; None if they can."""
    reasons = [(node.name, unfit(spec, node)) for node in state.nodes.values()]
    fitting = sum(1 for _, reason in reasons if reason is None)
    if fitting >= spec.nodes:
        able = [
            node
            for node, (_, reason) in zip(state.nodes.values(), reasons, strict=True)
            if not reason
        ]
        if reachable_gang(able, spec.nodes, state.networks) is not None:
            return None
        found = choose(able[: spec.nodes], state.networks)
        return found.text if isinstance(found, Apart) else None
    if not state.nodes:
        return f"it needs {count(spec.nodes, 'node')}, and no node has joined yet"
    unknown = [name for name in spec.placement.include if NodeName(name) not in state.nodes]
    told = [f"{name} {reason}" for name, reason in reasons if reason is not None]
    told += [f"{name} is not known" for name in unknown]
    return (
        f"it needs {count(spec.nodes, 'node')} and {fitting} of the {len(reasons)} known can run it"
        + (f": {_some(told)}" if told else "")
    )


def place(state: State, job: Job) -> tuple[NodeName, ...] | Waiting:
    """Choose the whole gang or nothing.

    Nodes with the fewest GPUs that suffice come first, so that larger ones stay free; nodes that
    failed the job before are taken only where the job could not run at all without them. The first
    is the launcher: where it has another number of ranks than the others, the node that suits.
    """
    kept = _unspoilt(state, job.spec, job.avoid)
    if len(kept) < job.spec.nodes or (
        job.avoid and reachable_gang(kept, job.spec.nodes, state.networks) is None
    ):
        kept = [node for node in state.nodes.values() if unfit(job.spec, node) is None]
    reasons = [(node.name, busy(node)) for node in kept]
    free = [node for node, (_, reason) in zip(kept, reasons, strict=True) if reason is None]
    if len(free) >= job.spec.nodes:
        # Of two that did not meet, one was at fault perhaps: it is seldom both.
        faults = blame(job) if job.avoid else {}
        free.sort(key=lambda n: (faults.get(n.name, 0), n.inventory.gpus, natural(n.name)))
        gang = _gang(job.spec, free, state.networks)
        if gang is None:
            return Waiting(
                f"needs {count(job.spec.nodes, 'node')} that share a network, and of the "
                f"{len(free)} that are free no so many do",
                (),
            )
        return gang
    lacking = tuple((name, reason) for name, reason in reasons if reason is not None)
    return Waiting(
        f"needs {count(job.spec.nodes, 'node')}, {len(free)} free"
        + (f": {_some([f'{name} {reason}' for name, reason in lacking])}" if lacking else ""),
        lacking,
    )


def can_do_without(state: State, spec: JobSpec, avoid: frozenset[NodeName]) -> bool:
    """Whether a whole gang could be had, now or later, of nodes that are not in `avoid`."""
    kept = _unspoilt(state, spec, avoid)
    if len(kept) < spec.nodes:
        return False
    return not avoid or reachable_gang(kept, spec.nodes, state.networks) is not None


def _unspoilt(state: State, spec: JobSpec, avoid: frozenset[NodeName]) -> list[Node]:
    # One that has been lost may never come back: it is no reason to wait.
    there = (LinkState.CONNECTED, LinkState.SUSPECT)
    return [
        node
        for node in state.nodes.values()
        if node.name not in avoid and node.link in there and unfit(spec, node) is None
    ]


def _gang(
    spec: JobSpec, free: list[Node], networks: tuple[str, ...]
) -> tuple[NodeName, ...] | None:
    """Names in node-rank order, of enough free nodes, the better ones first; None where they share
    no network. An elastic gang takes as many as it may."""
    least, most = spec.nodes, spec.most_nodes
    if spec.roles.launcher.nproc_per_node == spec.roles.worker.nproc_per_node:
        gang = reachable_gang(free, least, networks, most)
        return None if gang is None else tuple(sorted((n.name for n in gang), key=natural))
    # The fewest GPUs that suffice, for the launcher first: what is left suits the workers best.
    launcher = _suiting(spec, 0, free)[0]
    workers = _suiting(spec, 1, [node for node in free if node is not launcher])
    gang = reachable_gang([launcher, *workers], least, networks, most)
    if gang is None:
        return None
    if launcher not in gang:
        launcher = _suiting(spec, 0, list(gang))[0]
    rest = (node.name for node in gang if node is not launcher)
    return (launcher.name, *sorted(rest, key=natural))


def _suiting(spec: JobSpec, node_rank: int, nodes: list[Node]) -> list[Node]:
    """`nodes` in the same order, but first those with a GPU for each rank that they would get."""

    def short(node: Node) -> bool:
        wanted = nproc_wanted(spec, node_rank, node.name) or 0
        return node.inventory.gpus < wanted

    return sorted(nodes, key=short)


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key under which gpu-9 comes before gpu-10."""
    return tuple(
        (0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"\d+|\D+", name)
    )


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _some(items: Iterable[str], most: int = 4) -> str:
    listed = list(items)
    rest = len(listed) - most
    return "; ".join(listed[:most]) + (f"; and {rest} more" if rest > 0 else "")
