"""The verbs that only look: ps, show, nodes, events, version, and how they fail."""

import json
import re
import signal
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from muster.http import views as api
from muster.protocol.observations.ranks_start import RanksStart
from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import timestamp
from tests.cli.conftest import DEADLINE_S, Run, Start
from tests.cli.terminal import Terminal
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view


def node(name: str) -> api.NodeView:
    return api.NodeView(
        name=name,
        link="connected",
        state=api.Reason("free", "free"),
        address="10.0.0.1",
        pool="default",
        gpus=8,
        gpu_model="H100",
        cpus=96,
        memory_bytes=1 << 40,
        labels={},
        job=None,
        attempt=None,
        last_seen_s=2.0,
        version="0.1.0",
    )


def failed_job() -> api.JobView:
    task = api.TaskView(
        node="gpu-03",
        node_rank=1,
        role="worker",
        state=TaskState.CLEANED,
        ranks=(api.RankView(8, ExitStatus(0)), api.RankView(9, ExitStatus(17))),
        exit=ExitStatus(1),
        refusal=None,
    )
    cause = Cause(
        CauseCode.RANK_FAILED,
        Outcome.USER,
        "rank 9 on gpu-03 exited with 17",
        "gpu-03",
        9,
        ExitStatus(17),
    )
    attempt = api.AttemptView(
        1, "CLOSED", (task,), cause, "gpu-01:20001", timestamp(1), timestamp(2), timestamp(3)
    )
    steps = (
        api.Step(timestamp(1_700_000_000), "submitted"),
        api.Step(timestamp(1_700_000_065), "started"),
    )
    view = job_view(attempts=(attempt,), timeline=steps)
    return ended(view, JobState.FAILED, 17, "rank 9 on gpu-03 exited with 17")


def test_show_quotes_the_last_words_of_what_failed_and_nothing_in_them_moves_the_cursor(
    run: Run, fake: FakeCoordinator
) -> None:
    view = failed_job()
    said = "Traceback:\n\x1b[2J\tboom\rover\nValueError: \u202e" + "\nx" * 10
    known = view.attempts[0].cause
    assert known is not None
    cause = msgspec.structs.replace(known, tail=said, kind="exception")
    task = msgspec.structs.replace(
        view.attempts[0].tasks[0],
        ranks=(
            api.RankView(8, ExitStatus(0), stopped=True),
            api.RankView(9, ExitStatus(17)),
            api.RankView(10, ExitStatus(signal=15), stopped=True),
        ),
    )
    attempt = msgspec.structs.replace(view.attempts[0], cause=cause, tasks=(task,))
    fake.put(msgspec.structs.replace(view, attempts=(attempt,), failure="exception"))
    text = run("show", "42").stdout.decode()
    lines = text.splitlines()
    assert known.rank is not None
    at = lines.index(f"  last lines of rank {known.rank} on {known.node}:")
    assert len([line for line in lines[at + 1 :] if line == "    x"]) == 10
    assert "\x1b" not in text
    assert "\r" not in text
    assert "    \\x1b[2J    boom" in text
    assert "ValueError: \\u202e" in text
    assert "8-10 (9: exit 17, 2 stopped by Muster)" in text
    assert json.loads(run("show", "42", "--json").stdout)["failure"] == "exception"


def test_show_counts_down(run: Run, fake: FakeCoordinator) -> None:
    now = timestamp(1_700_000_123)  # by the clock of the fake
    fake.put(job_view(1, state=JobState.RUNNING, limit_at=now + timedelta(seconds=725)))
    fake.put(job_view(2, state=JobState.STOPPING, kill_at=now + timedelta(seconds=55)))
    fake.put(job_view(3, state=JobState.STOPPING, kill_at=now - timedelta(seconds=5)))
    assert re.search(r"time limit: ends in 1[12]m", run("show", "1").stdout.decode())
    assert re.search(r"stopping: \d+s of the grace period left", run("show", "2").stdout.decode())
    assert "the grace period is over" in run("show", "3").stdout.decode()
    assert json.loads(run("show", "2", "--json").stdout)["kill_at"] == "2023-11-14T22:16:18Z"


