"""Agents of a gang that vouch for each other: who vouches, who is believed, and for how long."""

from __future__ import annotations

from dataclasses import replace as with_fields

import msgspec
import pytest
from msgspec.structs import replace

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.record import TaskRecord
from agent.core.shim_protocol import ShimExit, ShimLease, ShimPhase, ShimStatus
from agent.core.state import State
from agent.core.vouching import DATAGRAM_BYTES_MAX, answer, vouched
from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link import control_channel as m
from muster.protocol.link.terms import Member, Terms
from tests.agent.core.playbook import ARRANGE, IDENTITY, OBSERVED, PATHS, Agent, sent_to_shim

TASKS = tuple(TaskId(f"1.1.{rank}") for rank in range(3))
MEMBERS = tuple(Member(task, f"10.0.0.{rank}", 7079) for rank, task in enumerate(TASKS))
KEY = "11" * 32
LEASE_S = 300.0
PLAN = replace(ARRANGE, key=KEY, terms=Terms(1, members=MEMBERS))


def member(rank: int, *, plan: m.ArrangeTask = PLAN, cluster: str = "c1", life: int = 1) -> Agent:
    """The agent of a member whose task runs."""
    task = replace(plan, task=TASKS[rank])
    identity = with_fields(IDENTITY, node=NodeName(f"n{rank}"), instance=f"{rank}-{life}")
    agent = Agent(State(identity, OBSERVED, cluster=cluster))
    record = TaskRecord("boot", cluster, task, task.terms)
    status = ShimStatus(task.task, ShimPhase.RUNNING, running_s=1.0)
    agent.turn(s.TaskFound(task.task, status, PATHS, lease_s=LEASE_S, record=record))
    return agent


def gang() -> list[Agent]:
    return [member(rank) for rank in range(3)]


def asked(agent: Agent) -> dict[str, bytes]:
    """The datagrams that the agent sends now, by address."""
    sent = agent.turn(s.TimerFired(a.Timer.VOUCHES))
    return {
        one.address: one.data
        for effect in sent
        if isinstance(effect, a.AskMembers)
        for one in effect.questions
    }


def reply(asker: Agent, data: bytes | None) -> list[a.Effect]:
    received = None if data is None else vouched(asker.state, data)
    return [] if received is None else asker.turn(received)


def leases(effects: list[a.Effect]) -> list[float]:
    return [it.ttl_s for it in sent_to_shim(effects) if isinstance(it, ShimLease)]


def test_a_task_runs_on_while_all_others_vouch_for_it() -> None:
    first, *others = gang()
    questions = asked(first)
    assert set(questions) == {"10.0.0.1", "10.0.0.2"}
    first.mono += 4.0
    one, two = (answer(it.state, questions[f"10.0.0.{at}"]) for at, it in enumerate(others, 1))
    assert not leases(reply(first, one)), "one member is missing"
    assert leases(reply(first, two)) == [LEASE_S - 4.0], "it counts from the moment of asking"


def test_a_member_that_is_silent_is_asked_again_and_a_round_never_gets_younger() -> None:
    first, second, third = gang()
    questions = asked(first)
    reply(first, answer(second.state, questions["10.0.0.1"]))
    first.mono += 2.0
    again = asked(first)
    assert again == {"10.0.0.2": questions["10.0.0.2"]}
    first.mono += 8.0
    done = reply(first, answer(third.state, again["10.0.0.2"]))
    assert leases(done) == [LEASE_S - 10.0]


def test_a_member_that_does_not_vouch_ends_the_lease() -> None:
    first, second, _ = gang()
    for _ in range(40):
        for data in asked(first).values():
            assert not leases(reply(first, answer(second.state, data)))
        first.mono += 10.0
    assert first.state.tasks[TASKS[0]].voted_at is None


def test_the_coordinator_s_answer_counts_without_a_vouch() -> None:
    first, *_ = gang()
    first.connect(TASKS[0])
    first.mono += 10.0
    assert leases(first.hear(m.HeartbeatAck(first.mono - 1.0))) == [LEASE_S - 1.0]


def test_an_older_answer_of_the_coordinator_shortens_no_lease() -> None:
    first, *others = gang()
    first.connect(TASKS[0])
    first.mono += 50.0
    questions = asked(first)
    for at, it in enumerate(others, 1):
        reply(first, answer(it.state, questions[f"10.0.0.{at}"]))
    assert leases(first.hear(m.HeartbeatAck(first.mono - 20.0))) == [LEASE_S]


