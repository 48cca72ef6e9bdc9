"""Admission of agents: each node name once, and nothing that would harm peers."""

from __future__ import annotations

from typing import Final

from muster.protocol.hosts_file import BadHost, breaks_line, check_address, check_name
from muster.protocol.ids import NODE_NAME_CHARS_MAX, BadId, check_node_name
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import PROTOCOL_MAX, PROTOCOL_MIN, Hello, Refused
from muster.protocol.link.inventory_bounds import inventory_problem
from muster.protocol.observations.gpus import problem as gpu_problem
from muster.protocol.observations.interfaces import problem
from muster.protocol.states import TaskState
from muster.protocol.text import count
from muster.spec.roles import MAX_NPROC
from orchestrator.core.gangs.silent_members import may_vouch_yet
from orchestrator.core.model.node import SILENT, LinkState
from orchestrator.core.model.state import Node, State
from orchestrator.core.model.task import OVER
from orchestrator.core.nodes.crash_loops import another_life

CLOCK_TOLERANCE_S: Final = 10.0
_WORD_CHARS_MAX: Final = 200
_CLOCK_MOST_S: Final = 1e10  # bounded, as any reported value is shown
NAME_CODES: Final = ("duplicate_name", "duplicate_identity")
"""Refusal codes for a second agent of the same name or identity."""

OUTDATED_WITHIN_S: Final = 600.0
"""Seconds after a node's last message for which its newest Hello makes earlier ones outdated.

No connection delivers one so late, as it has to say hello within seconds. A clock may go back, as
that of a virtual machine restored from a snapshot does: then the node can connect after this time.
"""


def is_outdated(state: State, hello: Hello, now: Instant) -> bool:
    """True if this agent has made a newer Hello in the same boot, perhaps as an earlier process,
    and the network delivered that first. The tasks in this one are not those that the node has.
    """
    node = state.nodes.get(hello.node)
    if node is None or (node.agent_id, node.boot_id) != (hello.agent_id, hello.boot_id):
        return False
    earlier = 0.0 < hello.made_s < node.made_s  # 0: its release does not say
    return earlier and now.mono < node.heard_at + OUTDATED_WITHIN_S


def refuse(
    state: State, hello: Hello, peer: str, version: str, foreign: frozenset[str] = frozenset()
) -> Refused | None:
    """Return why a coordinator of `version` cannot accept this agent, or None if it can.

    `foreign` are names of machines other than the agent's.
    """
    bad = refuse_name(hello.node, foreign) or _refuse_texts(hello)
    if bad is not None:
        return bad
    too_old = hello.protocol_max < PROTOCOL_MIN
    if too_old or hello.protocol_min > PROTOCOL_MAX:
        remedy = (
            f"upgrade the agent of {hello.node[:NODE_NAME_CHARS_MAX]} to the coordinator's release "
            "and restart it, which leaves its jobs running"
            if too_old
            else "upgrade the coordinator first, then the agents"
        )
        return Refused(
            "protocol",
            f"this coordinator ({version}) speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}, the "
            f"agent ({hello.version}) {hello.protocol_min} to {hello.protocol_max}: {remedy}",
        )
    unusable = problem(hello.inventory.interfaces)
    if unusable is not None:
        return Refused(
            "bad_network", f"{hello.node} reports values that no peer can use: {unusable}"
        )
    try:
        check_address(hello.inventory.address)
    except BadHost as error:
        return Refused("bad_address", f"{error}; set `address` in the agent's configuration")
    if not 0 <= hello.inventory.gpus <= MAX_NPROC:
        return Refused(
            "bad_gpus",
            f"{hello.node} reports an impossible number of GPUs (valid: 0 to {MAX_NPROC}); set "
            "`gpus` in the agent's configuration",
        )
    unknown = gpu_problem(hello.inventory.devices)
    if unknown is not None:
        return Refused("bad_gpus", f"{hello.node} reports GPUs that no job can use: {unknown}")
    too_large = inventory_problem(hello.inventory)
    if too_large is not None:
        return Refused(
            "bad_inventory",
            f"the inventory of {hello.node} is too large: {too_large}; fix that in the agent's "
            "configuration or on its machine",
        )
    if breaks_line(hello.inventory.hostname):
        return Refused(
            "bad_hostname",
            f"{hello.node} has the host name {hello.inventory.hostname[:80]!r}, which would break "
            "its peers' hosts files; give the machine another host name (hostnamectl hostname "
            "NAME)",
        )
    ours = hello.cluster == state.cluster
    if hello.tasks and hello.cluster and not ours:
        return Refused(
            "other_cluster",
            f"the agent has {count(len(hello.tasks), 'task')} of cluster {hello.cluster}, and this "
            f"coordinator is of cluster {state.cluster}: its state directory is empty or another "
            "one's; start it with the original one",
        )
    if ours and hello.epoch_seen > state.epoch:
        return Refused(
            "old_epoch",
            f"the agent has served epoch {hello.epoch_seen} and this coordinator is in epoch "
            f"{state.epoch}: its state directory is older than another one; restore the newer one",
        )
    node = state.nodes.get(hello.node)
    again = None if node is None else _refuse_second(state, node, hello, peer)
    return (
        again
        or _refuse_replacement(state, node, hello)
        or _refuse_renamed(state, hello)
        or _refuse_beside(state, hello, peer)
    )


def _refuse_texts(hello: Hello) -> Refused | None:
    """Refuse words of the hello itself that are longer than any agent's."""
    texts = {
        "agent_id": hello.agent_id,
        "boot_id": hello.boot_id,
        "version": hello.version,
        "cluster": hello.cluster,
        "instance": hello.instance,
    }
    for field, text in texts.items():
        if len(text) > _WORD_CHARS_MAX or not text.isprintable():
            return Refused(
                "bad_hello",
                f"{field} is not as agents say it ({text[:40]!r}): install the release of the "
                "coordinator there, or remove what else connects with the join token",
            )
    return None


