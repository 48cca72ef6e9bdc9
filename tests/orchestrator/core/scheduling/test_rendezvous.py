"""The network of a gang on its way through the coordinator: reports, plan, refusal, other nodes."""

from __future__ import annotations

import msgspec
import pytest

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import ArrangeTask, Refusal, RendezvousCheck, TaskReport
from muster.protocol.observations.interfaces import Endpoint, Interface, InterfaceKind
from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts import cluster as cf
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.effects import Declined
from orchestrator.core.model.state import State
from orchestrator.core.views.display import job_view
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task


def eth(name: str, address: str, **more: object) -> tuple[Interface, ...]:
    fields = {"name": name, "kind": InterfaceKind.ETHERNET, "addresses": (address,), **more}
    return (msgspec.convert(fields, Interface),)


def joined(*addresses: str, networks: tuple[str, ...] = ()) -> Cluster:
    """n1, n2, ... with one interface each: e1, e2, ..."""
    cluster = Cluster()
    cluster.state.networks = networks
    for number, address in enumerate(addresses, 1):
        cluster.join(f"n{number}", interfaces=eth(f"e{number}", address), machine_id=f"m{number}")
    return cluster


def plan(cluster: Cluster, node: str) -> ArrangeTask:
    found = cluster.commands(node, ArrangeTask)[-1]
    assert isinstance(found, ArrangeTask)
    return found


def test_everything_that_a_node_gets_is_of_the_network_chosen() -> None:
    cluster = joined("10.0.0.1/24", "10.0.0.2/24")
    cluster.submit(spec(nodes=2))
    for rank in (0, 1):
        # An agent reports the address of its link to the coordinator, which the gang must not use.
        cluster.prepare(task(1, 1, rank), address=f"192.0.2.{rank}", interface="mgmt")
    worker = plan(cluster, "n2")
    words = list(worker.argv)
    assert words[words.index("--master-addr") + 1] == "10.0.0.1"
    assert words[words.index("--local-addr") + 1] == "10.0.0.2"
    assert worker.hosts == (("n1", "10.0.0.1"), ("n2", "10.0.0.2"))
    assert worker.env["MASTER_ADDR"] == worker.env["MUSTER_MASTER_ADDR"] == "10.0.0.1"
    assert worker.env["MUSTER_NODE_IPS"] == "10.0.0.1\n10.0.0.2"
    assert worker.env["NCCL_SOCKET_IFNAME"] == "=e2"
    assert worker.env["GLOO_SOCKET_IFNAME"] == "e2"
    assert plan(cluster, "n1").env["GLOO_SOCKET_IFNAME"] == "e1"
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.attempts[0].network == (
        "10.0.0.0/24 on e1, e2 (Ethernet), the best that all 2 nodes share"
    )
    assert view.attempts[0].master == "10.0.0.1:20000"


def test_an_ipv6_address_is_shown_as_in_a_url() -> None:
    cluster = joined("fd00::1/64")
    cluster.submit(spec())
    cluster.prepare(task(1, 1, 0))
    assert plan(cluster, "n1").env["MASTER_ADDR"] == "fd00::1"
    view = job_view(cluster.state, cluster.job(1), cluster.now)
    assert view.attempts[0].master == "[fd00::1]:20000"


def test_a_job_is_refused_whose_nodes_can_never_meet() -> None:
    cluster = joined("10.0.0.1/24", "10.9.0.2/24")
    refused = cluster.submit(spec(nodes=2))
    assert isinstance(refused, Declined)
    assert refused.code == "unsatisfiable"
    assert "n1 has e1 10.0.0.1/24; n2 has e2 10.9.0.2/24" in refused.text


def test_an_operators_network_makes_them_meet() -> None:
    cluster = joined("10.0.0.1/24", "10.9.0.2/24", networks=("10.0.0.0/8",))
    cluster.submit(spec(nodes=2))
    for rank in (0, 1):
        cluster.prepare(task(1, 1, rank))
    assert plan(cluster, "n1").hosts == (("n1", "10.0.0.1"), ("n2", "10.9.0.2"))


def test_a_gang_is_placed_on_nodes_that_share_a_network() -> None:
    cluster = joined("10.0.0.1/24", "10.9.0.2/24", "10.0.0.3/24")
    cluster.submit(spec(nodes=2))
    assert [t.node for t in cluster.job(1).attempts[0].tasks] == ["n1", "n3"]


