"""Silent nodes: gone as their neighbours report, or cut off, or neither."""

from __future__ import annotations

import random

import msgspec
import pytest

from muster.protocol.ids import NodeName, SessionId
from muster.protocol.link.control_channel import (
    Heartbeat,
    Hello,
    NodeObservations,
    RankReport,
    StopTask,
    TaskReport,
)
from muster.protocol.observations.peer_ping import ROUND_S
from muster.protocol.outcome import CauseCode, ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import Retry
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from tests.orchestrator.core.playbook import INVENTORY, Cluster, prepared, spec, task, task_report

SILENCE_S = Limits().silence_s
NAMES = ("a", "b", "c", "d")


def gang(nodes: int = 4) -> Cluster:
    """Run a gang on all nodes, each of which has an address of its own."""
    cluster = Cluster()
    for at, name in enumerate(NAMES[:nodes]):
        cluster.join(name, address=f"10.0.0.{at}", machine_id=name)
    cluster.submit(spec(nodes=nodes, retry=Retry(infra=1)))
    tasks = [it.id for it in cluster.job(1).attempts[0].tasks]
    for rank, name in enumerate(tasks):
        cluster.prepare(name, address=f"10.0.0.{rank}")
    for state in (TaskState.ARRANGED, TaskState.STARTED):
        for rank, name in enumerate(tasks):
            ready = prepared(address=f"10.0.0.{rank}")
            cluster.report(name, state, prepared=ready, listening=state is TaskState.STARTED)
    assert [it.address for it in cluster.job(1).attempts[0].endpoints] == [
        f"10.0.0.{rank}" for rank in range(nodes)
    ]
    return cluster


def beat_without(cluster: Cluster, silent: str, seconds: float) -> None:
    """Time passes in which all but one say that they live."""
    until = cluster.mono + seconds
    while cluster.mono < until:
        cluster.pass_time(min(1.0, until - cluster.mono))
        for node in cluster.state.nodes.values():
            if node.session is not None and node.name != silent:
                cluster.turn(s.ReportReceived(node.session, Heartbeat(cluster.mono)))


def accuse(cluster: Cluster, rank: int, *addresses: str) -> None:
    cluster.report(
        task(1, 1, rank), TaskState.STARTED, prepared=prepared(), listening=True, silent=addresses
    )


def phase(cluster: Cluster) -> AttemptPhase:
    return cluster.job(1).attempts[0].phase


def test_the_neighbours_word_ends_the_attempt_when_the_node_is_unknown() -> None:
    cluster = gang()
    beat_without(cluster, "c", SILENCE_S - 1)
    accuse(cluster, 1, "10.0.0.2")
    accuse(cluster, 3, "10.0.0.2")
    assert phase(cluster) is AttemptPhase.RUNNING
    beat_without(cluster, "c", 7.0)
    assert cluster.node("c").link is LinkState.SUSPECT
    assert phase(cluster) is AttemptPhase.STOPPING
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node, cause.exit_code) == (CauseCode.NODE_LOST, "c", 122)
    assert cause.text == (
        f"c was lost: it has sent nothing for {SILENCE_S:g} s, and b, d no longer get an "
        "answer from 10.0.0.2"
    )
    # The others stop, and the next attempt waits: what is on that node may still run.
    assert all(cluster.commands(name, StopTask) for name in ("a", "b", "d"))
    for rank in (0, 1, 3):
        cluster.clean(task(1, 1, rank), exit=ExitStatus(signal=15), stopped_by="stop")
    assert phase(cluster) is AttemptPhase.STOPPING
    beat_without(cluster, "c", 400.0)
    assert phase(cluster) is AttemptPhase.CLOSED


def test_the_word_may_come_after_the_silence() -> None:
    cluster = gang()
    beat_without(cluster, "c", 20.0)
    assert phase(cluster) is AttemptPhase.RUNNING
    accuse(cluster, 1, "10.0.0.2")
    assert phase(cluster) is AttemptPhase.STOPPING