def refuse_name(name: str, foreign: frozenset[str]) -> Refused | None:
    """Refuse invalid names, and names of other machines: peers get the name in their hosts
    files."""
    try:
        check_node_name(name)
        check_name(name)
    except (BadId, BadHost) as error:
        return Refused("bad_name", f"{error}; set `node` in the agent's configuration")
    if "." in name:
        return Refused(
            "bad_name",
            f"{name} is a host name with a domain, and a node's name has none; set `node` in the "
            f"agent's configuration, for example to {name.partition('.')[0]}",
        )
    if name in foreign:
        return Refused(
            "bad_name",
            f"{name} is a name of the coordinator's machine (its host name, listen.names or its "
            "certificate), which peers of this node would then confuse with it; set `node` in the "
            "agent's configuration to another name",
        )
    return None


def _refuse_second(state: State, node: Node, hello: Hello, peer: str) -> Refused | None:
    """Refuse the second of two agents with one name.

    The first one stays, because it may have tasks that the other does not know. Those would seem to
    be lost.
    """
    connected = node.link is LinkState.CONNECTED
    gone = "" if connected else f"; if the first is gone for good: muster node lost {node.name}"
    both = f"by an agent at {node.peer}; this one is at {peer}"
    if node.agent_id != hello.agent_id:
        if _name_taken(state, node):
            text = f"the name {hello.node} is in use {both}: give each agent its own `node`{gone}"
            return Refused("duplicate_name", text)
        return None
    elsewhere = node.inventory.machine_id != hello.inventory.machine_id
    if (connected and node.boot_id != hello.boot_id) or (elsewhere and _name_taken(state, node)):
        return Refused(
            "duplicate_identity",
            f"the identity of {hello.node} is in use {both}: a state folder has been copied; "
            f"remove the copy, and give each agent its own `node`{gone}",
        )
    if connected and another_life(node, hello.instance):
        # A restarted agent may reconnect before the coordinator notices the end of its last
        # connection.
        text = f"the connection of {hello.node} is still held {both}"
        return Refused("duplicate_identity", text, soon=True)
    return None


def _refuse_replacement(state: State, node: Node | None, hello: Hello) -> Refused | None:
    """Refuse another machine with the name of a node that may run what the journal lacks.

    Its hello proves nothing about that node. An agent that has served this cluster is the node's:
    it was installed again, or joined, after the backup.
    """
    name = hello.node
    if name not in state.awaited and not state.unknown.on(name):
        return None
    same = node is not None and node.agent_id == hello.agent_id
    if same or hello.cluster == state.cluster:
        return None
    return Refused(
        "duplicate_name",
        f"{name} is the name of a node that may run tasks which the coordinator's journal lacks, "
        "and this agent has never served this cluster: start the agent that has; if nothing of a "
        f"job runs on that node: muster node lost {name}; or give this agent another name with "
        "`node` in its configuration",
    )


def _refuse_renamed(state: State, hello: Hello) -> Refused | None:
    """Refuse a renamed agent that still has tasks of its old name.

    The coordinator would order it to stop them, as they belong to the old node.
    """
    for report in hello.tasks:
        task = state.find_task(report.task)
        if task is None or task.node == hello.node or task.state in OVER:
            continue
        was = state.nodes[task.node]
        same = was.session is None and was.agent_id == hello.agent_id
        if same and was.boot_id == hello.boot_id and report.state is not TaskState.CLEANED:
            return Refused(
                "renamed",
                f"this agent was {was.name} and still has task {task.id}, which it would lose as "
                f"{hello.node}: set `node: {was.name}` in its configuration until its jobs have "
                f"ended; or end them with: muster node lost {was.name}",
            )
    return None


def _refuse_beside(state: State, hello: Hello, peer: str) -> Refused | None:
    """Refuse a second agent on one machine: the two would give out its CPUs and GPUs twice.

    The boot id identifies the machine, because copied images share a machine id, and containers see
    only the GPUs given to them.
    """
    gpus = {gpu.uuid for gpu in hello.inventory.devices if gpu.uuid}
    for other in state.nodes.values():
        if other.name == hello.node or other.link is not LinkState.CONNECTED:
            continue
        if other.boot_id == hello.boot_id:
            what = "of one machine"
        elif shared := gpus.intersection(gpu.uuid for gpu in other.inventory.devices):
            what = f"that both have GPU {min(shared)}"
        else:
            continue
        if not (other.inventory.shared_host and hello.inventory.shared_host):
            return Refused(
                "second_agent",
                f"{other.name} at {other.peer} and {hello.node} at {peer} are agents {what}: stop "
                "one of them, or set shared_host: true in the configuration of both to try things "
                "out",
            )
    return None


def _name_taken(state: State, node: Node) -> bool:
    """True if the node's agent still holds its name.

    An agent that is cut off may be running something, until its tasks are proved over. It may also
    keep another member of a gang alive.
    """
    runs = node.link in SILENT and bool(node.holders)
    return node.link is LinkState.CONNECTED or runs or may_vouch_yet(state, node)


def clock_ahead_s(wall_s: float | None, now: Instant) -> float:
    """Return how far an agent's wall clock is ahead of ours, in whole seconds (negative: behind).

    Returns 0 if the difference may be latency.
    """
    if wall_s is None or abs(wall_s - now.wall) < CLOCK_TOLERANCE_S:
        return 0.0
    return float(round(max(-_CLOCK_MOST_S, min(_CLOCK_MOST_S, wall_s - now.wall))))