def test_show_of_a_job_that_waits_for_its_next_attempt_does_not_say_that_it_runs(
    run: Run, fake: FakeCoordinator
) -> None:
    began = timestamp(1_700_000_000)
    fake.put(job_view(1, state=JobState.RETRYING, started_at=began))
    fake.put(job_view(2, state=JobState.RUNNING, started_at=began))
    shown = run("show", "1").stdout.decode()
    assert re.search(r"started .*, the first time; does not run now", shown), shown
    assert "runs for" not in shown
    assert "runs for" in run("show", "2").stdout.decode()


def test_show_and_ps_have_the_promised_start(run: Run, fake: FakeCoordinator) -> None:
    now = timestamp(1_700_000_123)  # by the clock of the fake
    by = now + timedelta(seconds=725)
    fake.put(job_view(1, state=JobState.QUEUED, starts_by=by))
    shown = run("show", "1").stdout.decode()
    assert re.search(r"promised start: by 2023-11-14T22:27:28Z \(in 1[12]m", shown)
    assert re.search(r"starts within 1[12]m", run("ps").stdout.decode())
    assert json.loads(run("show", "1", "--json").stdout)["starts_by"] == "2023-11-14T22:27:28Z"


def test_ps_lists_what_waits_and_runs(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(1, state=JobState.SUCCEEDED, name="old"))
    fake.put(job_view(2, name="new", gpus=16))
    done = run("ps")
    heading, line = done.stdout.decode().splitlines()
    assert heading.split() == ["ID", "NAME", "USER", "STATE", "NODES", "GPUS", "TIME", "REASON"]
    assert line.split() == ["2", "new", "alice", "RUNNING", "2", "16", "2m00s", "2", "nodes", "run"]
    assert done.stderr == b""


def test_ps_lists_ended_jobs_when_asked(run: Run, fake: FakeCoordinator) -> None:
    for number in range(1, 5):
        fake.put(ended(job_view(number), JobState.SUCCEEDED, 0))
    assert run("ps").stdout == b""
    assert len(run("ps", "-a").stdout.splitlines()) == 5
    newest = run("ps", "-n", "2").stdout.splitlines()[1:]
    assert [line.split()[0] for line in newest] == [b"4", b"3"]
    assert len(run("ps", "--state", "failed", "--state", "succeeded").stdout.splitlines()) == 5
    assert run("ps", "-a", "--user", "bob").stdout == b""


def test_json_is_what_the_api_gives(run: Run, fake: FakeCoordinator) -> None:
    fake.put(failed_job())
    fake.script.nodes = (node("gpu-01"),)
    assert msgspec.json.decode(run("show", "42", "--json").stdout, type=api.JobView) == failed_job()
    assert json.loads(run("ps", "-a", "--json").stdout)["jobs"][0]["id"] == 42
    assert json.loads(run("nodes", "--json").stdout)["nodes"][0]["name"] == "gpu-01"


def test_show_names_the_first_failing_rank(run: Run, fake: FakeCoordinator) -> None:
    fake.put(failed_job())
    text = run("show", "42").stdout.decode()
    assert "job 42  train  FAILED, exit code 17\n" in text
    assert text.count("rank 9 on gpu-03 exited with 17") == 1
    assert "8-9 (9: exit 17)" in text
    assert "2023-11-14T22:14:25Z   +1m05s  started" in text


def test_a_job_goes_by_its_name_and_by_last(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(1, name="a"))
    fake.put(job_view(2, name="a"))
    fake.put(job_view(3, name="b"))
    fake.put(job_view(4, name="a", user="bob"))
    for text, number in (("a", 2), ("b", 3), ("last", 3), ("-", 3), ("4", 4)):
        assert run("show", text).stdout.startswith(f"job {number} ".encode()), text
    unknown = run("show", "c")
    assert unknown.returncode == 125
    assert b"none of your jobs is named 'c'" in unknown.stderr


