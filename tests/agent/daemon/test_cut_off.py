"""An agent that is cut off from its coordinator, and what becomes of its job."""

from __future__ import annotations

import time
from pathlib import Path

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import Heartbeat, Hello, TaskReport
from muster.protocol.states import TaskState
from tests.agent.coordinator import Coordinator
from tests.agent.daemon.test_one_task import TASK, begin, is_in
from tests.agent.daemon.test_survival import alive
from tests.agent.process_of_agent import AgentProcess, write_config

CLEANED = TaskState.CLEANED
OTHER = TaskId("8.1.0")


async def test_hellos_of_two_processes_have_times_of_the_same_clock(tmp_path: Path) -> None:
    made = [time.clock_gettime(time.CLOCK_BOOTTIME)]
    async with Coordinator() as coordinator:
        path = write_config(tmp_path, coordinator.url)
        for _ in range(2):
            async with AgentProcess(path):
                session = await coordinator.session()
                made.append((await session.welcome()).made_s)
    made.append(time.clock_gettime(time.CLOCK_BOOTTIME))
    assert made == sorted(made)


async def test_a_coordinator_that_falls_silent_is_dialled_anew(tmp_path: Path) -> None:
    async with (
        Coordinator() as coordinator,
        AgentProcess(write_config(tmp_path, coordinator.url)),
    ):
        session = await coordinator.session()
        session.answers = False
        await session.welcome(heartbeat_s=0.05)
        await session.gone()
        assert session.heartbeats > 0
        session = await coordinator.session()
        await session.welcome()
        await begin(session, "/bin/true")
        await session.expect(TaskReport, is_in(TaskState.CLEANED))


async def test_a_job_is_ended_when_the_lease_is_over_and_not_before(tmp_path: Path) -> None:
    """A task without a lease keeps running."""
    async with (
        Coordinator() as coordinator,
        AgentProcess(write_config(tmp_path, coordinator.url)),
    ):
        session = await coordinator.session()
        # A busy machine delays the answers of this process, too.
        await session.welcome(heartbeat_s=1.0)
        await begin(session, "/bin/sleep", "600", task=OTHER, lease_s=None)
        other = await session.expect(TaskReport, is_in(TaskState.STARTED))
        await begin(session, "/bin/sleep", "600", lease_s=5.0)
        started = await session.expect(TaskReport, is_in(TaskState.STARTED))
        # While heartbeats are answered, the lease is renewed beyond its first term.
        for _ in range(7):
            await session.expect(Heartbeat)
        assert alive(started.ranks[0].pid)
        session.answers = False
        end = await session.next(TaskReport, is_in(TaskState.CLEANED))
        while end is None:
            # The agent hangs up on a silent coordinator, reconnects, and reports the truth.
            session = await coordinator.session()
            found = (await session.expect(Hello)).tasks
            end = next((it for it in found if it.state is TaskState.CLEANED), None)
            await session.close()
        assert (end.task, end.stopped_by) == (TASK, "lease")
        assert not alive(started.ranks[0].pid)
        assert alive(other.ranks[0].pid)
        session = await coordinator.session()
        await session.welcome()
        await session.expect(TaskReport, lambda it: it.task == OTHER and it.state is CLEANED)
