"""The owner's queue: bounded for senders that can wait, in order, with a way to take some early."""

import asyncio

from muster.daemon.clock import SystemClock
from muster.protocol.ids import SessionId
from orchestrator.core.facts.effects import RequestId
from orchestrator.core.facts.inputs import DiskSpaceChecked, Input, SessionEnded, SubmitReceived
from orchestrator.shell.inbox import BATCH_MAX, SUBMIT_BYTES_MAX, Inbox
from tests.orchestrator.shell.owner import SPEC

A, B, C = DiskSpaceChecked("a"), DiskSpaceChecked("b"), DiskSpaceChecked("c")


def inputs(taken: object) -> list[Input]:
    assert isinstance(taken, list)
    return [received.given for received in taken]


async def test_fast_senders_wait_and_urgent_inputs_do_not() -> None:
    inbox = Inbox(SystemClock(), waiting_max=2)
    await inbox.put(A)
    await inbox.put(B)
    third = asyncio.create_task(inbox.put(C))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not third.done()
    ended = SessionEnded(SessionId(1))
    inbox.put_now(ended)
    assert inputs(await inbox.take()) == [A, B, ended]
    await third
    assert inputs(await inbox.take()) == [C]


async def test_a_burst_is_taken_in_pieces() -> None:
    inbox = Inbox(SystemClock())
    for number in range(BATCH_MAX + 1):
        inbox.put_now(DiskSpaceChecked(str(number)))
    assert len(await inbox.take()) == BATCH_MAX
    assert inputs(await inbox.take()) == [DiskSpaceChecked(str(BATCH_MAX))]


async def test_a_batch_ends_with_the_submit_that_reaches_its_bytes() -> None:
    inbox = Inbox(SystemClock())
    half = SubmitReceived(RequestId(0), SPEC, "ann", size=SUBMIT_BYTES_MAX // 2)
    for given in (A, half, half, half, B):
        inbox.put_now(given)
    assert inputs(await inbox.take()) == [A, half, half]
    assert inputs(await inbox.take()) == [half, B]


async def test_picked_inputs_are_gone_and_the_others_keep_order_and_time() -> None:
    inbox = Inbox(SystemClock(), waiting_max=3)
    for given in (A, B, C):
        await inbox.put(given)
    waiting = asyncio.create_task(inbox.put(A))
    await asyncio.sleep(0)
    (picked,) = inbox.pick(lambda given: given == B)
    assert picked.given == B
    await waiting  # there is room again
    taken = await inbox.take()
    assert inputs(taken) == [A, C, A]
    moments = [received.at.mono for received in taken]
    assert moments == sorted(moments)
    assert moments[0] <= picked.at.mono <= moments[1]
