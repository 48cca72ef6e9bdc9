"""The core accepts any report of an agent on its tasks: an exception would end the process."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.protocol.hosts_file import check_address, check_name
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.link.control_channel import (
    PROTOCOL_MAX,
    ArrangeTask,
    Heartbeat,
    Hello,
    Inventory,
    NodeObservations,
    TaskReport,
)
from muster.protocol.observations.hardware_events import HardwareEvent
from muster.protocol.states import JobState, TaskState
from muster.spec.model import Launcher
from orchestrator.core.engine.turn import Turn
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.views.display import job_view, node_view
from tests.orchestrator.core.playbook import INVENTORY, OBSERVED, Cluster, prepared, spec, task
from tests.strategies import of_type, struct

NODES = ("n0", "n1")
IDS = st.sampled_from([TaskId(x) for x in ("1.1.0", "1.1.1", "1.1.2", "1.2.0", "2.1.0", "x", "")])
REPORTS = struct(
    TaskReport, task=IDS, prepared=st.none() | st.just(prepared()) | of_type(type(prepared()))
)

EVENTS = struct(
    HardwareEvent,
    code=st.sampled_from(["xid 79", "nvml ecc", "oom", "x"]),
    number=st.integers(0, 9),
    boot=st.just("boot-n0"),
    text=st.just("it failed"),
    task=st.none() | IDS,
    pci=st.just(""),
    uuid=st.just(""),
)


def made(stage: str) -> Cluster:
    cluster = Cluster()
    cluster.join(*NODES)
    cluster.submit(spec(nodes=2))
    if stage == "prepared":
        cluster.prepare(task(1, 1, 0))
    if stage in {"running", "stopping"}:
        cluster.run_gang(1)
    if stage == "stopping":
        cluster.cancel(1)
    return cluster


def check_plans(turn: Turn) -> None:
    """Check names and addresses: an agent's report ends in the hosts files of other nodes."""
    for action in turn.effects:
        if isinstance(action, a.Send) and isinstance(action.command, ArrangeTask):
            for name, address in action.command.hosts:
                check_name(name)
                check_address(address)


def look(cluster: Cluster) -> None:
    """Check that every view can be made and encoded."""
    for job in cluster.state.jobs.values():
        msgspec.json.encode(job_view(cluster.state, job, cluster.now))
    for node in cluster.state.nodes.values():
        msgspec.json.encode(node_view(node, cluster.now))


@pytest.mark.parametrize("stage", ["placed", "prepared", "running", "stopping"])
@settings(max_examples=40)
@given(
    said=st.lists(
        st.tuples(st.sampled_from(NODES), REPORTS | struct(Heartbeat)), min_size=1, max_size=8
    )
)
def test_any_reports_in_any_phase(
    stage: str, said: list[tuple[str, TaskReport | Heartbeat]]
) -> None:
    cluster = made(stage)
    for name, report in said:
        session = cluster.state.nodes[NodeName(name)].session
        assert session is not None
        check_plans(cluster.turn(s.ReportReceived(session, report)))
        look(cluster)
    cluster.beat(60)
    look(cluster)


def test_a_node_that_says_it_has_started_beside_one_that_never_was_ready() -> None:
    cluster = made("prepared")
    cluster.report(task(1, 1, 1), TaskState.CLEANED)
    cluster.report(task(1, 1, 0), TaskState.STARTED)
    look(cluster)


def test_a_gang_of_one_that_is_ready_and_has_started_at_once_starts_once() -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(nodes=1))
    cluster.report(task(1, 1, 0), TaskState.STARTED, prepared=prepared())
    assert cluster.shown(1) is JobState.RUNNING
    look(cluster)


@pytest.mark.parametrize("gpus", [10**9, 10**400, -(10**9)])
def test_a_number_of_gpus_that_no_node_has_sizes_nothing(gpus: int) -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec(nodes=1, launcher=Launcher.PROCESSES))
    absurd = msgspec.structs.replace(prepared(), gpus=gpus)
    cluster.report(task(1, 1, 0), TaskState.STARTED, prepared=absurd)
    look(cluster)


@settings(max_examples=60)
@given(
    hello=struct(
        Hello,
        node=st.sampled_from([NodeName(x) for x in ("n0", "n2", "N", "", "a b", "x" * 300)]),
        observed=struct(
            NodeObservations,
            inventory=struct(
                Inventory,
                address=st.sampled_from(["10.0.0.1", "::1", "", "x"]),
                interfaces=st.just(()) | of_type(tuple[int, ...]).map(lambda _: ()),
            ),
        ),
        tasks=st.lists(REPORTS, max_size=3).map(tuple),
    )
)
def test_any_hello(hello: Hello) -> None:
    cluster = made("running")
    before = {name: (n.agent_id, n.link) for name, n in cluster.state.nodes.items()}
    turn = cluster.turn(s.HelloReceived(SessionId(99), hello, "10.9.9.9"))
    assert turn.effects, "it is answered"
    others = {name: seen for name, seen in before.items() if name != hello.node}
    for name, seen in others.items():
        node = cluster.state.nodes[name]
        assert (node.agent_id, node.link) == seen
    look(cluster)
    cluster.beat(30)
    look(cluster)


@pytest.mark.parametrize("stage", ["placed", "prepared", "running", "stopping"])
@settings(max_examples=40)
@given(
    said=struct(
        Hello,
        node=st.just(NodeName("n0")),
        agent_id=st.just("id-n0"),
        boot_id=st.just("boot-n0"),
        version=st.just("0.1.0"),
        observed=struct(
            NodeObservations,
            inventory=st.just(INVENTORY),
            hardware=st.lists(EVENTS, max_size=2).map(tuple),
        ),
        protocol_min=st.just(1),
        protocol_max=st.just(PROTOCOL_MAX),
        instance=st.just(""),
        cluster=st.just(""),
        epoch_seen=st.just(0),
        tasks=st.lists(REPORTS, max_size=3).map(tuple),
    )
)
def test_any_return_of_a_node_that_is_known(stage: str, said: Hello) -> None:
    cluster = made(stage)
    turn = cluster.turn(s.HelloReceived(SessionId(99), said, "127.0.0.1"))
    assert any(isinstance(it, a.Send) for it in turn.effects), "it is let in"
    look(cluster)
    cluster.beat(30)
    look(cluster)


def test_a_hello_that_names_a_task_twice_counts_once() -> None:
    cluster = made("placed")
    ready = TaskReport(task(1, 1, 0), TaskState.PREPARED, prepared=prepared())
    who = (NodeName("n0"), "id-n0", "boot-n0", "0.1.0", OBSERVED)
    hello = Hello(*who, (ready, ready), protocol_max=PROTOCOL_MAX)
    cluster.turn(s.HelloReceived(SessionId(99), hello, "127.0.0.1"))
    assert cluster.job(1).attempts[0].tasks[0].state is TaskState.PREPARED
