"""A task's whole way through a real agent and a real shim."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import (
    ArrangeTask,
    ForgetTask,
    PrepareTask,
    StartTask,
    StopTask,
    TaskReport,
)
from muster.protocol.link.log_channel import StreamId, StreamKind
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from tests.agent.coordinator import DEADLINE_S, Session
from tests.agent.process_of_agent import joined

TASK = TaskId("7.1.0")


def prepare(task: TaskId = TASK, **more: object) -> PrepareTask:
    fields: dict[str, object] = {
        "task": task,
        "launcher": "none",
        "workdir": None,
        "python": None,
        "setup": (),
        "env": {},
        "timeout_s": 20.0,
        "ports": 2,
        # Ends what a test leaves running.
        "lease_s": 20.0,
        **more,
    }
    return PrepareTask(**fields)  # type: ignore[arg-type]


async def begin(
    session: Session,
    *argv: str,
    task: TaskId = TASK,
    lease_s: float | None = 20.0,
    user: str = "",
) -> TaskReport:
    """Walk a task up to its start; returns what was reported when it was prepared."""
    await session.send(prepare(task, lease_s=lease_s, user=user))
    prepared = await session.expect(TaskReport, lambda it: it.state is TaskState.PREPARED)
    await session.send(ArrangeTask(task, argv, {"MUSTER_NODE_RANK": "0"}, (), "n1 slots=1\n"))
    await session.expect(TaskReport, lambda it: it.state is TaskState.ARRANGED)
    await session.send(StartTask(task))
    return prepared


def is_in(state: TaskState) -> Callable[[TaskReport], bool]:
    return lambda report: report.state is state


async def test_a_task_runs_and_leaves_nothing_but_its_output(tmp_path: Path) -> None:
    async with joined(tmp_path) as (coordinator, agent, session):
        assert (session.hello.node, session.hello.tasks) == ("n1", ())
        assert session.hello.inventory.address == "127.0.0.1"
        script = "cat ../hostfile; pwd; echo kept > $0/result; echo oops >&2; exit 3"
        output = tmp_path / "state/output/7/1"
        prepared = await begin(session, "/bin/sh", "-c", script, str(output))
        assert prepared.prepared is not None
        assert prepared.prepared.output == str(output)
        assert len(set(prepared.prepared.ports)) == 2
        end = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert end.exit is not None
        assert end.exit.code == 3
        assert [(rank.rank, rank.exit and rank.exit.code) for rank in end.ranks] == [(0, 3)]
        await coordinator.logs.until(lambda store: TASK in store.tasks)
        text = bytes(coordinator.logs.data[StreamId(TASK, StreamKind.STDOUT, 0)]).decode()
        assert text == f"n1 slots=1\n{prepared.prepared.scratch}\n"
        assert coordinator.logs.data[StreamId(TASK, StreamKind.STDERR, 0)] == b"oops\n"
        folder = tmp_path / "state/tasks" / TASK
        assert folder.is_dir()
        await session.send(ForgetTask(TASK))
        await until_gone(folder)
        assert (output / "result").read_text() == "kept\n"
        assert await agent.end() == 0


async def until(that: Callable[[], bool]) -> None:
    """Look until `that` holds: of files and processes nobody sends word."""
    async with asyncio.timeout(DEADLINE_S):
        while not that():  # noqa: ASYNC110  as above
            await asyncio.sleep(0.01)


async def until_gone(path: Path) -> None:
    await until(lambda: not path.exists())


async def test_a_stop_ends_a_task(tmp_path: Path) -> None:
    async with joined(tmp_path) as (_, _, session):
        await begin(session, "/bin/sleep", "600")
        await session.expect(TaskReport, is_in(TaskState.STARTED))
        await session.send(StopTask(TASK, grace_s=5.0))
        end = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert end.exit is not None
        assert (end.exit.signal, end.stopped_by) == (15, "stop")


async def test_a_refused_task_is_reported_and_removed(tmp_path: Path) -> None:
    async with joined(tmp_path) as (_, _, session):
        await session.send(prepare(workdir="/nowhere/at/all"))
        report = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert report.refusal is not None
        assert report.refusal.code == "no_folder"
        assert "/nowhere/at/all" in report.refusal.text
        assert report.no_output
        await session.send(ForgetTask(TASK))
        await until_gone(tmp_path / "state/tasks" / TASK)


def taken_port() -> socket.socket:
    """Outside the kernel's own range, from which no agent takes ports."""
    for port in range(20_000, 30_000):
        with contextlib.suppress(OSError):
            return socket.create_server(("", port))
    raise AssertionError("every port is taken")


async def test_a_task_without_a_free_port_is_refused_in_words(tmp_path: Path) -> None:
    with taken_port() as taken:
        port = taken.getsockname()[1]
        ports = {"first": port, "last": port}
        async with joined(tmp_path, ports=ports) as (_, _, session):
            await session.send(prepare(ports=1))
            report = await session.expect(TaskReport, is_in(TaskState.CLEANED))
            assert report.refusal is not None
            assert "widen `ports`" in report.refusal.text
            assert report.refusal.node_fault
            await session.send(ForgetTask(TASK))
            await session.send(prepare(TaskId("8.1.0"), ports=0))
            report = await session.expect(TaskReport, lambda it: it.task == "8.1.0")
            assert report.refusal is None


async def test_a_whole_run_is_reported_in_four_reports(tmp_path: Path) -> None:
    """Each message wakes two processes and the owner of every state: a start is made of them."""
    async with joined(tmp_path) as (_, _, session):
        await session.send(prepare())
        states = [(await session.expect(TaskReport)).state]
        assert states == [TaskState.PREPARED]
        plan = ArrangeTask(TASK, ("true",), {"MUSTER_NODE_RANK": "0"}, (), "n1 slots=1\n")
        await session.send(plan)
        states.append((await session.expect(TaskReport)).state)
        await session.send(StartTask(TASK))
        while states[-1] is not TaskState.CLEANED:
            states.append((await session.expect(TaskReport)).state)
        assert states[1] is TaskState.ARRANGED
        assert len(states) == len(set(states)) <= 4


async def test_a_plan_that_need_not_wait_starts_its_program(tmp_path: Path) -> None:
    async with joined(tmp_path) as (_, _, session):
        await session.send(prepare())
        await session.expect(TaskReport, is_in(TaskState.PREPARED))
        plan = ArrangeTask(
            TASK,
            ("cat", "../hostfile"),
            {"MUSTER_NODE_RANK": "0"},
            (),
            "n1 slots=1\n",
            start=True,
        )
        await session.send(plan)
        report = await session.expect(TaskReport)
        assert report.state is not TaskState.ARRANGED
        while report.state is not TaskState.CLEANED:
            report = await session.expect(TaskReport)
        assert report.exit == ExitStatus(0)