def test_events_come_in_order_over_pages(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.script.events = tuple(
        api.EventView(seq, timestamp(1_700_000_000 + seq), "JobSubmitted", 42, f"step {seq}", {})
        for seq in (3, 5)
    )
    lines = run("events", "42").stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["SEQ", "3", "5"]
    assert len(json.loads(run("events", "42", "--json").stdout)["events"]) == 2


def event(seq: int, text: str) -> api.EventView:
    return api.EventView(seq, timestamp(1_700_000_000.0 + seq), "JobSubmitted", 42, text, {})


def test_events_are_followed_until_the_job_ends(start: Start, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.happened(event(3, "submitted by \x1b[2Jbob"))
    process = start("events", "-f", "42")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == b"   3  2023-11-14T22:13:23Z  JobSubmitted     submitted by \\x1b[2Jbob\n"
    fake.happened(event(4, "placed"))
    assert process.stdout.readline().endswith(b"placed\n")
    fake.happened(event(5, "over"))
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out.count(b"\n"), err) == (0, 1, b"")


def test_following_events_detaches(start: Start, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    fake.happened(event(3, "submitted"))
    process = start("events", "-f", "42", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["seq"] == 3
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert b"job 42 continues: muster events -f 42" in err


def test_nodes_are_listed(run: Run, fake: FakeCoordinator) -> None:
    empty = run("nodes")
    assert (empty.returncode, empty.stdout) == (0, b"")
    assert b"muster agent" in empty.stderr
    fake.script.nodes = (node("gpu-01"),)
    assert "0/8 H100    96  1024GiB" in run("nodes").stdout.decode()
    fake.script.coordinator_warnings = ("the coordinator's tls.ca, ca.pem, ends soon",)
    assert b"muster: the coordinator's tls.ca, ca.pem, ends soon" in run("nodes").stderr


def test_version_shows_both_sides(run: Run, fake: FakeCoordinator) -> None:
    text = run("version").stdout.decode()
    assert text.startswith("client ")
    assert f"coordinator  0.1.0, protocol 1, {fake.url}" in text
    assert "alice (admin)" in text
    alone = run("version", MUSTER_TOKEN="")
    assert alone.stdout.startswith(b"client ")
    assert alone.returncode == 125


def test_terminal_escapes_are_spelled_out(run: Run, fake: FakeCoordinator) -> None:
    hostile = "\x1b]0;owned\x07 \x9b31m\r\nnext"
    fake.put(job_view(name=hostile, reason=api.Reason("x", hostile)))
    for arguments in (("ps",), ("show", "42")):
        text = run(*arguments).stdout.decode()
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\r"}
        assert "\\x1b]0;owned\\x07" in text


def test_a_wrong_token_is_a_sentence(run: Run, fake: FakeCoordinator) -> None:
    done = run("ps", MUSTER_TOKEN="muster_admin_other_x")
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"muster: the token is missing or wrong")


def test_an_unknown_job_is_a_sentence(run: Run, fake: FakeCoordinator) -> None:
    done = run("show", "7")
    assert (done.returncode, done.stderr) == (125, b"muster: there is no job 7\n")


def test_flags_beat_the_environment(run: Run, fake: FakeCoordinator, tmp_path: object) -> None:
    done = run("ps", "--url", fake.url, MUSTER_URL="http://127.0.0.1:1")
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [("ps", "-n", "0"), ("ps", "--state", "x"), ("show",)])
def test_wrong_usage_is_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode == 2


@pytest.mark.parametrize(
    ("run_key", "line"),
    [
        (["train.py", "--name", "a b"], "runs      torchrun: train.py --name 'a b'"),
        ("set -x\n./bench.sh", "runs      torchrun: set -x ./bench.sh"),
        (["x" * 500], f"runs      torchrun: {'x' * 200}…"),
        (["a\x1b[2J"], "runs      torchrun: 'a\\x1b[2J'"),
    ],
)
def test_show_says_what_runs(run: Run, fake: FakeCoordinator, run_key: object, line: str) -> None:
    spec = {"run": run_key, "launcher": "torchrun", "workdir": "/shared/x"}
    fake.put(job_view(1, spec=spec))
    lines = [text.strip() for text in run("show", "1").stdout.decode().splitlines()]
    assert line in lines
    assert "in        /shared/x" in lines


def test_show_says_that_the_code_was_sent(run: Run, fake: FakeCoordinator) -> None:
    spec = {"run": ["train.py"], "launcher": "torchrun", "workdir": {"bundle": "ab" * 32}}
    fake.put(job_view(1, spec=spec))
    lines = [text.strip() for text in run("show", "1").stdout.decode().splitlines()]
    assert "in        a copy of the code that was sent, abababababab" in lines


def test_an_error_says_where_the_address_and_the_token_are_from(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    wrong = run("ps", MUSTER_TOKEN="muster_admin_other_x")
    assert b"your token is from MUSTER_TOKEN; " + fake.url.encode() in wrong.stderr
    file = tmp_path / "other.yaml"
    # A wrong scheme: for a coordinator that is away it would wait.
    url = fake.url.replace("http:", "https:")
    file.write_text(f'url: "{url}"\ntoken: "muster_admin_other_x"\n')
    file.chmod(0o600)
    other = run("ps", "--config", str(file), MUSTER_URL="", MUSTER_TOKEN="")
    assert (other.returncode, other.stdout) == (125, b"")
    assert f"this address is from {file}\n".encode() in other.stderr
    fake.stop()
    away = run("ps", "--url", fake.url)
    assert away.returncode == 125
    assert b"nothing listens there" in away.stderr
    assert b"Traceback" not in away.stderr
    assert f"the coordinator at {fake.url} does not answer".encode() in away.stderr
    assert b"`url` in the file that --config names; this address is from --url\n" in away.stderr
    missing = run("ps", "--config", "missing.yaml")
    assert missing.stderr == b"muster: missing.yaml, named by --config, does not exist\n"


def test_an_older_coordinator_is_named_where_it_does_not_know_a_request(
    run: Run, fake: FakeCoordinator
) -> None:
    problem = (
        b'{"type":"x","title":"x","status":404,"code":"no_such_route","detail":"nothing at /x"}'
    )
    fake.script.first_answers = [(404, problem, "application/problem+json")]
    done = run("nodes")
    assert done.returncode == 125
    assert b"does not know this request: compare `muster version` on both sides" in done.stderr


def test_nodes_of_an_elastic_job_are_those_it_has_of_those_it_can_use(
    run: Run, fake: FakeCoordinator
) -> None:
    fake.put(job_view(1, nodes=2, max_nodes=4, nodes_now=3))
    fake.put(job_view(2, nodes=1, max_nodes=3, state=JobState.QUEUED))
    fake.put(job_view(3, nodes=5, nodes_now=5))
    rows = run("ps").stdout.decode().splitlines()
    assert [re.split("  +", row.strip())[4] for row in rows] == ["NODES", "5", "1..3", "3 of 2..4"]


def test_jobs_of_one_pool_are_listed(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(1, pool="a"))
    fake.put(job_view(2, pool="b"))
    assert [job["id"] for job in json.loads(run("ps", "--pool", "b", "--json").stdout)["jobs"]] == [
        2
    ]


def exited(*ranks: api.RankView, code: int, launcher: str = "torchrun") -> api.JobView:
    task = api.TaskView("gpu-01", 0, "launcher", TaskState.CLEANED, ranks, ExitStatus(code), None)
    attempt = api.AttemptView(1, "closed", (task,), None, None, timestamp(1), timestamp(2), None)
    return job_view(attempts=(attempt,), spec={"run": "x", "launcher": launcher})


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (exited(api.RankView(0, ExitStatus(0)), api.RankView(1, ExitStatus(9)), code=1), "9"),
        (exited(api.RankView(0, ExitStatus(signal=9)), code=1), "signal 9"),
        (exited(code=1), "1 (torchrun)"),
        (exited(code=1, launcher="none"), "1"),
        (exited(api.RankView(0, ExitStatus(signal=15), stopped=True), code=1), "stopped"),
        (exited(api.RankView(0, ExitStatus(0)), code=0), "0"),
    ],
)
def test_the_exit_of_a_node_is_that_of_its_rank(
    run: Run, fake: FakeCoordinator, view: api.JobView, shown: str
) -> None:
    fake.put(view)
    row = next(line for line in run("show", "42").stdout.decode().splitlines() if "gpu-01" in line)
    assert re.split("  +", row.strip())[5] == shown