def test_without_a_word_the_lease_decides() -> None:
    cluster = gang()
    beat_without(cluster, "c", 300.0)
    assert phase(cluster) is AttemptPhase.RUNNING
    beat_without(cluster, "c", 40.0)
    assert phase(cluster) is AttemptPhase.STOPPING


def test_a_word_against_a_node_that_is_heard_ends_nothing() -> None:
    cluster = gang()
    accuse(cluster, 1, "10.0.0.2")
    accuse(cluster, 3, "10.0.0.2")
    cluster.beat(600.0)
    assert phase(cluster) is AttemptPhase.RUNNING


def test_a_word_that_was_taken_back_counts_for_nothing() -> None:
    cluster = gang()
    accuse(cluster, 1, "10.0.0.2")
    accuse(cluster, 1)
    beat_without(cluster, "c", 60.0)
    assert phase(cluster) is AttemptPhase.RUNNING


def test_most_of_those_who_ask_the_first_node_must_say_so() -> None:
    cluster = gang()
    beat_without(cluster, "a", 20.0)
    accuse(cluster, 2, "10.0.0.0")
    assert phase(cluster) is AttemptPhase.RUNNING
    accuse(cluster, 3, "10.0.0.0")
    assert phase(cluster) is AttemptPhase.STOPPING


def test_an_agent_that_is_started_again_is_not_silent() -> None:
    """Its connection ends at once; it is unknown only when it has been silent for so long."""
    cluster = gang()
    accuse(cluster, 1, "10.0.0.2")
    cluster.leave("c")
    beat_without(cluster, "c", 5.0)
    assert phase(cluster) is AttemptPhase.RUNNING
    beat_without(cluster, "c", 15.0)
    assert phase(cluster) is AttemptPhase.STOPPING


def test_all_silent_at_once_are_not_all_gone() -> None:
    cluster = gang()
    for rank in range(4):
        accuse(cluster, rank, f"10.0.0.{(rank + 1) % 4}")
    cluster.pass_time(60.0)
    assert phase(cluster) is AttemptPhase.RUNNING
    assert {it.link for it in cluster.state.nodes.values()} == {LinkState.SUSPECT}


def test_a_new_coordinator_waits_before_it_believes() -> None:
    cluster = gang()
    accuse(cluster, 1, "10.0.0.2")
    after = Cluster(state=cluster.state, mono=cluster.mono)
    for at, name in enumerate(NAMES):
        if name != "c":
            said = cluster.state.task(task(1, 1, at))
            assert said is not None
            held = _report(at, ("10.0.0.2",) if name == "b" else ())
            after.join(name, tasks=(held,), address=f"10.0.0.{at}", machine_id=name)
    assert phase(after) is AttemptPhase.RUNNING
    beat_without(after, "c", SILENCE_S - 1)
    assert phase(after) is AttemptPhase.RUNNING
    beat_without(after, "c", 3.0)
    assert phase(after) is AttemptPhase.STOPPING


def _report(rank: int, silent: tuple[str, ...] = ()) -> TaskReport:
    return task_report(
        task(1, 1, rank), TaskState.STARTED, prepared=prepared(), listening=True, silent=silent
    )


def test_a_node_that_was_cut_off_counts_once_it_has_probed_again() -> None:
    """A switch was away, and with it both nodes of the gang: the first to be back says of the other
    what it has seen meanwhile."""
    cluster = parted()
    again(cluster, "a", "10.0.0.1")
    beat_without(cluster, "b", ROUND_S - 1)
    assert phase(cluster) is AttemptPhase.RUNNING
    accuse(cluster, 0)
    beat_without(cluster, "b", 60.0)
    assert phase(cluster) is AttemptPhase.RUNNING
    again(cluster, "b")
    cluster.beat(600.0)
    assert phase(cluster) is AttemptPhase.RUNNING


def test_a_node_that_does_not_answer_then_either_is_gone() -> None:
    cluster = parted()
    again(cluster, "a", "10.0.0.1")
    beat_without(cluster, "b", ROUND_S)
    assert phase(cluster) is AttemptPhase.STOPPING


