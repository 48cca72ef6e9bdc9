"""`-w`: in place on a terminal, changes only in a pipe, and a terminal that is given back whole."""

import json
import signal
from collections.abc import Callable, Iterator

import msgspec
import pytest

from muster.protocol.states import JobState
from tests.cli.cluster.test_about import NODE
from tests.cli.conftest import DEADLINE_S, Run, Start
from tests.cli.terminal import Terminal
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view

ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
Open = Callable[..., Terminal]


@pytest.fixture
def terminal(environ: dict[str, str], fake: FakeCoordinator) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, width: int = 80, height: int = 24) -> Terminal:
        opened.append(Terminal(environ, *arguments, width=width, height=height))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.kill()


def test_it_ends_when_nothing_waits_or_runs_and_leaves_the_last_view(
    terminal: Open, fake: FakeCoordinator
) -> None:
    fake.put(job_view(42))
    shown = terminal("ps", "-w", "-n", "5")
    shown.until(lambda raw: b"RUNNING" in raw)
    assert shown.raw.startswith(ENTER)
    fake.put(ended(job_view(42), JobState.FAILED, 3, "rank 0 exited with 3"))
    assert shown.end() == 0
    before, after = shown.raw.split(LEAVE)
    assert b"FAILED" in after
    assert b"\x1b[2J" not in before, "a screen that is cleared flickers"
    assert before.count(b"\x1b[H") >= 1


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_terminal_is_given_back_however_it_ends(
    terminal: Open, fake: FakeCoordinator, number: signal.Signals, code: int
) -> None:
    fake.put(job_view(42))
    shown = terminal("ps", "-w")
    shown.until(lambda raw: b"RUNNING" in raw)
    shown.process.send_signal(number)
    assert shown.end() == code
    assert shown.raw.count(ENTER) == shown.raw.count(LEAVE) == 1
    assert b"Traceback" not in shown.raw


def test_more_jobs_than_lines_are_counted_and_a_new_size_is_taken(
    terminal: Open, fake: FakeCoordinator
) -> None:
    for number in range(1, 31):
        fake.put(job_view(number))
    shown = terminal("ps", "-w", height=10)
    shown.until(lambda raw: b"... and 23 more" in raw)
    shown.resize(80, 40)
    shown.until(lambda raw: b"\n 1  train" in raw.replace(b"\x1b[K", b""))
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 130


def test_a_coordinator_that_is_away_is_said_and_asked_again(
    terminal: Open, fake: FakeCoordinator
) -> None:
    fake.put(job_view(42))
    shown = terminal("ps", "-w", "-n", "3", width=100)
    shown.until(lambda raw: b"RUNNING" in raw)
    fake.stop()
    shown.until(lambda raw: b"does not answer" in raw)
    fake.put(ended(job_view(42), JobState.SUCCEEDED, 0))
    fake.start()
    assert shown.end() == 0


def test_in_a_pipe_only_changes_are_printed_and_nothing_odd(
    start: Start, fake: FakeCoordinator
) -> None:
    fake.put(job_view(42))
    process = start("ps", "-w", "-n", "3")
    assert process.stdout is not None
    assert process.stdout.readline().split()[0] == b"ID"
    assert b"RUNNING" in process.stdout.readline()
    fake.put(ended(job_view(42), JobState.SUCCEEDED, 0))
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, b"")
    assert out.count(b"\n") == 2
    assert b"SUCCEEDED" in out
    assert b"\x1b" not in out


def test_as_json_each_change_is_a_line(start: Start, fake: FakeCoordinator) -> None:
    fake.put(job_view(42))
    process = start("ps", "-w", "--json", "-n", "3")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["jobs"][0]["state"] == "RUNNING"
    fake.put(ended(job_view(42), JobState.SUCCEEDED, 0))
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert json.loads(out)["jobs"][0]["state"] == "SUCCEEDED"


def test_an_empty_queue_is_nothing_to_watch(run: Run, fake: FakeCoordinator) -> None:
    done = run("ps", "-w")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"no job waits or runs" in done.stderr


def test_nodes_are_watched_until_ctrl_c(start: Start, fake: FakeCoordinator) -> None:
    fake.script.nodes = (NODE,)
    process = start("nodes", "-w", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["nodes"][0]["link"] == "connected"
    fake.script.nodes = (msgspec.structs.replace(NODE, link="lost"),)
    assert json.loads(process.stdout.readline())["nodes"][0]["link"] == "lost"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (130, b"")