def test_show_says_how_ranks_were_started_and_how_long_each_part_took(
    run: Run, fake: FakeCoordinator
) -> None:
    why = "transformers started a thread"
    starts = [
        *[RanksStart("fork", "", 1.0, 0.0, 0.01, 0.02 + number / 10) for number in range(4)],
        RanksStart("exec", why, 1.2, 2.5),
        RanksStart("exec", "", 1.3, 0.0, 0.0, 0.0001),
        None,
    ]
    tasks = tuple(
        api.TaskView(f"n{at}", at, "worker", TaskState.STARTED, (), None, None, start=start)
        for at, start in enumerate(starts)
    )
    attempt = api.AttemptView(1, "running", tasks, None, None, timestamp(1), timestamp(2), None)
    fake.put(job_view(attempts=(attempt,)))
    shown = " ".join(run("show", "42").stdout.decode().split())
    parts = "(import of torch 1.00 s, check 0.01 s, fork 0.32 s)"
    assert f"ranks: n0, n1, n2 and 1 more: forked {parts}" in shown
    took = "(import of torch 1.20 s, preload 2.50 s)"
    assert f"ranks: n4: by exec instead of fork, because {why} {took}" in shown
    assert "ranks: n5: by exec, as `start_method: exec` asks (import of torch 1.30 s)" in shown
    assert shown.count("ranks: ") == 3