def test_free_nodes_that_share_no_network_wait_for_one_that_does() -> None:
    cluster = joined("10.0.0.1/24", "10.9.0.2/24", "10.0.0.3/24")
    cluster.submit(spec(nodes=1))
    cluster.submit(spec(nodes=2))
    view = job_view(cluster.state, cluster.job(2), cluster.now)
    assert "2 nodes that share a network" in view.reason.text


def test_a_network_that_has_gone_meanwhile_is_refused_and_other_nodes_are_tried() -> None:
    cluster = joined("10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24")
    cluster.submit(spec(nodes=2))
    cluster.prepare(task(1, 1, 0))
    cluster.rewire("n2", eth("e2", "10.9.0.2/24"))
    cluster.prepare(task(1, 1, 1))
    attempt = cluster.job(1).attempts[0]
    assert attempt.cause is not None
    assert attempt.cause.code is CauseCode.ARRANGE_FAILED
    assert attempt.cause.outcome is Outcome.INFRA
    assert "n2 has e2 10.9.0.2/24" in attempt.cause.text
    assert not cluster.commands("n1", ArrangeTask)
    for rank in (0, 1):
        cluster.clean(task(1, 1, rank))
    cluster.beat(60.0)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n1", "n3"]


def test_the_one_odd_node_of_three_is_named_and_left_out() -> None:
    cluster = joined("10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24")
    cluster.submit(spec(nodes=3))
    for rank in (0, 1):
        cluster.prepare(task(1, 1, rank))
    cluster.rewire("n3", eth("e3", "10.9.0.2/24"))
    cluster.prepare(task(1, 1, 2))
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.node, cause.node_fault) == ("n3", True)


def test_a_report_on_a_network_is_kept_once() -> None:
    cluster = joined("10.0.0.1/24")
    cluster.submit(spec())
    changed = eth("e1", "10.0.0.9/24")
    for _ in range(2):
        cluster.rewire("n1", changed)
    cluster.prepare(task(1, 1, 0))
    assert cluster.state.nodes[NodeName("n1")].inventory.interfaces == changed
    assert sum(isinstance(fact, cf.NodeRegistered) for fact in cluster.facts) == 2
    assert plan(cluster, "n1").env["MASTER_ADDR"] == "10.0.0.9"


@pytest.mark.parametrize(
    "bad", [eth("e0\nX=1", "10.0.0.1/24"), eth("e0", "10.0.0.1/24\n10.0.0.2 evil")]
)
def test_an_agent_with_words_for_a_hosts_file_in_its_report_is_refused(
    bad: tuple[Interface, ...],
) -> None:
    cluster = Cluster()
    cluster.join("n1", interfaces=bad)
    assert cluster.refused == ["bad_network"]
    cluster.join("n1", interfaces=eth("e0", "10.0.0.1/24"))
    cluster.submit(spec())
    cluster.rewire("n1", bad)
    assert cluster.state.nodes[NodeName("n1")].inventory.interfaces == eth("e0", "10.0.0.1/24")


