"""An agent reports events of its hardware, and repeats them on each new connection."""

from __future__ import annotations

from agent.core import effects as a
from agent.core import inputs as s
from agent.core.shim_protocol import ShimExit, ShimPhase, ShimRank
from muster.protocol.ids import SessionId, TaskId
from muster.protocol.link import control_channel as m
from muster.protocol.observations.hardware_events import EVENTS_MAX, Grade, HardwareEvent
from tests.agent.core.playbook import Agent, reports

WELCOME = m.Welcome(1, SessionId(1), 5.0, "0.1.0", "c1")


def event(number: int, code: str = "xid 79") -> HardwareEvent:
    return HardwareEvent("boot", number, code, Grade.CRITICAL, "GPU 0000:1b:00.0: it is over")


def observed(*events: HardwareEvent) -> s.NodeObserved:
    return s.NodeObserved(m.NodeChanges(hardware=events))


def beats(effects: list[a.Effect]) -> list[tuple[HardwareEvent, ...]]:
    sent = [it.report for it in effects if isinstance(it, a.SendReport)]
    return [it.changes.hardware for it in sent if isinstance(it, m.Heartbeat)]


def hello(effects: list[a.Effect]) -> m.Hello:
    return next(
        it.report
        for it in effects
        if isinstance(it, a.SendReport) and isinstance(it.report, m.Hello)
    )


def test_it_is_reported_at_once_and_again_on_a_new_connection() -> None:
    agent = Agent()
    agent.connect()
    assert beats(agent.turn(observed(event(1)))) == [(event(1),)]
    agent.turn(s.LinkDown())
    assert beats(agent.turn(observed(event(2)))) == []
    assert hello(agent.turn(s.LinkUp())).observed.hardware == (event(1), event(2))


def test_an_event_between_hello_and_welcome_is_reported_after_it() -> None:
    agent = Agent()
    agent.turn(observed(event(1)))
    assert hello(agent.turn(s.LinkUp())).observed.hardware == (event(1),)
    assert beats(agent.turn(observed(event(2)))) == []
    assert beats(agent.hear(WELCOME)) == [(event(2),)]


def test_the_last_are_kept() -> None:
    agent = Agent()
    for number in range(3 * EVENTS_MAX):
        agent.turn(observed(event(number)))
    kept = [it.number for it in agent.state.observed.hardware]
    assert kept == list(range(2 * EVENTS_MAX, 3 * EVENTS_MAX))


def killed(pid: int, task: str = "1.1.0") -> HardwareEvent:
    text = f"the memory of the node ran out: the kernel killed python (process {pid})"
    return HardwareEvent("boot", pid, "oom", Grade.SHOWN, text, task=TaskId(task), pid=pid)


def test_ranks_that_failed_have_the_memory_limit_that_their_task_has_reached() -> None:
    agent = Agent()
    agent.running()
    ranks = (
        ShimRank(0, 0, pid=11, exit=ShimExit(signal=9), oom=True),
        ShimRank(1, 1, pid=12, exit=ShimExit(code=1)),
        ShimRank(2, 2, pid=13, exit=ShimExit(signal=15), stopped=True),
        ShimRank(3, 3, pid=14),
    )
    (said,) = reports(agent.shim(ShimPhase.RUNNING, running_s=1.0, ranks=ranks, memory_max=1 << 30))
    assert [it.memory_max for it in said.ranks] == [1 << 30, 1 << 30, 0, 0]


def test_a_rank_that_the_kernel_killed_for_memory_is_reported_with_its_words() -> None:
    agent = Agent()
    agent.running()
    for seen in (killed(11), killed(12, "2.1.0")):
        agent.turn(observed(seen))
    dead = ShimExit(signal=9)
    ranks = tuple(ShimRank(rank, rank, pid=pid, exit=dead) for rank, pid in enumerate((11, 12, 13)))
    (said,) = reports(agent.shim(ShimPhase.RUNNING, running_s=1.0, ranks=ranks))
    assert [(it.oom, it.oom_said) for it in said.ranks] == [
        (True, killed(11).text),
        # The kernel killed pid 12 in another task, and did not kill pid 13.
        (False, ""),
        (False, ""),
    ]