@pytest.mark.parametrize("how", [ExitStatus(signal=9), ExitStatus(1)])
def test_after_a_time_limit_every_node_is_said_to_be_stopped(
    run: Run, fake: FakeCoordinator, how: ExitStatus
) -> None:
    """This includes a node whose torchrun was killed before it could report its ranks."""
    ended_ranks = (api.RankView(0, ExitStatus(signal=15), stopped=True),)
    tasks = (
        api.TaskView("gpu-01", 0, "launcher", TaskState.CLEANED, ended_ranks, ExitStatus(1), None),
        api.TaskView("gpu-02", 1, "worker", TaskState.CLEANED, (), how, None),
    )
    cause = Cause(CauseCode.TIME_LIMIT, Outcome.TIME_LIMIT, "its time limit of 20s was over")
    attempt = api.AttemptView(1, "closed", tasks, cause, None, timestamp(1), None, timestamp(3))
    fake.put(job_view(attempts=(attempt,), spec={"run": "x", "launcher": "torchrun"}))
    lines = run("show", "42").stdout.decode().splitlines()
    rows = [re.split("  +", line.strip()) for line in lines if line.startswith("  gpu-0")]
    assert [row[5] for row in rows] == ["stopped", "stopped"]


def test_a_failed_setup_is_shown_once_with_its_lines(run: Run, fake: FakeCoordinator) -> None:
    sentence = "`setup` exited with code 7"
    said = api.Reason("setup_failed", f"{sentence}; its last lines:\nno such wheel\nhint: none")
    task = api.TaskView("gpu-01", 0, "launcher", TaskState.CLEANED, (), None, said)
    cause = Cause(
        CauseCode.PREPARE_REFUSED,
        Outcome.INFRA,
        f"gpu-01 refused: {sentence}",
        "gpu-01",
        tail="no such wheel\nhint: none",
    )
    attempt = api.AttemptView(1, "closed", (task,), cause, None, timestamp(1), None, timestamp(3))
    fake.put(job_view(attempts=(attempt,)))
    text = run("show", "42").stdout.decode()
    assert "\\n" not in text
    assert "its last lines:" not in text
    assert text.count("no such wheel") == 1
    assert "  last lines on gpu-01:\n    no such wheel\n    hint: none\n" in text


