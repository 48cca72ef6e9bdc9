"""Malformed messages from a job's own process to its shim, in torchrun's place: neither shim nor
agent suffers.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec
import pytest

from agent.core.shim_protocol import ShimKill, ShimPhase, ShimStart, ShimStatus, ShimStop, StoppedBy
from agent.shim.commands import RANKS_MAX
from muster.protocol.link.log_channel import RANKS_PER_NODE_MAX, STREAMS_PER_TASK_MAX, streams_max
from muster.spec.roles import MAX_NPROC
from tests.agent.shims.conftest import Node, Spoken, Stage

PYTHON = sys.executable
# Stands in the place of the job's interpreter, and says what it likes over torchrun's channel.
SPEAKER = """#!{python}
import json, os, signal, socket
channel = socket.socket(fileno=60)

def tell(**message):
    channel.send(json.dumps(message).encode())

tell(t="hello", versions={versions})
channel.recv(65536)
tell(t="running")
tell(t="open", rank=0, local_rank=0)
{words}
"""
VERSIONS = {"python": "3.11.2", "torch": "2.4.0"}


async def speaker(
    node: Node, words: str, versions: dict[str, object] | None = None, name: str = "7.1.0"
) -> Spoken:
    """A task behind the gate, its interpreter being a program that says `words`."""
    script = Path(node.state_dir) / "speaker"
    text = SPEAKER.format(python=PYTHON, versions=versions or VERSIONS, words=words)
    script.write_text(text)
    script.chmod(0o755)
    task = await node.task(name)
    status = await task.prepared(launcher="torchrun", python=str(script))
    assert status.phase is ShimPhase.PREPARED, status.refusal
    return task


async def start(task: Spoken) -> None:
    await task.send(ShimStart(argv=["train.py"]))


WAIT = "signal.pause()"
HEARD = 'tell(t="rank", rank=0, pid=os.getpid())'


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("channel.send(b'[' * 60000)", id="nested"),
        pytest.param("channel.send(b'\\xff{')", id="no text"),
        pytest.param("tell(t='open', rank=True, local_rank=0)", id="a rank that is no number"),
        pytest.param("tell(t='rank', rank=0, pid=True)", id="a pid that is no number"),
        pytest.param("tell(t='rank', rank=0, pid=10**40)", id="a pid that none can be"),
        pytest.param("tell(t='exit', rank=0, code=True)", id="a code that is no number"),
        pytest.param("tell(t='exit', rank=0, code=10**40)", id="a code that none can be"),
        pytest.param("tell(t='exit', rank=0, signal=-10**40)", id="a signal that is none"),
        pytest.param("tell(t='exit', rank=0, code=0, signal=9)", id="two ends"),
        pytest.param("tell(t='exit', rank=0)", id="no end"),
    ],
)
def test_an_invalid_message_is_dropped_and_the_next_one_read(any_stage: Stage, words: str) -> None:
    async def story(node: Node) -> None:
        task = await speaker(node, f"{words}\n{HEARD}\n{WAIT}")
        await start(task)
        status = await task.until(lambda status: status.ranks and status.ranks[0].pid)
        [rank] = status.ranks
        assert rank.exit is None
        assert rank.pid is not None
        assert rank.pid < 1 << 22
        await task.send(ShimKill())
        status = await task.ended()
        assert status.stopped_by == StoppedBy.KILL
        assert msgspec.json.decode(task.read("exit.json"), type=ShimStatus) == status

    any_stage.play(story)


@pytest.mark.parametrize(
    "versions",
    [
        {"python": "3.11.2", "torch": 2.4},
        {"python": "3.11.2"},
        {**VERSIONS, "cuda": [12, 1]},
    ],
)
def test_versions_that_are_no_text_are_left_out(
    any_stage: Stage, versions: dict[str, object]
) -> None:
    async def story(node: Node) -> None:
        task = await speaker(node, WAIT, versions)
        found = task.last.fingerprint
        if isinstance(versions.get("torch"), str):
            assert found is not None
            assert (found.python, found.torch, found.cuda) == ("3.11.2", "2.4.0", None)
        else:
            assert found is None

    any_stage.play(story)


def test_a_program_that_sends_without_end_is_still_stopped(any_stage: Stage) -> None:
    words = """
for rank in range(1, 1 << 30):
    tell(t="open", rank=rank, local_rank=0)
"""

    async def story(node: Node) -> None:
        task = await speaker(node, words)
        await start(task)
        await task.phase(ShimPhase.RUNNING)
        await task.send(ShimKill())
        status = await task.ended()
        assert status.stopped_by == StoppedBy.KILL

    any_stage.play(story)


def test_a_rank_that_begins_after_the_stop_has_its_signal_too(stage: Stage) -> None:
    """A stop comes when it likes: as torchrun starts one rank after the other, say."""
    words = """
import subprocess, time

