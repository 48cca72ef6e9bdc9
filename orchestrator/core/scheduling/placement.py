"""Placement of gangs: choice of the nodes, and the reason if there are none, from the same code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from muster.fabric.natural_sort import natural
from muster.protocol.ids import NodeName
from muster.protocol.text import count
from muster.spec.model import JobSpec, Placement, Rdma, Resources
from muster.spec.units import size_text
from orchestrator.core.model.blame import blame
from orchestrator.core.model.node import THERE, LinkState, is_drained
from orchestrator.core.model.state import Job, Node, State
from orchestrator.core.scheduling.gpu_preference import by_gpu_fit, is_short, lacks_gpus
from orchestrator.core.scheduling.gpus import (
    free_cpus,
    free_memory,
    matching,
    one_per_machine,
    room,
    shares,
    siblings_hold,
    used_by_strangers,
)
from orchestrator.core.scheduling.network import NoSharedNetwork, choose, reachable_gang
from orchestrator.core.scheduling.rdma_groups import kind_of, rdma_groups, without_rdma
from orchestrator.core.scheduling.reasons import NO_TORCH, Rejection, cannot_start
from orchestrator.core.scheduling.restore_hold import unknown_on
from orchestrator.core.scheduling.topology import enough, groups, largest, value_of


class PlacementVerdict(NamedTuple):
    """The verdict on one node for one job now; without `rejection` the node can be taken."""

    node: Node
    rejection: Rejection | None = None


class Waiting(msgspec.Struct, frozen=True):
    """No gang of `wanted` nodes now. `lacking` has the reason for each node not taken."""

    wanted: int
    free: int
    lacking: tuple[tuple[NodeName, Rejection], ...]
    together: str = "share a network"

    @property
    def text(self) -> str:
        """The reason in words, nodes sorted by name.

        Computed on demand, because most placement passes never show it.
        """
        wanted = count(self.wanted, "node")
        apart = sum(rejection.code in (_APART.code, SPREAD) for _, rejection in self.lacking)
        if any(rejection is _UNLIKE for _, rejection in self.lacking):
            return f"needs {wanted} with RDMA of one kind, and not enough of these are free"
        if apart:
            return f"needs {wanted} that {self.together}, and fewer of the {apart} free nodes do"
        parts = _some(_by_name(self.lacking))
        return f"needs {wanted}, {self.free} free" + (f": {parts}" if parts else "")


class Considered(msgspec.Struct, frozen=True):
    """A verdict on every known node, and the resulting gang in node-rank order (empty if none)."""

    verdicts: tuple[PlacementVerdict, ...]
    gang: tuple[NodeName, ...]


_APART: Final = Rejection("network", "is free, but shares no network with enough of the others")
_UNLIKE: Final = Rejection("fabric", "is free, but its fabric matches too few of the others")
SPREAD: Final = "spread"
LAUNCHERS_TRIED: Final = 16
"""Number of launcher candidates that are tried for one with enough others on its network."""
_SAME_GPUS: Final = Rejection("same_gpus", "has the GPUs of another agent on its machine")
_FOR_NOW: Final = frozenset(
    {
        "busy",
        "gpus_busy",
        "gpus_used",
        "cpu_busy",
        "memory_busy",
        "same_gpus",
        "not_connected",
        "refuses_jobs",
        "disk",
        NO_TORCH,
        "network",
        "fabric",
        SPREAD,
        "drained",
    }
)
"""Reasons that may pass; a node with one of them still fits."""


def unfit(spec: JobSpec, node: Node) -> Rejection | None:
    """Return why this node can never run a task of this job as both are now; None if it can."""
    if node.inventory.pool != spec.pool:
        return Rejection("pool", f"is in pool {node.inventory.pool}")
    if spec.placement.include and node.name not in spec.placement.included:
        return Rejection("not_included", "is not in placement.include")
    if node.name in spec.placement.excluded:
        return Rejection("excluded", "is in placement.exclude")
    return (
        _too_few_gpus(spec.resources, node)
        or _too_small(spec.resources, node)
        or _without_git(spec, node)
        or _without_label(spec.placement, node)
        or without_rdma(spec, node)
    )


def _too_few_gpus(resources: Resources, node: Node) -> Rejection | None:
    wanted, inventory = resources.gpu or 0, node.inventory
    if inventory.gpus < wanted:
        faults = _some(f"{it.pci} {it.fault}" for it in inventory.devices if it.fault)
        why = f" ({faults})" if faults else ""
        return Rejection("gpus", f"has {inventory.gpus} of the {wanted} GPUs wanted{why}")
    found = matching(inventory, resources)
    if found >= wanted:
        return None
    models = _some(sorted({it.model for it in inventory.devices if it.model}))
    has = models or inventory.gpu_model or "none"
    if found:
        text = f"has {found} of the {wanted} {resources.gpu_model} wanted, among GPUs of {has}"
        return Rejection("gpus", text)
    return Rejection("gpu_model", f"has GPUs of model {has}, not {resources.gpu_model}")


def _too_small(wanted: Resources, node: Node) -> Rejection | None:
    cpus, memory = node.inventory.cpus, node.inventory.memory_bytes
    if wanted.cpu is not None and cpus < wanted.cpu:
        return Rejection("cpu", f"has {cpus} of the {wanted.cpu} CPUs wanted")
    if wanted.memory_bytes is not None and memory < wanted.memory_bytes:
        has = f"{memory / 2**30:.1f} GiB"
        return Rejection(
            "memory", f"has {has} of the {size_text(wanted.memory_bytes)} of memory wanted"
        )
    return None


def _without_git(spec: JobSpec, node: Node) -> Rejection | None:
    # An agent of before ignores where the code is, and would run the job in an empty folder.
    if spec.git is None or node.inventory.git:
        return None
    why = "cannot fetch code with git: install git there, and restart or upgrade the agent"
    return Rejection("git", why)


def _without_label(placement: Placement, node: Node) -> Rejection | None:
    for name, value in placement.labels.items():
        has = node.inventory.labels.get(name)
        if has is None:
            return Rejection("label", f"has no label {name}")
        if has != value:
            return Rejection("label", f"has the label {name}={has}, not {value}")
    shared = placement.shared_label
    if shared is not None and shared not in node.inventory.labels:
        return Rejection("label", f"has no label {shared}, which placement.spread needs")
    return None


def busy(state: State, spec: JobSpec, node: Node) -> Rejection | None:
    """Return why a fitting node, or the asked part of it, cannot be taken now; None if it can."""
    if node.drain is not None:
        return Rejection("drained", is_drained(node.drain))
    holders = tuple(node.holders)
    if node.link is not LinkState.CONNECTED:
        return Rejection("not_connected", "is not connected", holders)
    if (unfit_now := cannot_start(spec, node)) is not None:
        return unfit_now
    if unknown := unknown_on(state, node.name):
        return Rejection("restored", f"stops what the journal lacks: task {unknown}")
    if not shares(spec, node.inventory):
        holders = holders or siblings_hold(state, node)
        if holders:
            return Rejection("busy", "runs a job", holders)
        strange = used_by_strangers(node)
        return Rejection("gpus_used", f"is not free: {strange}") if strange else None
    if any(share.whole for share in node.holders.values()):
        return Rejection("busy", "runs a job", holders)
    wanted, inventory = spec.resources, node.inventory
    strange = used_by_strangers(node)
    if not holders and not inventory.shared_host and not strange:
        return None
    free = room(state, spec, node)
    if free < (wanted.gpu or 0):
        words = f"has {free} of {matching(inventory, wanted)} GPUs free"
        if strange:
            return Rejection("gpus_used", f"{words}: {strange}", holders)
        return Rejection("gpus_busy", words, holders or siblings_hold(state, node))
    if wanted.cpu is not None and free_cpus(node) < wanted.cpu:
        words = f"has {max(0, free_cpus(node))} of {inventory.cpus} CPUs free"
        return Rejection("cpu_busy", words, holders)
    if wanted.memory_bytes is not None and free_memory(node) < wanted.memory_bytes:
        words = f"has {max(0, free_memory(node)) / 2**30:.1f} GiB of memory free"
        return Rejection("memory_busy", words, holders)
    return None


def consider(state: State, job: Job) -> Considered:
    """Judge every node for a job as if it were the head of its queue.

    Both placement and the reasons for waiting use this. Nodes that failed the job before are left
    out, unless the job could not run at all without them.
    """
    spec, known = job.spec, tuple(state.nodes.values())
    unfits = [unfit(spec, node) for node in known]
    fitting = [node for node, rejection in zip(known, unfits, strict=True) if rejection is None]
    kept = usable(job, fitting, state.networks)
    left_out = {n.name for n in fitting} - {n.name for n in kept} if kept is not fitting else set()
    verdicts = tuple(
        [
            PlacementVerdict(
                node,
                rejection
                or (
                    _left_out(state, job, node)
                    if node.name in left_out
                    else busy(state, spec, node)
                ),
            )
            for node, rejection in zip(known, unfits, strict=True)
        ]
    )
    free = [verdict.node for verdict in verdicts if verdict.rejection is None]
    if len(free) < spec.nodes:
        return Considered(verdicts, ())
    gang, kinds, apart = choose_gang(state, job, kept, free)
    if len(apart) < len(free):
        names = {node.name for node in apart}
        verdicts = tuple(
            v if v.rejection or v.node.name in names else PlacementVerdict(v.node, _SAME_GPUS)
            for v in verdicts
        )
    if gang is not None or len(apart) < spec.nodes:
        return Considered(verdicts, gang or ())
    if not kinds:
        return Considered(
            tuple(v if v.rejection else PlacementVerdict(v.node, _UNLIKE) for v in verdicts), ()
        )
    sizes = {node.name: len(group) for group in groups(spec, apart) for node in group}
    return Considered(
        tuple(
            v if v.rejection else PlacementVerdict(v.node, _apart(spec, v.node, sizes))
            for v in verdicts
        ),
        (),
    )


def usable(job: Job, fitting: list[Node], networks: tuple[str, ...]) -> list[Node]:
    """The nodes that fit, without those that failed the job if it could run without them."""
    kept = _dependable(fitting, job.avoid)
    return kept if enough(job.spec, kept, networks, share_network=bool(job.avoid)) else fitting


def choose_gang(
    state: State, job: Job, kept: Sequence[Node], free: Sequence[Node]
) -> tuple[tuple[NodeName, ...] | None, bool, list[Node]]:
    """Return the best gang of free nodes, whether any RDMA group is large enough, and the free
    nodes of which no two have the same GPUs. `kept` are the nodes that may become free.
    """
    # Because of two nodes that could not connect, usually only one was at fault.
    faults = blame(job) if job.avoid else {}
    apart = one_per_machine(free)
    gang, kinds = _first_gang(state, job.spec, apart, kept, faults)
    if gang is None and len(apart) < len(free):
        # Another agent of the same machine may be in the other nodes' network, or have their RDMA.
        gang, kinds = _first_gang(state, job.spec, free, kept, faults)
        chosen = set(gang or ())
        apart = one_per_machine(sorted(free, key=lambda n: n.name not in chosen))
    return gang, kinds, apart


def _first_gang(
    state: State,
    spec: JobSpec,
    free: Sequence[Node],
    kept: Sequence[Node],
    faults: Mapping[NodeName, int],
) -> tuple[tuple[NodeName, ...] | None, bool]:
    """The preferred gang of free nodes, and whether any RDMA group is large enough."""
    ordered = sorted(free, key=lambda n: (faults.get(n.name, 0), *preference(state, spec, n)))
    kinds = rdma_groups(spec, ordered, kept) if len(ordered) >= spec.nodes else []
    first: tuple[NodeName, ...] | None = None
    for kind in kinds:
        gang = _best_gang(spec, kind, state.networks, faults)
        if gang is not None and not lacks_gpus(spec, gang, state.nodes):
            return gang, True
        first = first or gang
    return first, bool(kinds)


def _apart(spec: JobSpec, node: Node, sizes: dict[NodeName, int]) -> Rejection:
    """Return why a free node is in no gang, although enough nodes are free."""
    here = sizes[node.name]
    if here >= spec.nodes:
        return _APART
    which = "no other node has" if here == 1 else f"only {here} free nodes have"
    return Rejection(SPREAD, f"is free, and {which} {value_of(spec, node)}")


def preference(
    state: State, spec: JobSpec, node: Node
) -> tuple[bool, int, int, tuple[tuple[str, int], ...]]:
    """Sort key of free nodes for the job; the least is taken first.

    For a job that wants part of a node: shared nodes with the fewest free GPUs first, so that whole
    nodes stay free.
    """
    if not node.holders or not shares(spec, node.inventory):
        return True, node.inventory.gpus, 0, natural(node.name)
    return False, room(state, spec, node), node.inventory.gpus, natural(node.name)


def _left_out(state: State, job: Job, node: Node) -> Rejection:
    if node.name in job.avoid:
        return Rejection("failed_before", "failed an attempt of this job, which others can run")
    return busy(state, job.spec, node) or Rejection("not_connected", "is not connected")


def never_fits(state: State, spec: JobSpec) -> str | None:
    """A sentence on why the known nodes can never hold this job; None if they can."""
    reasons = [(node.name, unfit(spec, node)) for node in state.nodes.values()]
    able = [
        node
        for node, (_, rejection) in zip(state.nodes.values(), reasons, strict=True)
        if not rejection
    ]
    fitting = len(one_per_machine(able))
    if fitting >= spec.nodes:
        if enough(spec, able, state.networks):
            return None
        near = one_per_machine(largest(spec, able))
        if len(near) < spec.nodes:
            most = f"; the most is {len(near)}, of {value_of(spec, near[0])}" if near else ""
            return f"it needs {count(spec.nodes, 'node')} that {_together(spec)}{most}"
        found = choose(near[: spec.nodes], state.networks)
        return found.text if isinstance(found, NoSharedNetwork) else None
    if not state.nodes:
        return f"it needs {count(spec.nodes, 'node')}, and no node has joined yet"
    unknown = [name for name in spec.placement.include if NodeName(name) not in state.nodes]
    parts = _by_name([(name, reason) for name, reason in reasons if reason is not None])
    parts += [f"{name} is not known" for name in unknown]
    return (
        f"it needs {count(spec.nodes, 'node')} and {fitting} of the {len(reasons)} known can run it"
        + (f": {_some(parts)}" if parts else "")
    )


def place(state: State, job: Job) -> tuple[NodeName, ...] | Waiting:
    """Choose the whole gang or nothing.

    Nodes with the fewest sufficient GPUs come first, so that larger ones stay free. A job that
    wants part of a node gets already shared nodes before those. The first node is the launcher; if
    it has another number of ranks than the workers, it is chosen to suit.
    """
    found = consider(state, job)
    if found.gang:
        return found.gang
    lacking = tuple(
        (verdict.node.name, verdict.rejection)
        for verdict in found.verdicts
        if verdict.rejection is not None and verdict.rejection.code in _FOR_NOW
    )
    free = sum(verdict.rejection is None for verdict in found.verdicts)
    near = any(rejection.code == SPREAD for _, rejection in lacking)
    together = _together(job.spec) if near else "share a network"
    return Waiting(job.spec.nodes, free, lacking, together)


def _together(spec: JobSpec) -> str:
    return f"have the same {spec.placement.shared_label}"


def placement_reason(
    state: State, job: Job, nodes: tuple[NodeName, ...], *, all_fit: bool = False
) -> str:
    """Return why a gang got these nodes, recorded when it is placed.

    `all_fit`: the state has only nodes that fit the job.
    """
    spec, known = job.spec, state.nodes.values()
    free_now = [node for node in known if busy(state, spec, node) is None]
    fitting = free_now if all_fit else [n for n in free_now if unfit(spec, n) is None]
    left_out = [n.name for n in fitting if n.name in job.avoid and n.name not in nodes]
    free = len(fitting) - len(left_out)
    near = f", all of {value_of(spec, state.nodes[nodes[0]])}" if spec.placement.spread else ""
    out = f"; excluded, because the job failed there: {_some(left_out)}" if left_out else ""
    if free == len(nodes):
        only = "free node that fits" if free == 1 else f"{free} free nodes that fit"
        return f"the only {only}{near}{out}"
    part = any(shares(spec, state.nodes[name].inventory) for name in nodes)
    first = "partly used ones, then " if part else ""
    kinds = {kind_of(state.nodes[name]) for name in nodes}
    one = len(nodes) > 1 and len(kinds) == 1 and "" not in kinds and spec.rdma is not Rdma.OFF
    also = " and with one kind of RDMA" if one else ""
    return (
        f"of {free} free nodes that fit, {first}those with the fewest GPUs that suffice, "
        f"then by name, on one network{near}{also}{out}"
    )


def can_do_without(state: State, spec: JobSpec, avoid: frozenset[NodeName]) -> bool:
    """True if a whole gang could be placed, now or later, without the nodes in `avoid`."""
    fitting = [node for node in state.nodes.values() if unfit(spec, node) is None]
    kept = _dependable(fitting, avoid)
    return enough(spec, kept, state.networks, share_network=bool(avoid))


def _dependable(fitting: list[Node], avoid: frozenset[NodeName]) -> list[Node]:
    # A lost or drained node may never come back, so it is not worth waiting for.
    return [n for n in fitting if n.link in THERE and n.in_service and n.name not in avoid]


def _best_gang(
    spec: JobSpec, free: list[Node], networks: tuple[str, ...], faults: Mapping[NodeName, int]
) -> tuple[NodeName, ...] | None:
    """The best gang of nodes that are near each other.

    An elastic gang is as large as possible. Otherwise the group with the fewest free nodes wins, so
    that larger groups stay whole.
    """
    found: list[tuple[tuple[bool, int, int, int], tuple[NodeName, ...]]] = []
    for group in groups(spec, free):
        gang = _gang(spec, group, networks) if len(group) >= spec.nodes else None
        if gang is not None:
            short = lacks_gpus(spec, gang, {node.name: node for node in group})
            blamed = sum(faults.get(name, 0) for name in gang)
            found.append(((short, blamed, -len(gang), len(group)), gang))
    return min(found, key=lambda it: it[0], default=(None, None))[1]


def _gang(
    spec: JobSpec, free: list[Node], networks: tuple[str, ...]
) -> tuple[NodeName, ...] | None:
    """Names of enough free nodes in node-rank order, the preferred nodes first.

    Returns None if they share no network. An elastic gang takes as many nodes as it may.
    """
    least, most = spec.nodes, spec.most_nodes
    if spec.elastic:
        # A node with too few GPUs would end its ranks, and with them the whole gang.
        sound = [node for node in free if not is_short(spec, 1, node)]
        if least <= len(sound) < len(free) and (found := _gang(spec, sound, networks)):
            return found
    if spec.roles.launcher.nproc_per_node == spec.roles.worker.nproc_per_node:
        same = reachable_gang(by_gpu_fit(spec, 0, free), least, networks, most)
        return None if same is None else tuple(sorted((n.name for n in same), key=natural))
    gang: tuple[Node, ...] = ()
    # The launcher gets the fewest GPUs that suffice, which leaves the larger nodes to the workers.
    for launcher in by_gpu_fit(spec, 0, free)[:LAUNCHERS_TRIED]:
        workers = by_gpu_fit(spec, 1, [node for node in free if node is not launcher])
        gang = reachable_gang([launcher, *workers], least, networks, most) or ()
        if launcher in gang or not gang:
            break
    if not gang:
        return None
    if launcher not in gang:
        launcher = by_gpu_fit(spec, 0, list(gang))[0]
    rest = (node.name for node in gang if node is not launcher)
    return (launcher.name, *sorted(rest, key=natural))


def _by_name(lacking: Sequence[tuple[NodeName, Rejection]]) -> list[str]:
    ordered = sorted(lacking, key=lambda pair: natural(pair[0]))
    return [f"{name} {rejection}" for name, rejection in ordered]


def _some(items: Iterable[str], most: int = 4) -> str:
    listed = list(items)
    rest = len(listed) - most
    return "; ".join(listed[:most]) + (f"; and {rest} more" if rest > 0 else "")