def test_a_journal_from_before_there_were_endpoints_still_replays() -> None:
    old = Cluster()
    old.join("n1", "n2")
    old.submit(spec(nodes=2))
    for rank in (0, 1):
        old.prepare(task(1, 1, rank), address=f"10.0.0.{rank + 1}", interface="eth0")
    state = State()
    as_it_was = f.AttemptArranged(JobId(1), 1, "10.0.0.1", 20000)
    for fact in old.facts:
        apply(state, as_it_was if isinstance(fact, f.AttemptArranged) else fact, 0.0)
    assert state.jobs[JobId(1)].attempts[0].endpoints == ()
    resumed = Cluster(state=state)
    tasks = tuple(
        TaskReport(task(1, 1, rank), TaskState.PREPARED, prepared=prepared()) for rank in (0, 1)
    )
    resumed.join("n1", tasks=tasks[:1])
    resumed.join("n2", tasks=tasks[1:])
    worker = plan(resumed, "n2")
    assert worker.env["MUSTER_NODE_IPS"] == "10.0.0.1\n10.0.0.2"
    assert worker.env["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_the_networks_of_the_configuration_are_of_the_epoch() -> None:
    state = State()
    apply(state, cf.EpochStarted(1, "here", ("ib0",)), 0.0)
    first = state.networks
    apply(state, cf.EpochStarted(2, "here"), 0.0)
    assert (first, state.networks) == (("ib0",), ())


def test_endpoints_are_in_the_journal() -> None:
    cluster = joined("10.0.0.1/24", "10.0.0.2/24")
    cluster.submit(spec(nodes=2))
    for rank in (0, 1):
        cluster.prepare(task(1, 1, rank))
    (fact,) = [fact for fact in cluster.facts if isinstance(fact, f.AttemptArranged)]
    assert fact.endpoints == (
        Endpoint("n1", "10.0.0.1", "e1"),
        Endpoint("n2", "10.0.0.2", "e2"),
    )


def arranging(size: int, spare: int = 0) -> Cluster:
    """A gang that stands ready, on nodes n1 and so on, and others beside it."""
    cluster = joined(*(f"10.0.0.{n}/24" for n in range(1, size + spare + 1)))
    cluster.submit(spec(nodes=size))
    for rank in range(size):
        cluster.prepare(task(1, 1, rank))
    return cluster


def refuse(cluster: Cluster, rank: int, code: str) -> None:
    no = Refusal(code, f"{code} as scripted", node_fault=code == RefusalCode.UNREACHABLE)
    cluster.report(task(1, 1, rank), TaskState.PREPARED, prepared=prepared(), refusal=no)


def roll_back(cluster: Cluster, size: int) -> Cause:
    cause = cluster.job(1).attempts[-1].cause
    assert cause is not None, "the gang is not stopped"
    number = len(cluster.job(1).attempts)
    for rank in range(size):
        cluster.clean(task(1, number, rank))
    cluster.beat(40.0)
    return cause


def test_all_but_the_launcher_are_to_reach_it_from_their_own_addresses() -> None:
    cluster = arranging(2)
    assert plan(cluster, "n1").rendezvous == RendezvousCheck(
        task(1, 1, 0), "n1", "10.0.0.1", 20000, "10.0.0.1"
    )
    assert plan(cluster, "n2").rendezvous == RendezvousCheck(
        task(1, 1, 0), "n1", "10.0.0.1", 20000, "10.0.0.2"
    )


def test_a_gang_of_one_has_nobody_to_meet() -> None:
    assert plan(arranging(1), "n1").rendezvous is None


def test_a_node_that_returns_after_the_gates_opened_proves_nothing() -> None:
    cluster = arranging(2)
    for rank in (0, 1):
        cluster.report(task(1, 1, rank), TaskState.ARRANGED, prepared=prepared())
    again = TaskReport(task(1, 1, 1), TaskState.PREPARED, prepared=prepared())
    cluster.leave("n2")
    cluster.join("n2", tasks=(again,), interfaces=eth("e2", "10.0.0.2/24"), machine_id="m2")
    assert plan(cluster, "n2").rendezvous is None


def test_a_worker_that_does_not_reach_the_launcher_is_left_out() -> None:
    cluster = arranging(3, spare=1)
    cluster.report(task(1, 1, 0), TaskState.ARRANGED, prepared=prepared())
    refuse(cluster, 2, RefusalCode.UNREACHABLE)
    assert cluster.job(1).attempts[0].cause is None
    cluster.report(task(1, 1, 1), TaskState.ARRANGED, prepared=prepared())
    cause = roll_back(cluster, 3)
    assert (cause.node, cause.refusal) == ("n3", RefusalCode.UNREACHABLE)
    assert cause.text == "n3 refused: launcher_unreachable as scripted"
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n1", "n2", "n4"]


def test_a_launcher_that_none_reaches_is_left_out() -> None:
    cluster = arranging(3, spare=1)
    for rank in (1, 2):
        refuse(cluster, rank, RefusalCode.UNREACHABLE)
    cause = roll_back(cluster, 3)
    assert (cause.node, cause.node_fault) == ("n1", True)
    assert cause.text == (
        "none of the gang reaches its launcher; n2 says: launcher_unreachable as scripted"
    )
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n2", "n3", "n4"]


def test_both_nodes_of_an_unconnected_pair_are_left_out() -> None:
    cluster = arranging(2, spare=2)
    refuse(cluster, 1, RefusalCode.UNREACHABLE)
    roll_back(cluster, 2)
    assert [t.node for t in cluster.job(1).attempts[1].tasks] == ["n3", "n4"]


def test_a_bad_launcher_among_three_is_found_by_pairs() -> None:
    cluster = arranging(2, spare=1)
    tried = []
    for number in (1, 2, 3):
        nodes = [t.node for t in cluster.job(1).attempts[-1].tasks]
        tried.append(nodes)
        if "n1" not in nodes:
            break
        if number > 1:
            for rank in (0, 1):
                cluster.prepare(task(1, number, rank))
        no = Refusal(RefusalCode.UNREACHABLE, "as scripted", node_fault=True)
        cluster.report(task(1, number, 1), TaskState.PREPARED, prepared=prepared(), refusal=no)
        roll_back(cluster, 2)
    assert tried == [["n1", "n2"], ["n1", "n3"], ["n2", "n3"]]


def test_a_worker_that_says_nothing_is_not_waited_for() -> None:
    cluster = arranging(3)
    refuse(cluster, 1, RefusalCode.UNREACHABLE)
    cluster.pass_time(1.5)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert cause.node == "n1"


def test_a_port_that_was_taken_costs_the_job_nothing_and_nobody_is_left_out() -> None:
    cluster = arranging(2, spare=2)
    refuse(cluster, 0, RefusalCode.PORT_TAKEN)
    cause = roll_back(cluster, 2)
    assert cause.text == "n1 refused: port_taken as scripted"
    job = cluster.job(1)
    assert [t.node for t in job.attempts[1].tasks] == ["n1", "n2"]
    assert (job.infra_used, job.user_used, job.avoid) == (0, 0, frozenset())


def test_a_port_that_was_taken_at_the_last_instant_costs_nothing_either() -> None:
    cluster = arranging(1)
    cluster.report(task(1, 1, 0), TaskState.ARRANGED, prepared=prepared())
    no = Refusal(RefusalCode.PORT_TAKEN, "port 20000 is taken")
    cluster.report(
        task(1, 1, 0), TaskState.EXITED, prepared=prepared(), refusal=no, exit=ExitStatus(1)
    )
    cause = roll_back(cluster, 1)
    assert (cause.code, cause.outcome) == (CauseCode.START_FAILED, Outcome.INFRA)
    assert len(cluster.job(1).attempts) == 2
    assert (cluster.job(1).infra_used, cluster.job(1).user_used) == (0, 0)


def test_a_disk_that_filled_at_the_last_instant_is_its_nodes_fault() -> None:
    cluster = arranging(1, spare=1)
    cluster.report(task(1, 1, 0), TaskState.ARRANGED, prepared=prepared())
    no = Refusal(RefusalCode.NO_SPACE, "The log of rank 0 cannot be made")
    cluster.report(
        task(1, 1, 0), TaskState.EXITED, prepared=prepared(), refusal=no, exit=ExitStatus(126)
    )
    cause = roll_back(cluster, 1)
    assert (cause.code, cause.outcome) == (CauseCode.START_FAILED, Outcome.INFRA)
    first, second = cluster.job(1).attempts
    assert second.tasks[0].node != first.tasks[0].node
    assert cluster.job(1).infra_used == 1


def test_ports_that_are_always_taken_end_a_job_at_last() -> None:
    cluster = arranging(1)
    job = cluster.job(1)
    while job.cause is None:
        number = len(job.attempts)
        if number > 1:
            cluster.prepare(task(1, number, 0))
        no = Refusal(RefusalCode.PORT_TAKEN, "port 20000 is taken")
        cluster.report(task(1, number, 0), TaskState.PREPARED, prepared=prepared(), refusal=no)
        cluster.clean(task(1, number, 0))
        cluster.beat(40.0)
    assert (len(job.attempts), job.infra_used) == (9, 3)
    assert job.cause.exit_code == 122


def test_a_node_that_gets_its_network_back_is_used_without_being_asked() -> None:
    cluster = joined("10.0.0.1/24", "10.0.0.2/24")
    cluster.submit(spec(nodes=2))
    cluster.prepare(task(1, 1, 0))
    cluster.rewire("n2", eth("e2", "10.9.0.2/24"))
    cluster.prepare(task(1, 1, 1))
    roll_back(cluster, 2)
    assert len(cluster.job(1).attempts) == 1
    for _ in range(2):
        cluster.rewire("n2", eth("e2", "10.0.0.2/24"))
    assert len(cluster.job(1).attempts) == 2
    assert sum(isinstance(fact, cf.NodeRegistered) for fact in cluster.facts) == 4
