"""I8: whatever comes in, and however slow a reader is, queues and buffers have a bound."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core import apply as agent_evolve
from agent.core import facts as agent_facts
from agent.core import state as agent_state
from agent.core.inputs import LinkDown
from agent.link.inbox import InputQueue
from agent.logs.offsets import WINDOW_BYTES, LogOffsets, Stream
from muster.daemon.clock import SystemClock
from muster.daemon.timers import Timers
from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.link import control_channel
from muster.protocol.link.control_channel import Inventory, NodeChanges, NodeObservations
from muster.protocol.link.log_channel import CHUNK_BYTES_MAX, StreamAt, StreamId, StreamKind
from muster.protocol.observations.hardware_events import EVENTS_MAX, Grade, HardwareEvent
from orchestrator.api import log_stream
from orchestrator.api.http import rate_limit
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs
from orchestrator.core.facts import service as sf
from orchestrator.core.model.history import LINES_KEPT, BoundedLines
from orchestrator.core.model.state import Node, State
from orchestrator.core.nodes import service_state
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.inbox import Inbox
from orchestrator.shell.logs.connection import LogConnection
from orchestrator.shell.logs.reader import Live, Piece
from orchestrator.shell.logs.stream_file import StreamKey
from tests.planted import Bug, put

OUT = StreamId(TaskId("7.1.0"), StreamKind.STDOUT, 0)
PATIENCE_S = 60.0
MANY = 5000
CALLERS_MAX = rate_limit.CALLERS_MAX


def _run(story: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    asyncio.run(limited())


async def _go_on() -> None:
    """Run the loop until all tasks wait."""
    for _ in range(20):
        await asyncio.sleep(0)


# --- the agent --------------------------------------------------------------------------------


def a_peer_that_floods_an_agent_waits(_: Path) -> None:
    """Its owner is busy with something else all the while."""

    async def story() -> None:
        inbox, taken = InputQueue(), 0

        async def flood() -> None:
            nonlocal taken
            for _number in range(MANY):
                await inbox.room()
                inbox.post(LinkDown())
                taken += 1

        flooding = asyncio.get_running_loop().create_task(flood())
        await _go_on()
        flooding.cancel()
        assert taken < MANY, f"all {taken} are stored"

    _run(story())


def bytes_on_their_way_have_a_bound(_: Path) -> None:
    """The coordinator takes them and acknowledges none; the file has no end."""
    ledger = LogOffsets()
    ledger.add_stream(OUT, "out")
    ledger.reconnect()
    ledger.at(OUT, 0)
    sent = 0
    for _number in range(1000):
        stream = ledger.next_readable()
        if stream is None:
            break
        count = min(stream.room, CHUNK_BYTES_MAX)
        ledger.sent(stream, count)
        sent += count
    assert sent <= WINDOW_BYTES, f"{sent} bytes are on their way"


def an_agent_keeps_the_last_events_of_its_hardware(_: Path) -> None:
    state = agent_state.State(
        agent_state.AgentIdentity(NodeName("n1"), "id", "boot", "0.1.0"),
        NodeObservations(Inventory("10.0.0.1", "m1")),
    )
    for number in range(MANY):
        event = HardwareEvent("boot", number, "link", Grade.NOTE, "a link is down")
        agent_evolve.apply(state, agent_facts.NodeChanged(NodeChanges(hardware=(event,))))
    kept = len(state.observed.hardware)
    assert kept <= EVENTS_MAX, f"{kept} events are kept"


# --- the coordinator --------------------------------------------------------------------------


def agents_that_flood_the_coordinator_wait(_: Path) -> None:
    async def story() -> None:
        inbox = Inbox(SystemClock(), waiting_max=10)
        loop = asyncio.get_running_loop()
        beat = inputs.TimerFired(a.Timer(a.TimerKind.NODE, node=NodeName("n1")))
        waiting = [loop.create_task(inbox.put(beat)) for _number in range(100)]
        await _go_on()
        for one in waiting:
            one.cancel()
        stored = len(inbox._items)
        assert stored <= 10, f"{stored} are stored"

    _run(story())


def what_an_agent_that_reads_nothing_is_to_hear_has_a_bound(_: Path) -> None:
    async def story() -> None:
        connection = LogConnection(None, NodeName("n1"))  # type: ignore[arg-type]
        for number in range(MANY):
            connection.acknowledge(OUT, number)
            connection.ask(OUT, 17)
        kept = len(connection.acks) + len(connection.others)
        assert kept <= 2, f"{kept} commands wait"

    _run(story())


def a_reader_of_logs_has_a_batch_in_memory(_: Path) -> None:
    piece = Piece(StreamKey(1, 0, "stdout", 0), 0, 1.0, b"x" * 32768, Live(1, 0))
    drawn = 0

    def pieces() -> Iterator[Piece]:
        nonlocal drawn
        for _number in range(MANY):
            drawn += 1
            yield piece

    take = vars(log_stream)["take"]  # as the reader has it
    take(pieces(), log_stream._BATCH_BYTES)
    held = drawn * len(piece.data)
    assert held <= 2 * log_stream._BATCH_BYTES, f"{held} bytes are in memory"


def callers_are_not_remembered_for_ever(_: Path) -> None:
    limit = rate_limit.RateLimit(0.1)
    callers = range(CALLERS_MAX + MANY)
    for caller in callers:
        limit.take(caller, 0.0)
    known = sum(limit.take(caller, 0.0) > 0 for caller in reversed(callers))
    assert known <= CALLERS_MAX, f"{known} callers are known"


def timers_that_are_moved_leave_nothing(_: Path) -> None:
    async def story() -> None:
        clock = SystemClock()
        timers: Timers[a.Timer] = Timers(clock, lambda _: None)
        timer = a.Timer(a.TimerKind.NODE, node=NodeName("n1"))
        for number in range(MANY):
            timers.set(timer, clock.now().mono + 1000.0 + number)
        kept = len(timers._heap)
        timers.close()
        assert kept <= 100, f"{kept} settings of one timer are kept"

    _run(story())


def who_waits_in_vain_leaves_nothing(_: Path) -> None:
    async def story() -> None:
        changes = ChangeCounters()
        for _number in range(100):
            await changes.wait({"job": 0}, timeout_s=0.0)
        kept = sum(len(waiting) for waiting in changes._waiting.values())
        assert kept == 0, f"{kept} who wait no more are kept"

    _run(story())


def what_is_kept_of_a_job_has_a_bound(_: Path) -> None:
    lines = BoundedLines()
    for number in range(MANY):
        lines.add(float(number), "held by ada")
    count = len(lines.entries())
    assert count <= LINES_KEPT + 1, f"{count} lines are kept"


def the_faults_of_a_node_have_a_bound(_: Path) -> None:
    node = Node(NodeName("n1"), "id", "boot", "0.1.0", Inventory("10.0.0.1", "m1"))
    state = State(nodes={node.name: node})
    for number in range(1, MANY):
        service_state.apply_service(
            state, sf.NodeFaultRecorded(node.name, JobId(number), 1, "lost"), 0.0
        )
        event = HardwareEvent("boot", number, "link", Grade.NOTE, "a link is down")
        service_state.apply_service(state, sf.HardwareReported(node.name, event), 0.0)
    kept = len(node.faults) + len(node.hardware)
    assert kept <= 100, f"{kept} faults and events are kept"


# --- the bugs ---------------------------------------------------------------------------------


async def _room_for_all(_: InputQueue) -> None:
    return


async def _puts_now(self: Inbox, received: inputs.Input) -> None:
    self.put_now(received)


def _says_each(self: LogConnection, stream: StreamId, offset: int) -> None:
    self.acks[StreamId(stream.task, stream.kind, offset)] = offset


def _asks_each(self: LogConnection, stream: StreamId, offset: int) -> None:
    self.say(StreamAt(stream, offset))


def _never_tidied(self: Timers[Any], timer: a.Timer, at: float) -> None:
    self._at[timer] = at
    self._tie += 1
    self._heap.append((at, self._tie, timer))


async def _never_let_go(
    self: ChangeCounters, seen: dict[Any, int], timeout_s: float | None = None
) -> None:
    for key in seen:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
    await asyncio.sleep(timeout_s or 0.0)


def _adds(self: BoundedLines, at: float, text: str) -> None:
    self.kept.append((at, text))


def _without_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def room(self: Stream) -> int:
        return 0 if self.sent is None or self.ended else CHUNK_BYTES_MAX

    monkeypatch.setattr(Stream, "room", property(room))


BUGS = (
    Bug(
        "an agent stores whatever it is sent",
        "I8",
        put(InputQueue, "room", _room_for_all),
        a_peer_that_floods_an_agent_waits,
    ),
    Bug(
        "log bytes are sent without waiting for an acknowledgement",
        "I8",
        _without_window,
        bytes_on_their_way_have_a_bound,
    ),
    Bug(
        "an agent keeps every event of its hardware",
        "I8",
        put(control_channel, "EVENTS_MAX", 10**9),
        an_agent_keeps_the_last_events_of_its_hardware,
    ),
    Bug(
        "the coordinator stores whatever agents send",
        "I8",
        put(Inbox, "put", _puts_now),
        agents_that_flood_the_coordinator_wait,
    ),
    Bug(
        "each acknowledgement waits for its agent",
        "I8",
        put(LogConnection, "acknowledge", _says_each),
        what_an_agent_that_reads_nothing_is_to_hear_has_a_bound,
    ),
    Bug(
        "the same bytes are asked for again and again",
        "I8",
        put(LogConnection, "ask", _asks_each),
        what_an_agent_that_reads_nothing_is_to_hear_has_a_bound,
    ),
    Bug(
        "a reader of logs takes all of them into memory",
        "I8",
        put(log_stream, "take", lambda pieces, _: deque(pieces)),
        a_reader_of_logs_has_a_batch_in_memory,
    ),
    Bug(
        "callers are never forgotten",
        "I8",
        put(rate_limit, "CALLERS_MAX", 10**9),
        callers_are_not_remembered_for_ever,
    ),
    Bug(
        "a timer that is moved stays where it was, too",
        "I8",
        put(Timers, "set", _never_tidied),
        timers_that_are_moved_leave_nothing,
    ),
    Bug(
        "who has waited long enough is still waited for",
        "I8",
        put(ChangeCounters, "wait", _never_let_go),
        who_waits_in_vain_leaves_nothing,
    ),
    Bug(
        "all that users do to a job is kept",
        "I8",
        put(BoundedLines, "add", _adds),
        what_is_kept_of_a_job_has_a_bound,
    ),
    Bug(
        "every fault of a node is kept",
        "I8",
        put(service_state, "FAULTS_KEPT", 10**9),
        the_faults_of_a_node_have_a_bound,
    ),
    Bug(
        "every event of a node is kept",
        "I8",
        put(service_state, "HARDWARE_KEPT", 10**9),
        the_faults_of_a_node_have_a_bound,
    ),
)
