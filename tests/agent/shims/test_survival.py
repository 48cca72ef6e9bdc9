"""Any process of Muster may die; the task and its records remain."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.core.shim_protocol import (
    ShimExit,
    ShimPhase,
    ShimStop,
    StoppedBy,
)
from agent.shims import forked
from agent.shims.backend import SpawnError
from agent.shims.connection import ShimUnreachable, connect
from agent.tasks.adoption import Ownership, examine
from muster.daemon.errors import DaemonError
from tests.agent.shims.conftest import PATIENCE_S, Node, Stage, found_in
from tests.agent.shims.test_termination import DAEMON, alive, carriers, up

PYTHON = sys.executable

# An agent in a process of its own: spawns, starts, says so, and waits to be killed.
AGENT = """
import asyncio, sys
from pathlib import Path
from agent.shims.connection import connect
from agent.core.shim_protocol import ShimPhase, ShimPrepare, ShimStart
from agent.shims.forked import ForkServer

async def main(folder):
    fork_server = ForkServer()
    await fork_server.spawn(folder)

    def heard(status):
        if status.phase is ShimPhase.PREPARED:
            script = "echo begun; sleep 1; echo done; exit 4"
            connection.send(ShimStart(argv=["sh", "-c", script]))
        if status.phase is ShimPhase.RUNNING:
            print("running", fork_server.pid, flush=True)

    connection = await connect(folder, heard)
    connection.send(ShimPrepare(allow_root=True, cwd="/"))
    await connection.ended

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_killed_agent_costs_the_job_nothing(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        folder = node.state_dir / "tasks" / "7.1.0"
        agent = await asyncio.to_thread(
            subprocess.Popen, [PYTHON, "-c", AGENT, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert agent.stdout is not None
        assert (await asyncio.to_thread(agent.stdout.readline)).startswith("running")
        agent.kill()
        await asyncio.to_thread(agent.wait)
        agent.stdout.close()
        [found] = await asyncio.to_thread(found_in, node.state_dir)
        assert found.ownership is Ownership.ALIVE
        task = await node.speak(found.task_dir, 0)
        first = await task.until(lambda _: True)
        assert first.streams
        assert first.ranks
        status = first if first.phase is ShimPhase.CLEANED else await task.ended()
        assert status.exit == ShimExit(code=4)
        assert task.read("logs/rank-0.stdout") == b"begun\ndone\n"

    any_stage.play(story)


def test_a_killed_template_costs_nobody_anything(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        first = await node.task("7.1.0")
        await first.run("sleep", "10000")
        await first.phase(ShimPhase.RUNNING)
        assert node.fork_server.pid is not None
        os.kill(node.fork_server.pid, signal.SIGKILL)
        second = await node.task("8.1.0")
        await second.run("true")
        assert (await second.ended()).exit == ShimExit(code=0)
        await first.send(ShimStop(grace_s=10))
        assert (await first.ended()).exit == ShimExit(signal=signal.SIGTERM)

    any_stage.play(story)


def test_a_killed_shim_is_found_lost_and_its_job_ended(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", DAEMON + "time.sleep(10000)")
        await up(task)
        marked = carriers(task)
        assert len(marked) == 2
        os.kill(task.pid, signal.SIGKILL)
        await task.gone()
        [found] = await asyncio.to_thread(found_in, node.state_dir)
        assert found.ownership is Ownership.LOST
        assert found.status is not None
        assert found.status.stopped_by == StoppedBy.SHIM_LOST
        assert found.status.phase is ShimPhase.CLEANED
        # Only the record still names the files of its output.
        assert {stream.path for stream in found.status.streams} == {
            "logs/rank-0.stdout",
            "logs/rank-0.stderr",
        }
        assert carriers(task) == []
        assert json.loads(task.read("exit.json"))["stopped_by"] == "shim_lost"
        # A second look says the same.
        assert await asyncio.to_thread(examine, task.dir) == found

    stage.play(story)


def test_a_lost_shim_of_another_boot_touches_no_process(any_stage: Stage, tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "10000")
        await task.phase(ShimPhase.RUNNING)
        identity = json.loads(task.read("shim.json"))
        other = tmp_path / "tasks" / "9.1.0"
        other.mkdir()
        (other / "shim.json").write_text(json.dumps({**identity, "boot_id": "another"}))
        found = await asyncio.to_thread(examine, other)
        assert found.ownership is Ownership.LOST
        assert alive(task.pid)
        assert carriers(task)
        await task.send(ShimStop())
        await task.ended()

    any_stage.play(story)


def test_a_torn_record_is_none(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        folder = node.state_dir / "tasks" / "7.1.0"
        folder.mkdir()
        (folder / "exit.json").write_bytes(b'{"v":1,"task"')
        found = await asyncio.to_thread(examine, folder)
        assert found.ownership is Ownership.LOST

    any_stage.play(story)


def test_an_answer_that_nobody_waited_for_is_not_the_next_ones(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        await node.fork_server.start()
        tasks = node.state_dir / "tasks"
        first = asyncio.create_task(node.fork_server.spawn(tasks / "7.1.0"), name="first")
        # One turn of the loop sends the request, the next would await the answer.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        pid = await node.fork_server.spawn(tasks / "8.1.0")
        task = await node.speak(tasks / "8.1.0", pid)
        await task.run("true")
        status = await task.ended()
        assert status.task == "8.1.0"
        assert json.loads(task.read("shim.json"))["pid"] == pid

    any_stage.play(story, orphan_s=0.1)


def test_a_first_word_that_comes_before_we_hear_of_the_launch_is_heard(
    any_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = forked._launch

    def slow() -> tuple[socket.socket, subprocess.Popen[bytes]]:
        channel, process = launch()
        assert select.select([channel], [], [], PATIENCE_S)[0]
        return channel, process

    async def story(node: Node) -> None:
        monkeypatch.setattr(forked, "_launch", slow)
        await node.fork_server.start()
        assert (await (await node.task()).prepared()).phase is ShimPhase.PREPARED

    any_stage.play(story, orphan_s=0.1)


def test_a_node_that_can_start_no_template_says_so(
    any_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot() -> None:
        raise OSError(errno.EMFILE, "x")

    async def story(node: Node) -> None:
        monkeypatch.setattr(forked, "_launch", cannot)
        with pytest.raises(DaemonError, match="did not start: Too many open files"):
            await node.fork_server.start()
        with pytest.raises(SpawnError, match="did not start: Too many open files"):
            await node.task()

    any_stage.play(story)


def test_a_folder_has_one_shim(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        with pytest.raises(SpawnError, match="still alive"):
            await node.fork_server.spawn(task.dir)
        await task.run("true")
        await task.ended()

    any_stage.play(story)


def test_a_folder_whose_path_is_longer_than_a_sockets(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        deep = node.state_dir / ("d" * 120)
        deep.mkdir()
        pid = await node.fork_server.spawn(deep / "7.1.0")
        task = await node.speak(deep / "7.1.0", pid)
        await task.run("true")
        assert (await task.ended()).exit == ShimExit(code=0)

    any_stage.play(story)


def test_nobody_answers_for_a_task_that_is_not_there(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        with pytest.raises(ShimUnreachable, match=r"7\.1\.0"):
            await connect(node.state_dir / "tasks" / "7.1.0", lambda _: None)

    any_stage.play(story)


def test_nothing_of_the_agents_reaches_shim_or_job(any_stage: Stage) -> None:
    secret = socket.socket()
    secret.bind(("127.0.0.1", 0))
    secret.listen()
    os.set_inheritable(secret.fileno(), True)

    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "10000")
        await task.phase(ShimPhase.RUNNING)
        inode = os.fstat(secret.fileno()).st_ino
        pids = [task.pid, *carriers(task)]
        assert len(pids) == 2
        for pid in pids:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            assert f"socket:[{inode}]" not in links
        assert os.readlink(f"/proc/{task.pid}/cwd") == "/"
        await task.send(ShimStop())
        await task.ended()

    any_stage.play(story)
    secret.close()


def test_junk_on_the_socket_is_complained_of_or_cut_off(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        writer = task.connection._transport
        assert writer is not None
        writer.write(b'{"cmd":"fly"}\n{"cmd":"start","argv":"true"}\n')
        status = await task.until(lambda status: status.complaint, "complained")
        assert "fly" in (status.complaint or "") or "argv" in (status.complaint or "")
        writer.write(b"{broken\n")
        async with asyncio.timeout(10):
            await task.connection.ended
        again = await node.again(task)
        await again.run("true")
        assert (await again.ended()).exit == ShimExit(code=0)

    any_stage.play(story)