def test_a_word_that_was_known_before_the_witness_was_away_counts_again() -> None:
    """Nothing that it says is news then."""
    cluster = parted("10.0.0.1")
    again(cluster, "a", "10.0.0.1")
    assert phase(cluster) is AttemptPhase.RUNNING
    beat_without(cluster, "b", ROUND_S)
    assert phase(cluster) is AttemptPhase.STOPPING


def test_a_single_node_that_was_not_cut_off_is_enough() -> None:
    cluster = gang()
    beat_without(cluster, "c", 20.0)
    cluster.leave("b")
    again(cluster, "b")
    accuse(cluster, 3, "10.0.0.2")
    assert phase(cluster) is AttemptPhase.STOPPING


def parted(*silent: str) -> Cluster:
    """Make a silent gang of two, and other nodes that are connected."""
    cluster = gang(2)
    cluster.join("x", "y", "z")
    if silent:
        accuse(cluster, 0, *silent)
    until = cluster.mono + 20.0
    while cluster.mono < until:
        cluster.pass_time(1.0)
        for name in ("x", "y", "z"):
            session = cluster.node(name).session
            assert session is not None
            cluster.turn(s.ReportReceived(session, Heartbeat(cluster.mono)))
    assert {cluster.node(name).link for name in ("a", "b")} == {LinkState.SUSPECT}
    return cluster


def again(cluster: Cluster, name: str, *silent: str) -> None:
    """Its agent is back, with all that it had to say."""
    rank = NAMES.index(name)
    held = _report(rank, silent)
    cluster.join(name, tasks=(held,), address=f"10.0.0.{rank}", machine_id=name)


def test_a_rank_that_lost_a_silent_peer_is_not_to_blame() -> None:
    cluster = gang()
    beat_without(cluster, "c", 20.0)
    how = ExitStatus(1)
    error = "RuntimeError: Connection closed by peer [10.0.0.2]:4711"
    ranks = (RankReport(1, exit=how, error=error),)
    cluster.report(task(1, 1, 1), TaskState.EXITED, prepared=prepared(), exit=how, ranks=ranks)
    beat_without(cluster, "c", 1.0)
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node, cause.exit_code) == (CauseCode.NODE_LOST, "c", 122)
    assert cause.text.startswith("c was lost: it has sent nothing, and rank 1 on b exited")


def test_a_node_that_comes_back_with_another_boot_has_lost_its_part_at_once() -> None:
    cluster = gang()
    beat_without(cluster, "c", 20.0)
    described = msgspec.structs.replace(INVENTORY, address="10.0.0.2", machine_id="c")
    hello = Hello(NodeName("c"), "id-c", "another boot", "0.1.0", NodeObservations(described))
    cluster.turn(s.HelloReceived(SessionId(99), hello, "10.0.0.2"))
    assert phase(cluster) is AttemptPhase.STOPPING
    cause = cluster.job(1).attempts[0].cause
    assert cause is not None
    assert (cause.code, cause.node) == (CauseCode.NODE_LOST, "c")


@pytest.mark.parametrize("seed", range(5))
def test_no_false_alarm_in_an_hour_of_loss_and_stalls(seed: int) -> None:
    """Heartbeats go by TCP: what is lost comes later. One in a hundred is lost again and again, and
    each may meet a stall of half a second."""
    cluster, chance = gang(), random.Random(seed)
    sessions = {node.name: node.session for node in cluster.state.nodes.values()}
    due = sorted(
        (5.0 * beat + offset + delay(chance), name)
        for name, offset in zip(sessions, (0.0, 1.1, 2.2, 3.3), strict=True)
        for beat in range(720)
    )
    begun = cluster.mono
    for at, name in due:
        cluster.pass_time(max(0.0, begun + at - cluster.mono))
        session = sessions[name]
        assert session is not None
        cluster.turn(s.ReportReceived(session, Heartbeat(cluster.mono)))
        assert {it.link for it in cluster.state.nodes.values()} == {LinkState.CONNECTED}
    assert phase(cluster) is AttemptPhase.RUNNING


def delay(chance: random.Random) -> float:
    late, again_s = 0.0, 0.2
    while chance.random() < 0.01:
        late, again_s = late + again_s, 2 * again_s
    return late + (0.5 if chance.random() < 0.1 else 0.0)
