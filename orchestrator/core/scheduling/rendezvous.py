"""Rendezvous of a gang: an endpoint per node, the launcher's address and a leased port."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muster.protocol.observations.interfaces import Endpoint
from muster.protocol.outcome import Cause, CauseCode, Outcome
from orchestrator.core.facts.jobs import AttemptArranged
from orchestrator.core.model.state import Attempt, Node, State, Task
from orchestrator.core.scheduling.network import NoSharedNetwork, choose, endpoint_on, ground_of


def choose_rendezvous(state: State, attempt: Attempt) -> AttemptArranged | Cause:
    """The rendezvous of a gang that is ready, or the cause that prevents it."""
    nodes = [state.nodes[task.node] for task in attempt.tasks]
    endpoints, network = tuple(own_endpoint(task) for task in attempt.tasks), ""
    if all(node.inventory.interfaces for node in nodes):
        found = choose(nodes, state.networks)
        if isinstance(found, NoSharedNetwork):
            return _refused(found.text, found.odd)
        endpoints, network = found.endpoints, found.text
    launcher = attempt.tasks[0]
    machine = nodes[0].inventory.machine_id
    taken = state.ports.get(machine, set())
    offered = () if launcher.prepared is None else launcher.prepared.ports
    port = next((port for port in offered if port not in taken), None)
    if port is None:
        text = f"{launcher.node} has no free port left in its range for the rendezvous"
        return _refused(text, launcher.node)
    return AttemptArranged(
        attempt.job,
        attempt.number,
        endpoints[0].address,
        port,
        endpoints,
        network,
        machine_id=machine,
    )


def endpoint(attempt: Attempt, task: Task) -> Endpoint:
    """The address at which a task's node is reached in this gang."""
    if task.endpoint is not None:
        return task.endpoint
    if task.rank < len(attempt.endpoints):
        return attempt.endpoints[task.rank]
    return own_endpoint(task)


def who_could_join(
    state: State, attempt: Attempt, nodes: Iterable[Node]
) -> Iterator[tuple[Node, Endpoint | None]]:
    """The nodes on the network of a running gang, each with its endpoint.

    The endpoint is None if the address is the one that the node's agent reports later.
    """
    gang = [state.nodes[task.node] for task in attempt.present]
    known = all(node.inventory.interfaces for node in gang)
    endpoints = [endpoint(attempt, task) for task in attempt.present] if known else []
    ground = ground_of(gang, endpoints, state.networks) if known else None
    for node in nodes:
        if not known or not node.inventory.interfaces:
            yield node, None
        elif ground is not None and (found := endpoint_on(ground, node)) is not None:
            yield node, found


def own_endpoint(task: Task) -> Endpoint:
    """The address that the agent reports itself, for agents that do not report interfaces."""
    if task.prepared is None:
        raise AssertionError(f"task {task.id} is arranged before it is prepared")
    return Endpoint(task.node, task.prepared.address, task.prepared.interface)


def _refused(text: str, node: str | None) -> Cause:
    return Cause(
        CauseCode.ARRANGE_FAILED, Outcome.INFRA, text, node=node, node_fault=node is not None
    )