def test_a_long_sentence_is_said_once(run: Run, fake: FakeCoordinator) -> None:
    said = "node-2 refused: the folder /shared/data/x does not exist on it, and nobody made it"
    cause = Cause(CauseCode.RANK_FAILED, Outcome.USER, said, "node-2", None, None)
    attempt = api.AttemptView(1, "closed", (), cause, None, timestamp(1), None, timestamp(3))
    steps = (api.Step(timestamp(1), "placed"), api.Step(timestamp(2), f"attempt 1: {said}"))
    view = job_view(attempts=(attempt,), timeline=steps)
    fake.put(ended(view, JobState.FAILED, 1, said))
    text = run("show", "42").stdout.decode()
    assert text.count(said) == 1
    assert "attempt 1: as above\n" in text


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "rank 9 on gpu-03 exited with code 17: ValueError: loss is nan at step 1200",
            "rank 9 on gpu-03 exited with code 17",
        ),
        ("x" * 100, "x" * 59 + "…"),
    ],
)
def test_a_line_of_the_timeline_says_what_it_is_about(
    run: Run, fake: FakeCoordinator, said: str, line: str
) -> None:
    steps = tuple(
        api.Step(timestamp(at), f"{said}{more}") for at, more in ((2, ""), (3, "; 9 more"))
    )
    fake.put(ended(job_view(timeline=steps), JobState.FAILED, 17, said))
    text = run("show", "42").stdout.decode()
    assert text.count(said) == 1
    assert f"  {line}: as above\n" in text
    assert f"  {line}: as above; 9 more\n" in text


def test_on_a_narrow_terminal_nodes_keep_their_names(
    environ: dict[str, str], fake: FakeCoordinator
) -> None:
    view = failed_job()
    ranks = tuple(api.RankView(rank, ExitStatus(17)) for rank in range(6))
    (attempt,) = view.attempts
    (task,) = attempt.tasks
    task = msgspec.structs.replace(task, ranks=ranks)
    attempt = msgspec.structs.replace(attempt, tasks=(task,))
    fake.put(msgspec.structs.replace(view, attempts=(attempt,)))
    terminal = Terminal(environ, "show", "42", width=60)
    assert terminal.end() == 0
    lines = terminal.raw.decode().splitlines()
    row = next(at for at, line in enumerate(lines) if line.startswith("  gpu-03  "))
    # The list of failed ranks wraps within its own column.
    assert "0-5 (0: exit 17, 1: exit" in lines[row]
    assert lines[row + 1].startswith(" " * 16)


def test_a_refusal_of_many_nodes_is_shown_once(run: Run, fake: FakeCoordinator) -> None:
    view = failed_job()
    (attempt,) = view.attempts
    refusal = api.Reason("no_workdir", "The folder /data/x does not exist on this node.")
    tasks = tuple(
        msgspec.structs.replace(
            attempt.tasks[0], node=f"gpu-0{rank}", node_rank=rank, refusal=refusal
        )
        for rank in range(3)
    )
    fake.put(
        msgspec.structs.replace(view, attempts=(msgspec.structs.replace(attempt, tasks=tasks),))
    )
    shown = run("show", "42").stdout.decode()
    assert shown.count(refusal.text) == 1
    assert shown.count("as above") == 2
    assert "timeline (+ time since the previous line)" in shown


