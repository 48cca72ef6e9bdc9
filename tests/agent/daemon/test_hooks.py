"""The site's prolog, epilog and health check, run by a real agent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ForgetTask, Heartbeat, TaskReport
from muster.protocol.observations.hardware_events import Grade, HardwareEvent
from muster.protocol.states import TaskState
from tests.agent.coordinator import Coordinator, Session
from tests.agent.daemon.test_one_task import begin, is_in, prepare, until, until_gone
from tests.agent.process_of_agent import AgentProcess, joined, write_config

TASK = TaskId("7.1.0")


@pytest.fixture
def hook(tmp_path: Path) -> Callable[..., str]:
    """Write a program of the site."""

    def make(name: str, *lines: str) -> str:
        path = tmp_path / name
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return str(path)

    return make


async def drained(session: Session) -> HardwareEvent:
    """Wait for the report that takes the node out of service."""
    found = await session.expect(Heartbeat, lambda it: bool(it.changes.hardware))
    (event,) = found.changes.hardware
    assert event.grade is Grade.CRITICAL
    return event


async def test_prolog_and_epilog_run_around_a_task_with_an_environment_from_nothing(
    tmp_path: Path, hook: Callable[..., str]
) -> None:
    out = tmp_path / "out"
    said = f"env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | sort >> {out}; id -u >> {out}; echo done"
    hooks = {name: hook(name, said) for name in ("prolog", "epilog")}
    async with joined(tmp_path, **hooks) as (_, _, session):
        script = f"echo MUSTER_HOOK=job >> {out}"
        await begin(session, "/bin/sh", "-c", script, user="ann")
        ended = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert ended.warnings == ("prolog: done", "epilog: done")
        # It ended before the node said that the task is over.
        about = [
            "MUSTER_ATTEMPT=1",
            "MUSTER_GPUS=",
            "MUSTER_JOB_ID=7",
            "MUSTER_NODE=n1",
            "MUSTER_NODE_RANK=0",
            f"MUSTER_UID={os.geteuid()}",
            "MUSTER_USER=ann",
            str(os.geteuid()),
        ]
        lines = out.read_text().splitlines()
        assert [line for line in lines if "HOOK" in line] == [
            "MUSTER_HOOK=prolog",
            "MUSTER_HOOK=job",
            "MUSTER_HOOK=epilog",
        ]
        assert [line for line in lines if "HOOK" not in line] == [*about, *about]


@pytest.mark.parametrize(
    ("line", "timeout_s", "says"),
    [
        ("echo a; echo '/scratch is not mounted' >&2; exit 3", 60, "failed with exit code 3"),
        ("echo '/scratch is not mounted'; kill -9 $$", 60, "was ended by signal 9"),
        ("echo '/scratch is not mounted'; exec sleep 600", 3, "took longer than 3 s"),
    ],
)
async def test_a_prolog_that_fails_refuses_the_task_with_its_last_line(
    tmp_path: Path, hook: Callable[..., str], line: str, timeout_s: int, says: str
) -> None:
    marked = hook("epilog", f"touch {tmp_path}/epilog-ran")
    settings = {"prolog": hook("prolog", line), "epilog": marked, "hook_timeout_s": timeout_s}
    async with joined(tmp_path, **settings) as (_, agent, session):
        await session.send(prepare())
        report = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert report.refusal is not None
        assert (report.refusal.code, report.refusal.node_fault) == ("prolog_failed", True)
        assert report.refusal.text == f"prolog {says}: /scratch is not mounted"
        assert not (tmp_path / "state/tasks" / TASK).exists()
        assert await agent.end() == 0
    assert not (tmp_path / "epilog-ran").exists()


async def test_a_program_that_leaves_others_with_its_output_holds_nothing_up(
    tmp_path: Path, hook: Callable[..., str]
) -> None:
    pid = tmp_path / "pid"
    line = f"sleep 600 & echo $! > {pid}; seq 100000; echo done; exit 1"
    async with joined(tmp_path, prolog=hook("prolog", line)) as (_, _, session):
        await session.send(prepare())
        report = await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert report.refusal is not None
        assert report.refusal.text == "prolog failed with exit code 1: done"
        os.kill(int(pid.read_text()), 9)


async def test_an_epilog_that_fails_drains_the_node(
    tmp_path: Path, hook: Callable[..., str]
) -> None:
    failing = hook("epilog", "echo 'a mount is stuck'; exit 1")
    async with joined(tmp_path, epilog=failing) as (_, _, session):
        await begin(session, "/bin/true")
        event = await drained(session)
        said = "job 7: epilog failed with exit code 1: a mount is stuck"
        assert (event.code, event.text) == ("epilog", said)
        end = session.last.get(TASK) or await session.expect(TaskReport, is_in(TaskState.CLEANED))
        assert end.refusal is None
        assert end.warnings == ("epilog: failed with exit code 1: a mount is stuck",)


async def test_the_epilog_of_a_task_that_an_agent_took_over_runs(
    tmp_path: Path, hook: Callable[..., str]
) -> None:
    out = tmp_path / "out"
    said = f'echo "$MUSTER_JOB_ID $MUSTER_USER $MUSTER_UID" >> {out}'
    config = {"epilog": hook("epilog", said)}
    async with Coordinator() as coordinator:
        async with AgentProcess(write_config(tmp_path, coordinator.url, **config)):
            session = await coordinator.session()
            await session.welcome()
            script = f"echo > {tmp_path}/up; exec sleep 600"
            await begin(session, "/bin/sh", "-c", script, user="ann")
            await until((tmp_path / "up").exists)
        assert not out.exists()
        async with AgentProcess(write_config(tmp_path, coordinator.url, **config)):
            session = await coordinator.session()
            (task,) = (await session.welcome(TASK)).tasks
            assert task.state is TaskState.STARTED
            os.kill(task.ranks[0].pid or 0, 9)
            await session.expect(TaskReport, is_in(TaskState.CLEANED))
            assert out.read_text() == f"7 ann {os.geteuid()}\n"
            await session.send(ForgetTask(TASK))
            await until_gone(tmp_path / "state/tasks" / TASK)
    assert out.read_text() == f"7 ann {os.geteuid()}\n"


async def test_an_epilog_holds_up_no_agent_that_starts(
    tmp_path: Path, hook: Callable[..., str]
) -> None:
    """The task ended while there was no agent. Leases of others would end meanwhile."""
    out, go = tmp_path / "out", tmp_path / "go"
    waits = f"while [ ! -e {go} ]; do sleep 0.02; done"
    config = {"epilog": hook("epilog", waits, f"echo x >> {out}; echo stuck; exit 1")}
    async with Coordinator() as coordinator:
        async with AgentProcess(write_config(tmp_path, coordinator.url, **config)):
            session = await coordinator.session()
            await session.welcome()
            await begin(session, "/bin/sleep", "600")
            started = await session.expect(TaskReport, is_in(TaskState.STARTED))
        record = tmp_path / "state/tasks" / TASK / "exit.json"
        os.kill(started.ranks[0].pid or 0, 9)
        await until(lambda: record.exists() and '"cleaned"' in record.read_text())
        async with AgentProcess(write_config(tmp_path, coordinator.url, **config)):
            session = await coordinator.session()
            (task,) = (await session.welcome(TASK)).tasks
            assert task.state is TaskState.CLEANED
            assert not out.exists()
            await session.send(ForgetTask(TASK))
            go.touch()
            assert (await drained(session)).text.endswith("stuck")
            await until_gone(tmp_path / "state/tasks" / TASK)
    assert out.read_text() == "x\n"


async def test_a_health_check_that_fails_drains_the_node_and_says_so_once(
    tmp_path: Path, hook: Callable[..., str]
) -> None:
    runs = tmp_path / "runs"
    lines = (f"echo x >> {runs}", f"cat {tmp_path}/fault || exit 0", "exit 1")
    check = {"health_check": hook("check", *lines), "health_check_period_s": 0.02}
    async with joined(tmp_path, **check) as (_, agent, session):
        await until(lambda: runs.exists() and len(runs.read_text().split()) > 2)
        (tmp_path / "fault.new").write_text("nvidia-smi does not answer\n")
        (tmp_path / "fault.new").rename(tmp_path / "fault")
        event = await drained(session)
        said = "health_check failed with exit code 1: nvidia-smi does not answer"
        assert (event.code, event.text) == ("health_check", said)
        ran = len(runs.read_text().split())
        await until(lambda: len(runs.read_text().split()) > ran + 3)
        assert await agent.end() == 0
    assert agent.log.read_text().count('"event": "hardware"') == 1


@pytest.mark.parametrize("name", ["prolog", "epilog", "health_check"])
async def test_a_program_that_others_can_change_ends_the_start(
    tmp_path: Path, hook: Callable[..., str], name: str
) -> None:
    path = hook("program", "exit 0")
    os.chmod(path, 0o775)
    config = write_config(tmp_path, "http://127.0.0.1:1", **{name: path})
    async with AgentProcess(config) as agent:
        assert await agent.ended() == 2
    assert f"{name}: others can write {path}: chmod go-w {path}" in agent.log.read_text()
