"""Whatever an agent says of its tasks the core judges: if it raised, the process would end."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.protocol.hosts import check_address, check_name
from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.messages import ArrangeTask, Heartbeat, Hello, Inventory, TaskReport
from muster.protocol.states import TaskState
from orchestrator.core import actions as a
from orchestrator.core import stimuli as s
from orchestrator.core.display import job_view, node_view
from orchestrator.core.turn import Turn
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task
from tests.strategies import of_type, struct

NODES = ("n0", "n1")
IDS = st.sampled_from([TaskId(x) for x in ("1.1.0", "1.1.1", "1.1.2", "1.2.0", "2.1.0", "x", "")])
REPORTS = struct(
    TaskReport, task=IDS, prepared=st.none() | st.just(prepared()) | of_type(type(prepared()))
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
    """What one agent says ends in the hosts files of others."""
    for action in turn.actions:
        if isinstance(action, a.Send) and isinstance(action.command, ArrangeTask):
            for name, address in action.command.hosts:
                check_name(name)
                check_address(address)


def look(cluster: Cluster) -> None:
    """What a user sees can always be shown, and sent."""
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


@settings(max_examples=60)
@given(
    hello=struct(
        Hello,
        node=st.sampled_from([NodeName(x) for x in ("n0", "n2", "N", "", "a b", "x" * 300)]),
        inventory=struct(
            Inventory,
            address=st.sampled_from(["10.0.0.1", "::1", "", "x"]),
            interfaces=st.just(()) | of_type(tuple[int, ...]).map(lambda _: ()),
        ),
        tasks=st.lists(REPORTS, max_size=3).map(tuple),
    )
)
def test_any_hello(hello: Hello) -> None:
    cluster = made("running")
    before = {name: (n.agent_id, n.link) for name, n in cluster.state.nodes.items()}
    turn = cluster.turn(s.HelloReceived(SessionId(99), hello, "10.9.9.9"))
    assert turn.actions, "it is answered"
    others = {name: seen for name, seen in before.items() if name != hello.node}
    for name, seen in others.items():
        node = cluster.state.nodes[name]
        assert (node.agent_id, node.link) == seen
    look(cluster)
    cluster.beat(30)
    look(cluster)