def test_on_a_terminal_what_is_said_is_broken_between_words(
    environ: dict[str, str], fake: FakeCoordinator
) -> None:
    terminal = Terminal(environ, "show", "not-a-job-of-mine", width=30)
    assert terminal.end() == 125
    assert terminal.lines == [
        "muster: none of your jobs is",
        "named 'not-a-job-of-mine'",
        "  `muster ps -a` lists jobs",
        "  and their ids",
    ]


def test_usage_errors_wrap_between_words(environ: dict[str, str]) -> None:
    terminal = Terminal(environ, "submit", "--", "python train.py --lr 1e-5", width=40)
    assert terminal.end() == 2
    assert terminal.lines == [
        "Usage: muster submit [OPTIONS] [--",
        "COMMAND...]",
        "Try 'muster submit --help' for help.",
        "",
        "Error: the command is one word, and no",
        "file of that name is here; write it as:",
        "-- python train.py --lr 1e-5",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--user", "bob"), "no job of user bob that you may see waits or runs; `muster ps"),
        (("--pool", "zz", "-a"), "there is no job in pool zz\n"),
        (("--state", "lost", "--state", "HELD"), "no job is LOST or HELD\n"),
    ],
)
def test_no_job_that_matches_is_said(
    run: Run, fake: FakeCoordinator, arguments: tuple[str, ...], said: str
) -> None:
    fake.put(job_view())
    done = run("ps", *arguments)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode().startswith(f"muster: {said}")
    assert run("ps", *arguments, "--json").stderr == b""


def test_the_variables_of_a_job_are_shown_with_their_origin(
    run: Run, fake: FakeCoordinator
) -> None:
    fake.put(job_view(42))
    fabric, job = api.VariableOrigin.FABRIC, api.VariableOrigin.JOB
    env, origins = {"NCCL_IB_HCA": "=mlx5_0", "A": "b\x1b[2J"}, {"NCCL_IB_HCA": fabric, "A": job}
    nodes = (
        api.NodeEnvironment("gpu-01", 0, env, origins),
        api.NodeEnvironment("gpu-02", 1, None),
    )
    fake.script.environments[42] = api.EnvironmentView(42, 2, nodes)
    done = run("show", "42", "--env")
    assert [line.split() for line in done.stdout.decode().splitlines()] == [
        ["VARIABLE", "VALUE", "FROM"],
        ["A", "b\\x1b[2J", "job", "file"],
        ["NCCL_IB_HCA", "=mlx5_0", "fabric", "plan"],
    ]
    assert b"node gpu-01 (node rank 0), attempt 2" in done.stderr
    fake.script.environments[42] = api.EnvironmentView(42, 2, nodes[1:])
    assert b"not decided yet" in run("show", "42", "--env", "--node", "gpu-02").stderr
    fake.script.environments[42] = api.EnvironmentView(42, 2, ())
    assert b"node gpu-09 is not in" in run("show", "42", "--env", "--node", "gpu-09").stderr
    assert run("show", "42", "--node", "gpu-02").returncode == 2
    assert run("show", "42", "--env", "--fabric").returncode == 2


def test_show_says_when_a_job_ended_and_when_that_was_reported(
    run: Run, fake: FakeCoordinator
) -> None:
    view = ended(job_view(started_at=timestamp(1000)), JobState.SUCCEEDED, 0)
    changes = {"ended_at": timestamp(1456), "ended_unseen_at": timestamp(1200)}
    fake.put(msgspec.structs.replace(view, **changes))
    shown = " ".join(run("show", "42").stdout.decode().split())
    assert "started 1970-01-01T00:16:40Z, ran 3m20s" in shown
    assert "ended 1970-01-01T00:20:00Z, reported 4m16s later" in shown
    assert "3m20s" in run("ps", "-a").stdout.decode()
