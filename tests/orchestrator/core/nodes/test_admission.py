"""Two agents of one name, and clocks that differ: reported, and no job ends because of it."""

from __future__ import annotations

import msgspec
import pytest

from muster.protocol.ids import NodeName, SessionId
from muster.protocol.link.control_channel import (
    Heartbeat,
    Hello,
    NodeObservations,
    Refused,
    StopTask,
    TaskReport,
)
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.states import JobState, TaskState
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Node
from orchestrator.core.views.display import job_view, node_view
from tests.orchestrator.core.playbook import INVENTORY, OBSERVED, Cluster, prepared, spec, task

N0 = NodeName("n0")
OTHER = SessionId(77)
DAY = 86400.0


def hello(cluster: Cluster, **changes: object) -> Hello:
    """Return the hello of n0's agent on a new connection, with `changes`."""
    node = cluster.state.nodes[N0]
    same = Hello(N0, node.agent_id, node.boot_id, node.version, NodeObservations(node.inventory))
    return msgspec.structs.replace(same, **{"instance": "second", **changes})


def running() -> Cluster:
    cluster = Cluster()
    cluster.join("n0")
    cluster.turn(s.HelloReceived(SessionId(50), hello(cluster, instance="first"), "10.0.0.1"))
    cluster.submit(spec())
    cluster.run_gang(1)
    return cluster


def answer(cluster: Cluster, said: Hello, peer: str = "10.9.9.9") -> Refused | None:
    turn = cluster.turn(s.HelloReceived(OTHER, said, peer))
    refused = [x.refused for x in turn.effects if isinstance(x, a.RefuseSession)]
    return refused[0] if refused else None


def node_of(cluster: Cluster) -> Node:
    return cluster.state.nodes[N0]


def shown(cluster: Cluster) -> tuple[str, ...]:
    return node_view(node_of(cluster), cluster.now).warnings


@pytest.mark.parametrize(
    "copy",
    [
        {"agent_id": "another"},
        {"boot_id": "another"},
        {
            "boot_id": "another",
            "observed": NodeObservations(msgspec.structs.replace(INVENTORY, machine_id="m9")),
        },
    ],
)
def test_a_second_agent_is_refused_and_the_first_keeps_its_job(copy: dict[str, object]) -> None:
    cluster = running()
    refused = answer(cluster, hello(cluster, **copy))
    assert refused is not None
    assert refused.code.startswith("duplicate_")
    assert not refused.soon
    assert "10.0.0.1" in refused.text
    assert "10.9.9.9" in refused.text
    assert node_of(cluster).link is LinkState.CONNECTED
    assert cluster.shown(1) is JobState.RUNNING
    (warning,) = shown(cluster)
    assert "another agent at 10.9.9.9 also has the name n0" in warning
    assert warning in node_view(node_of(cluster), cluster.now).state.text
    cluster.beat(120)
    assert shown(cluster) == ()


def test_a_copy_on_another_machine_waits_until_the_first_is_declared_lost() -> None:
    cluster = running()
    cluster.leave("n0")
    elsewhere = msgspec.structs.replace(node_of(cluster).inventory, machine_id="m9")
    copy = hello(cluster, boot_id="another", observed=NodeObservations(elsewhere))
    refused = answer(cluster, copy)
    assert refused is not None
    assert refused.code == "duplicate_identity"
    assert refused.text.endswith("if the first is gone for good: muster node lost n0")
    cluster.pass_time(86_400.0)
    assert answer(cluster, copy) is not None
    cluster.declare_lost("n0")
    assert answer(cluster, copy) is None


def test_a_machine_that_booted_again_is_let_in_at_once() -> None:
    cluster = running()
    cluster.leave("n0")
    assert answer(cluster, hello(cluster, boot_id="another")) is None


H100 = GpuDevice("0000:1b:00.0", "GPU-1", "H100")
SHARED = {"shared_host": True}


@pytest.mark.parametrize(
    ("boot", "has", "expected"),
    [
        ("boot-n0", {}, "are agents of one machine"),
        ("boot-n0", SHARED, "are agents of one machine"),
        ("another", {"gpus": 1, "devices": (H100,)}, "that both have GPU GPU-1"),
        ("another", {}, ""),  # though its machine id is the same: an image was copied
    ],
)
def test_a_second_agent_of_one_machine_is_refused_and_both_are_named(
    boot: str, has: dict[str, object], expected: str
) -> None:
    cluster = Cluster()
    cluster.join("n0", gpus=1, devices=(H100,))
    second = Hello(
        NodeName("n1"),
        "id-n1",
        boot,
        "0.1.0",
        NodeObservations(msgspec.structs.replace(INVENTORY, **has)),
    )
    refused = answer(cluster, second)
    if not expected:
        assert refused is None
        return
    assert refused is not None
    assert refused.code == "second_agent"
    assert "n0 at 127.0.0.1 and n1 at 10.9.9.9" in refused.text
    assert expected in refused.text
    assert "shared_host: true" in refused.text
    assert N0 in cluster.state.nodes
    assert NodeName("n1") not in cluster.state.nodes
    cluster.leave("n0")
    assert answer(cluster, second) is None, "the first has gone"