# --- who vouches -------------------------------------------------------------------------------


def test_an_ended_task_still_vouches() -> None:
    first, second, _ = gang()
    ended = ShimStatus(TASKS[1], ShimPhase.CLEANED, running_s=2.0, exit=ShimExit(0))
    second.turn(s.ShimReported(TASKS[1], ended))
    assert answer(second.state, asked(first)["10.0.0.1"]) is not None


@pytest.mark.parametrize("how", ["stop", "stop of an ended task", "forget", "fence", "not kept"])
def test_nobody_vouches_after_a_stop_or_a_forget(how: str) -> None:
    first, second, _ = gang()
    second.quick = False  # not even before the stop is on disk
    ended = ShimStatus(TASKS[1], ShimPhase.CLEANED, running_s=2.0, exit=ShimExit(0))
    if how in ("forget", "stop of an ended task"):
        second.turn(s.ShimReported(TASKS[1], ended))
        second.turn(s.NetworkRestored(TASKS[1]))
    second.connect(*(() if how == "not kept" else (TASKS[1],)))
    match how:
        case "forget":
            second.hear(m.ForgetTask(TASKS[1]))
        case "fence":
            second.hear(m.StopTask(TASKS[1], force=True))
        case "not kept":
            pass
        case _:
            second.hear(m.StopTask(TASKS[1]))
    assert answer(second.state, asked(first)["10.0.0.1"]) is None


def found(record: TaskRecord, phase: ShimPhase = ShimPhase.RUNNING) -> Agent:
    """The next agent process of the second member."""
    agent = Agent(State(with_fields(IDENTITY, node=NodeName("n1"), instance="next"), OBSERVED))
    status = ShimStatus(TASKS[1], phase, running_s=1.0)
    agent.turn(s.TaskFound(TASKS[1], status, PATHS, lease_s=LEASE_S, record=record))
    return agent


def test_a_restarted_agent_vouches_as_before_and_never_takes_a_stop_back() -> None:
    first = gang()[0]
    plan = replace(PLAN, task=TASKS[1])
    question = asked(first)["10.0.0.1"]
    record = TaskRecord("boot", "c1", plan, plan.terms)
    assert answer(found(record).state, question) is not None
    stopped = replace(record, stop=m.StopTask(TASKS[1]))
    assert answer(found(stopped).state, question) is None


def test_a_new_boot_never_vouches() -> None:
    plan = replace(PLAN, task=TASKS[1])
    record = TaskRecord("earlier", "c1", plan, plan.terms)
    assert answer(found(record).state, asked(gang()[0])["10.0.0.1"]) is None


def test_after_a_boot_an_ended_task_confirms_a_stop() -> None:
    plan = replace(PLAN, task=TASKS[1])
    agent = found(TaskRecord("earlier", "c1", plan, plan.terms), ShimPhase.CLEANED)
    agent.connect(TASKS[1])
    agent.hear(m.StopTask(TASKS[1], force=True))
    assert agent.state.tasks[TASKS[1]].stop_stored


def test_a_restarted_agent_keeps_the_lease_and_begins_without_votes() -> None:
    plan = replace(PLAN, task=TASKS[1])
    agent = found(TaskRecord("boot", "c1", plan, plan.terms))
    assert agent.state.tasks[TASKS[1]].lease_s == LEASE_S
    assert not leases(agent.effects), "its shim keeps the deadline that it has"
    assert set(asked(agent)) == {"10.0.0.0", "10.0.0.2"}


def test_a_member_that_has_left_gets_no_vouch() -> None:
    left = replace(PLAN, terms=Terms(2, members=MEMBERS[1:]))
    assert answer(member(1, plan=left).state, asked(member(0))["10.0.0.1"]) is None
    assert set(asked(member(1, plan=left))) == {"10.0.0.2"}


@pytest.mark.parametrize("without", ["lease", "key"])
def test_a_gang_without_a_lease_or_a_key_asks_nobody(without: str) -> None:
    agent = Agent()
    agent.connect()
    lease_s = None if without == "lease" else LEASE_S
    agent.hear(m.PrepareTask(TASKS[0], "none", "/w", None, (), {}, 300.0, lease_s=lease_s))
    agent.turn(s.TaskPlaced(TASKS[0], PATHS, ()))
    agent.turn(s.ShimReported(TASKS[0], ShimStatus(TASKS[0], ShimPhase.PREPARED)))
    plan = replace(PLAN, task=TASKS[0], key="" if without == "key" else KEY)
    planned = agent.hear(plan)
    assert not [it for it in planned if isinstance(it, a.SetTimer)]
    assert not asked(agent)