def begin(rank):
    tell(t="open", rank=rank, local_rank=rank)
    process = subprocess.Popen(["sleep", "1000"])
    tell(t="rank", rank=rank, pid=process.pid)
    return process

first = begin(0)
while os.pread(62, 1, 0) != b"1":
    time.sleep(0.01)
second = begin(1)
for rank, process in enumerate([first, second]):
    tell(t="exit", rank=rank, signal=-process.wait())
"""

    async def story(node: Node) -> None:
        task = await speaker(node, words)
        await start(task)
        await task.until(lambda status: status.ranks and status.ranks[0].pid)
        await task.send(ShimStop(signal="SIGINT", grace_s=5.0))
        status = await task.ended()
        ends = [rank.exit and rank.exit.signal for rank in status.ranks]
        assert ends == [signal.SIGINT, signal.SIGINT]

    stage.play(story)


def test_a_pid_that_is_no_integer_during_the_stop_is_dropped(stage: Stage) -> None:
    """It equals that of a living process, which ignores the signal."""
    words = """
import subprocess, sys, time
socket.recv_fds(channel, 65536, 2)  # the answer to the speaker's own question
process = subprocess.Popen(["sh", "-c", "trap '' INT; echo; exec sleep 1000"], stdout=-1)
process.stdout.readline()
tell(t="rank", rank=0, pid=process.pid)
while os.pread(62, 1, 0) != b"1":
    time.sleep(0.01)
tell(t="rank", rank=0, pid=float(process.pid))
# What answers this has read that.
tell(t="open", rank=0, local_rank=0)
socket.recv_fds(channel, 65536, 2)
process.terminate()
tell(t="exit", rank=0, signal=-process.wait())
"""

    async def story(node: Node) -> None:
        task = await speaker(node, words)
        await start(task)
        await task.until(lambda status: status.ranks and status.ranks[0].pid)
        await task.send(ShimStop(signal="SIGINT", grace_s=60.0))
        status = await task.ended()
        assert [rank.exit and rank.exit.signal for rank in status.ranks] == [signal.SIGTERM]

    stage.play(story)


@pytest.mark.parametrize(
    ("options", "at_once", "files"),
    [
        pytest.param(["--nnodes", "2", "--nproc-per-node", "3"], 3, 3, id="gang"),
        pytest.param(["--nnodes", "1:2", "--nproc-per-node", "3"], 3, 6, id="elastic gang"),
    ],
)
def test_a_launcher_gets_files_for_the_ranks_of_its_plan_and_no_others(
    any_stage: Stage, options: list[str], at_once: int, files: int
) -> None:
    words = f"""
socket.recv_fds(channel, 65536, 2)  # the answer to the speaker's own question
for number in 2 * list(range(8)):
    tell(t="open", rank=number, local_rank=number % min(8, {at_once}))
    for fd in socket.recv_fds(channel, 65536, 2)[1]:
        os.write(fd, b"x")
        os.close(fd)
for local_rank in (-1, {at_once}):
    tell(t="open", rank=0, local_rank=local_rank)
    assert not socket.recv_fds(channel, 65536, 2)[1]
tell(t="open", rank=0, local_rank=0)
fds = socket.recv_fds(channel, 65536, 2)[1]
tell(t="rank", rank=0, pid=os.getpid())
signal.pause()
"""

    async def story(node: Node) -> None:
        task = await speaker(node, words)
        await task.send(ShimStart(argv=[*options, "train.py", "--nproc-per-node", "7"]))
        status = await task.until(lambda status: status.ranks and status.ranks[0].pid)
        assert {s.rank for s in status.streams if s.rank is not None} == set(range(files))
        assert len(status.ranks) <= at_once
        assert "more ranks than the job has" in (status.complaint or "")
        await task.send(ShimKill())
        await task.ended()

    any_stage.play(story)


EARLY = """#!{python}
import json, signal, socket
channel = socket.socket(fileno=60)
for message in {messages}:
    channel.send(json.dumps(message).encode())
channel.recv(65536)
signal.pause()
"""


def test_a_launcher_does_not_run_before_it_is_started(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        script = Path(node.state_dir) / "early"
        open_one = {"t": "open", "rank": 0, "local_rank": 0}
        messages = [{"t": "hello", "versions": VERSIONS}, {"t": "running"}, open_one]
        script.write_text(EARLY.format(python=PYTHON, messages=messages))
        script.chmod(0o755)
        task = await node.task()
        status = await task.prepared(launcher="torchrun", python=str(script))
        assert status.phase is ShimPhase.PREPARED
        await task.send(ShimKill())
        status = await task.ended()
        assert status.running_s is None
        assert not status.ranks

    any_stage.play(story)


def test_both_sides_have_one_bound() -> None:
    assert RANKS_MAX == RANKS_PER_NODE_MAX == MAX_NPROC
    assert streams_max(RANKS_MAX) == STREAMS_PER_TASK_MAX
