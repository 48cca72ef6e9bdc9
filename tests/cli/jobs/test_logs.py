"""`muster logs`: bytes as they are, lines that never mix, streams that never look ended."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from muster.http import views as api
from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import timestamp
from tests.cli.conftest import DEADLINE_S, TREE, Run, Start
from tests.cli.jobs.test_log_options import on_a_terminal
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record

BINARY = bytes(range(256)) * 3 + b"no end of line"


def test_bytes_come_out_as_they_went_in(run: Run, fake: FakeCoordinator) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.log(record(1, BINARY), record(2, "ü\n"), record(3, b"\xff\x00", stream="stderr"))
    done = run("logs", "42")
    assert done.stdout == BINARY + "ü\n".encode()
    assert done.stderr == b"\xff\x00"
    assert done.returncode == 0


def test_rank_0_is_the_default_and_others_are_asked_for(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.log(
        record(1, "zero\n"), record(2, "one\n", rank=1), record(3, "eight\n", 8, node="gpu-02")
    )
    assert run("logs", "42").stdout == b"zero\n"
    assert run("logs", "42", "--rank", "1").stdout == b"one\n"
    assert run("logs", "42", "--rank", "all").stdout == (
        b"[gpu-01 r0] zero\n[gpu-01 r1] one\n[gpu-02 r8] eight\n"
    )
    assert run("logs", "42", "--node", "gpu-02").stdout == b"[gpu-02 r8] eight\n"
    assert run("logs", "42", "--rank", "all", "--no-prefix").stdout == b"zero\none\neight\n"
    assert run("logs", "42", "--rank", "x").returncode == 2


def test_ranks_never_share_a_line(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.log(
        record(1, "a1 "),
        record(2, "b1 ", rank=1),
        record(3, "a2\na3"),
        record(4, "launching\n", rank=None, stream="launcher"),
        record(5, "b2\n", rank=1),
        record(6, "e1\n", stream="stderr"),
    )
    done = run("logs", "42", "--rank", "all")
    assert done.stdout == b"[gpu-01 r0] a1 a2\n[gpu-01 r1] b1 b2\n[gpu-01 r0] a3\n"
    assert done.stderr == b"[gpu-01 r0] e1\n"
    plain = run("logs", "42", "--rank", "all", "--no-prefix")
    assert (plain.stdout, plain.stderr) == (b"a1 a2\nb1 b2\na3\n", b"e1\n")
    everything = run("logs", "42", "--node", "gpu-01")
    assert everything.stderr == b"[gpu-01 launcher] launching\n[gpu-01 r0] e1\n"


def test_a_line_without_end_does_not_fill_the_memory(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.log(*(record(number, "x" * 50_000) for number in range(1, 5)))
    lines = run("logs", "42", "--rank", "all").stdout.splitlines()
    assert sum(len(line.removeprefix(b"[gpu-01 r0] ")) for line in lines) == 200_000
    assert all(line.startswith(b"[gpu-01 r0] ") for line in lines)
    assert max(map(len, lines)) < 70_000


def test_a_single_rank_has_no_prefix(run: Run, fake: FakeCoordinator) -> None:
    task = api.TaskView(
        "gpu-01", 0, "launcher", TaskState.STARTED, (api.RankView(0, None),), None, None
    )
    attempt = api.AttemptView(1, "RUNNING", (task,), None, None, timestamp(1), timestamp(2), None)
    fake.put(job_view(nodes=1, attempts=(attempt,)))
    fake.log(record(1, "progress 10%\rprogress 20%\r"))
    assert run("logs", "42", "--rank", "all").stdout == b"progress 10%\rprogress 20%\r"


def test_a_gang_that_may_grow_is_never_one_rank(run: Run, fake: FakeCoordinator) -> None:
    task = api.TaskView(
        "gpu-01", 0, "launcher", TaskState.STARTED, (api.RankView(0, None),), None, None
    )
    attempt = api.AttemptView(1, "RUNNING", (task,), None, None, timestamp(1), timestamp(2), None)
    fake.put(job_view(nodes=1, max_nodes=2, attempts=(attempt,)))
    fake.log(record(1, "a1 "), record(2, "b1\n", rank=1, node="gpu-02"), record(3, "a2\n"))
    done = run("logs", "42", "--rank", "all")
    assert done.stdout == b"[gpu-02 r1] b1\n[gpu-01 r0] a1 a2\n"


def test_the_last_attempt_is_the_default(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(attempt=3))
    for arguments, attempt in (((), "attempt=3"), (("--attempt", "1"), "attempt=1")):
        run("logs", "42", *arguments)
        assert attempt in [line for line in fake.script.requests if "/logs?" in line][-1]


def test_following_goes_on_into_the_next_attempt(run: Run, fake: FakeCoordinator) -> None:
    fake.put(ended(job_view(attempt=2), JobState.SUCCEEDED, 0))
    again = msgspec.structs.replace(record(2, "two\n"), attempt=2)
    fake.log(record(1, "one\n"), again)
    done = run("logs", "-f", "42")
    assert done.stdout == b"one\ntwo\n"
    assert b"muster: attempt 2 of job 42\n" in done.stderr


def test_a_job_that_has_not_begun_is_followed_from_its_first_byte(
    start: Start, fake: FakeCoordinator
) -> None:
    """Also where the coordinator is away as it begins."""
    fake.put(job_view(state=JobState.QUEUED, attempt=0, started_at=None))
    process = start("logs", "-f", "42")
    assert process.stderr is not None
    assert b"its logs begin when it starts" in process.stderr.readline()
    fake.stop()
    fake.log(*(record(number, f"{number}\n") for number in range(1, 31)))
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.start()
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert out.split() == [b"%d" % number for number in range(1, 31)]


def test_a_line_that_an_attempt_left_open_comes_before_the_next_attempt(
    run: Run, fake: FakeCoordinator
) -> None:
    fake.put(ended(job_view(attempt=2), JobState.SUCCEEDED, 0))
    again = msgspec.structs.replace(record(2, "two\nthr"), attempt=2)
    late = record(3, "late\n", rank=1)
    rest = msgspec.structs.replace(record(4, "ee\n"), attempt=2)
    fake.log(record(1, "no end"), again, late, rest)
    done = run("logs", "-f", "42", "--rank", "all")
    assert done.stdout.splitlines() == [
        b"[gpu-01 r0] no end",
        b"[gpu-01 r0] two",
        b"[gpu-01 r1] late",
        b"[gpu-01 r0] three",
    ]


def test_on_a_terminal_what_is_said_of_the_next_attempt_has_a_line_of_its_own(
    environ: dict[str, str], fake: FakeCoordinator
) -> None:
    fake.put(ended(job_view(attempt=2), JobState.SUCCEEDED, 0))
    fake.log(record(1, "10%"), msgspec.structs.replace(record(2, "two\n"), attempt=2))
    shown = on_a_terminal(environ, "logs", "-f", "42")
    assert b"10%\r\nmuster: attempt 2 of job 42\r\ntwo\r\n" in shown


def test_streams_are_chosen(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.log(record(1, "out\n"), record(2, "err\n", stream="stderr"))
    done = run("logs", "42", "--stderr")
    assert (done.stdout, done.stderr) == (b"", b"err\n")
    fake.log(record(3, "installing\n", rank=0, stream="setup"))
    both = run("logs", "42", "--stdout", "--stderr")
    assert (both.stdout, both.stderr) == (b"out\n", b"err\n")


def test_the_errors_of_the_rank_that_failed_come_after_rank_0(
    run: Run, fake: FakeCoordinator
) -> None:
    cause = Cause(CauseCode.RANK_FAILED, Outcome.USER, "exited", "gpu-02", 9, ExitStatus(17))
    attempt = api.AttemptView(
        1, "CLOSED", (), cause, None, timestamp(1), timestamp(2), timestamp(3)
    )
    fake.put(ended(job_view(attempts=(attempt,)), JobState.FAILED, 17))
    fake.log(
        record(1, "step 1\n"),
        record(2, "CUDA error\n", rank=9, stream="stderr", node="gpu-02"),
        record(3, "other\n", rank=3, stream="stderr"),
    )
    done = run("logs", "42")
    assert (done.stdout, done.stderr) == (b"step 1\n", b"[gpu-02 r9] CUDA error\n")
    assert done.returncode == 0
    assert run("logs", "42", "--exit-status").returncode == 17


def test_the_exit_status_of_a_job_that_runs_is_not_known(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    done = run("logs", "42", "--exit-status")
    assert done.returncode == 125
    assert b"has not ended" in done.stderr


def test_following_goes_over_cuts_and_a_restart_to_the_end(
    start: Start, fake: FakeCoordinator
) -> None:
    fake.put(job_view())
    fake.script.cuts = [1, 0]
    fake.log(record(1, "one\n"), record(2, "two\n"))
    process = start("logs", "-f", "42", "--exit-status")
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    assert process.stdout.readline() == b"two\n"
    fake.stop()
    fake.script.logs.append(record(3, "three\n"))
    fake.start()
    assert process.stdout.readline() == b"three\n"
    fake.put(ended(job_view(), JobState.FAILED, 3, "rank 0 exited with 3"))
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (out, process.returncode) == (b"", 3)
    assert b"job 42 FAILED: rank 0 exited with 3 (exit code 3)" in err
    assert b"Traceback" not in err


def test_following_a_queued_job_says_why_it_waits(start: Start, fake: FakeCoordinator) -> None:
    fake.put(
        job_view(
            state=JobState.QUEUED, started_at=None, reason=api.Reason("full", "2 nodes are busy")
        )
    )
    process = start("logs", "-f", "42")
    assert process.stderr is not None
    assert b"is QUEUED (2 nodes are busy)" in process.stderr.readline()
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


def test_ctrl_c_detaches_and_leaves_the_job_alone(start: Start, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.log(record(1, "one\n"))
    process = start("logs", "-f", "42")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert err == (b"muster: detached; job 42 continues: muster logs -f 42 | muster cancel 42\n")
    assert not fake.script.cancelled


def test_ten_last_lines_are_the_default_when_following(run: Run, fake: FakeCoordinator) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    for arguments, tail in (
        (("-f",), "tail=10"),
        ((), None),
        (("-f", "--tail", "all"), None),
        (("--tail", "3"), "tail=3"),
    ):
        run("logs", "42", *arguments)
        asked = [line for line in fake.script.requests if "/logs?" in line][-1]
        assert (tail in asked) if tail else ("tail" not in asked), arguments


def test_a_reader_that_has_enough_ends_it_quietly(
    fake: FakeCoordinator, environ: dict[str, str]
) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.log(*(record(number, "x" * 100_000 + "\n") for number in range(1, 40)))
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "muster.cli", "logs", "42"],
        env=environ,
        cwd=TREE,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    os.read(reading, 10)
    os.close(reading)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, b"")


def test_a_full_disk_is_a_sentence(fake: FakeCoordinator, environ: dict[str, str]) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.log(record(1, "x" * 100_000))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "muster.cli", "logs", "42"],
            env=environ,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (125, b"muster: No space left on device\n")


def test_records_are_read_as_the_protocol_writes_them() -> None:
    entry = record(1, b"\x00\xff")
    assert msgspec.json.decode(msgspec.json.encode(entry), type=api.LogRecord) == entry
    assert entry.data is None


def test_a_rank_or_a_node_that_the_job_does_not_have(run: Run, fake: FakeCoordinator) -> None:
    ranks = (api.RankView(0, None), api.RankView(1, None))
    task = api.TaskView("gpu-01", 0, "launcher", TaskState.STARTED, ranks, None, None)
    attempt = api.AttemptView(1, "running", (task,), None, None, timestamp(1), timestamp(2), None)
    fake.put(job_view(attempts=(attempt,)))
    fake.log(record(1, "zero\n"))
    rank = run("logs", "42", "--rank", "7")
    assert (rank.returncode, rank.stdout) == (125, b"")
    assert b"job 42 has no rank 7: 0 to 1 are there" in rank.stderr
    node = run("logs", "42", "--node", "nosuch")
    assert b"job 42 has no node nosuch, only gpu-01" in node.stderr


def test_a_rank_that_the_specification_rules_out(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(spec={"run": ["train.py"], "nproc_per_node": 1}))
    for arguments in (("--rank", "2"), ("--rank", "2", "-f")):
        done = run("logs", "42", *arguments)
        assert (done.returncode, done.stdout) == (125, b"")
        assert b"job 42 has no rank 2: 0 to 1 are there" in done.stderr
    fake.put(job_view(spec={"run": ["train.py"], "launcher": "none"}, nodes=1))
    assert b"no rank 1: only rank 0 is there" in run("logs", "42", "--rank", "1").stderr


def test_a_rank_that_was_on_another_node(run: Run, fake: FakeCoordinator) -> None:
    tasks = tuple(
        api.TaskView(f"gpu-0{n + 1}", n, "worker", TaskState.STARTED, (), None, None)
        for n in range(2)
    )
    attempt = api.AttemptView(1, "running", tasks, None, None, timestamp(1), timestamp(2), None)
    fake.put(job_view(attempts=(attempt,), spec={"run": ["train.py"], "nproc_per_node": 2}))
    fake.log(record(1, "zero\n"))
    done = run("logs", "42", "--node", "gpu-02", "--rank", "0")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"rank 0 of job 42 is not on gpu-02, which has ranks 2 to 3" in done.stderr
    assert run("logs", "42", "--node", "gpu-01", "--rank", "0").stdout == b"zero\n"
    assert run("logs", "42", "--node", "gpu-02", "--rank", "3").returncode == 0


def test_on_a_terminal_the_closing_sentence_has_a_line_of_its_own(
    environ: dict[str, str], fake: FakeCoordinator
) -> None:
    fake.put(ended(job_view(), JobState.FAILED, 1, "rank 0 on gpu-01 exited with code 1"))
    fake.log(record(1, "loss 0.5"))
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        done = subprocess.Popen(
            [sys.executable, "-m", "muster.cli", "logs", "-f", "42"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := terminal.read(4096):
                shown += piece
        except OSError:
            pass  # the end of a pseudo-terminal
        assert done.wait(DEADLINE_S) == 0
    assert b"loss 0.5\r\nmuster: job 42 FAILED: rank 0 on gpu-01" in shown