# --- what is refused ---------------------------------------------------------------------------


def test_an_answer_counts_once_and_in_its_round_alone() -> None:
    first, second, third = gang()
    earlier = asked(first)
    replayed = answer(second.state, earlier["10.0.0.1"])
    reply(first, replayed)
    reply(first, answer(third.state, earlier["10.0.0.2"]))
    first.mono += LEASE_S / 2
    later = asked(first)
    assert later.keys() == earlier.keys()
    assert later != earlier
    assert not leases(reply(first, replayed))
    assert not leases(reply(first, answer(third.state, later["10.0.0.2"])))


def test_an_answer_that_waited_through_the_next_round_s_begin_is_dropped() -> None:
    first, second, _ = gang()
    given = answer(second.state, asked(first)["10.0.0.1"])
    assert given is not None
    received = vouched(first.state, given)
    assert received is not None
    first.mono += LEASE_S
    asked(first)
    first.turn(received)
    assert TASKS[1] in first.state.tasks[TASKS[0]].awaited


def test_another_agent_process_does_not_take_the_answers_of_the_one_before() -> None:
    given = answer(member(1).state, asked(member(0))["10.0.0.1"])
    again = member(0, life=2)
    asked(again)
    assert given is not None
    assert vouched(again.state, given) is None


@pytest.mark.parametrize("other", ["key", "cluster", "attempt", "member"])
def test_a_question_of_another_gang_gets_no_answer(other: str) -> None:
    second = member(1)
    match other:
        case "key":
            first = member(0, plan=replace(PLAN, key="22" * 32))
        case "cluster":
            first = member(0, cluster="c2")
        case "attempt":
            second = Agent()
            first = member(0)
        case _:
            first = member(0)
            second = member(2)
    assert answer(second.state, asked(first)["10.0.0.1"]) is None


def test_a_question_is_not_an_answer_and_an_answer_no_question() -> None:
    first, second, _ = gang()
    question = asked(first)["10.0.0.1"]
    given = answer(second.state, question)
    assert given is not None
    assert vouched(first.state, question) is None
    assert answer(second.state, given) is None
    assert answer(first.state, given) is None
    assert vouched(second.state, given) is None


def test_nobody_vouches_for_itself() -> None:
    first = gang()[0]
    forged = replace(PLAN, terms=Terms(1, members=(*MEMBERS[:1], replace(MEMBERS[0], port=1))))
    assert not asked(member(0, plan=forged))
    assert all(answer(first.state, data) is None for data in asked(first).values())


def test_no_datagram_is_too_strange() -> None:
    first, second, _ = gang()
    question = asked(first)["10.0.0.1"]
    strange = [
        b"",
        b"\0" * 32,
        question[:-1],
        question + b" ",
        question[:32],
        bytes(32) + question[32:],
        question[:32] + msgspec.json.encode({"kind": "ask"}),
        question[:32] + b"[" * 400,
        question[:32] + b"\xff" * 100,
        question[:32] + b'{"kind": "ask", "cluster": "\xff"}',
        b"x" * (DATAGRAM_BYTES_MAX + 1),
    ]
    for data in (*strange, *(question[:at] for at in range(len(question)))):
        assert answer(second.state, data) is None
        assert vouched(first.state, data) is None


def test_a_datagram_fits_its_bound_and_an_answer_is_no_longer_than_its_question() -> None:
    rank = 10**8
    longest = [TaskId(f"{10**17}.{10**8}.{rank + at}") for at in range(2)]
    members = tuple(Member(task, "10.0.0.1", 1) for task in longest)
    plan = replace(PLAN, task=longest[0], terms=Terms(1, members=members))
    agent = Agent(State(with_fields(IDENTITY, instance="f" * 16), OBSERVED))
    status = ShimStatus(longest[0], ShimPhase.RUNNING, running_s=1.0)
    record = TaskRecord("boot", "c" * 12, plan, plan.terms)
    agent.turn(s.TaskFound(longest[0], status, PATHS, lease_s=LEASE_S, record=record))
    (question,) = asked(agent).values()
    assert len(question) <= DATAGRAM_BYTES_MAX
    first, second, _ = gang()
    short = asked(first)["10.0.0.1"]
    assert len(answer(second.state, short) or b"") <= len(short)