def test_an_agent_that_was_given_another_name_does_not_end_what_it_runs() -> None:
    cluster = running()
    tasks = (TaskReport(task(1, 1, 0), TaskState.STARTED, prepared=prepared()),)
    renamed = hello(cluster, node=NodeName("gpu-01"), tasks=tasks)
    before = hello(cluster, tasks=tasks)
    cluster.leave("n0")
    refused = answer(cluster, renamed)
    assert refused is not None
    assert refused.code == "renamed"
    assert "was n0 and still has task 1.1.0" in refused.text
    assert "`node: n0`" in refused.text
    assert NodeName("gpu-01") not in cluster.state.nodes
    assert answer(cluster, before) is None
    assert cluster.shown(1) is JobState.RUNNING
    cluster.leave("n0")
    cluster.pass_time(86_400.0)
    assert answer(cluster, renamed) is not None
    cluster.declare_lost("n0")
    assert answer(cluster, renamed) is None, "its task is over, and is stopped"
    assert cluster.commands("gpu-01", StopTask)


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": ()},
        {"boot_id": "another"},
        {"tasks": (TaskReport(task(1, 1, 0), TaskState.CLEANED),)},
        {"agent_id": "another"},
    ],
)
def test_an_agent_with_another_name_and_nothing_of_a_job_is_let_in(
    changes: dict[str, object],
) -> None:
    cluster = running()
    tasks = (TaskReport(task(1, 1, 0), TaskState.STARTED, prepared=prepared()),)
    renamed = hello(cluster, **{"node": NodeName("gpu-01"), "tasks": tasks, **changes})
    cluster.leave("n0")
    assert answer(cluster, renamed) is None


def test_agents_that_share_a_machine_are_let_in() -> None:
    cluster = Cluster()
    cluster.join("n0", shared_host=True)
    both = msgspec.structs.replace(INVENTORY, shared_host=True)
    assert (
        answer(cluster, Hello(NodeName("n1"), "id-n1", "boot-n0", "0.1.0", NodeObservations(both)))
        is None
    )


def test_a_restarted_agent_is_let_in_when_its_last_connection_has_ended() -> None:
    cluster = running()
    tasks = (TaskReport(task(1, 1, 0), TaskState.STARTED, prepared=prepared()),)
    again = hello(cluster, tasks=tasks)
    refused = answer(cluster, again, node_of(cluster).peer)
    assert refused is not None
    assert refused.soon
    assert shown(cluster) == (), "no news for an operator"
    # From elsewhere, it may be a copy of the whole state folder that keeps the node out.
    assert answer(cluster, again) is not None
    assert "another agent at 10.9.9.9 also has the name n0" in shown(cluster)[0]
    cluster.leave("n0")
    assert answer(cluster, again) is None
    assert cluster.shown(1) is JobState.RUNNING


def test_the_same_life_of_an_agent_takes_over_from_its_last_connection() -> None:
    cluster = running()
    tasks = (TaskReport(task(1, 1, 0), TaskState.STARTED, prepared=prepared()),)
    assert answer(cluster, hello(cluster, instance="first", tasks=tasks)) is None
    assert cluster.shown(1) is JobState.RUNNING


@pytest.mark.parametrize(
    ("off", "said"),
    [
        (DAY, "1d ahead of the coordinator's"),
        (-DAY, "1d behind the coordinator's"),
        (3661.0, "1h1m1s ahead of"),
        (9.0, None),
        (1e12, "ahead of"),
        (-1e12, "behind"),
    ],
)
def test_a_clock_that_differs_is_reported_and_ends_nothing(off: float, said: str | None) -> None:
    cluster = running()
    session = node_of(cluster).session
    assert session is not None
    for _ in range(3):
        beat = Heartbeat(cluster.mono, wall_s=cluster.now.wall + off)
        cluster.turn(s.ReportReceived(session, beat))
    assert cluster.shown(1) is JobState.RUNNING
    warnings = shown(cluster)
    (seen,) = job_view(cluster.state, cluster.job(1), cluster.now).attempts[0].tasks
    assert bool(warnings) is (said is not None)
    if said is not None:
        assert said in warnings[0]
        assert warnings[0] in seen.warnings
    # Once its time is set nothing is said any more.
    beat = Heartbeat(cluster.mono, wall_s=cluster.now.wall + 0.2)
    cluster.turn(s.ReportReceived(session, beat))
    assert shown(cluster) == ()


HEAD = Limits(own_names=frozenset({"head", "muster"}))


@pytest.mark.parametrize(
    ("name", "local", "expected"),
    [
        ("head", False, "a name of the coordinator's machine"),
        ("muster", False, "a name of the coordinator's machine"),
        ("head", True, ""),
        ("head-2", False, ""),
    ],
)
def test_only_the_coordinators_own_machine_joins_with_a_name_of_the_coordinator(
    name: str, local: bool, expected: str
) -> None:
    cluster = Cluster(limits=HEAD)
    said = Hello(NodeName(name), "id", "boot", "0.1.0", OBSERVED)
    turn = cluster.turn(s.HelloReceived(OTHER, said, "10.9.9.9", local))
    refused = [x.refused for x in turn.effects if isinstance(x, a.RefuseSession)]
    assert [it.code for it in refused] == ["bad_name"] * bool(expected)
    assert all(expected in it.text and "set `node`" in it.text for it in refused)
    assert (NodeName(name) in cluster.state.nodes) is not bool(expected)
