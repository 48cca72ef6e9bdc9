"""A program from start to exit record."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from agent.core.shim_protocol import (
    ShimExit,
    ShimFetch,
    ShimHostfile,
    ShimKill,
    ShimPhase,
    ShimRelease,
    ShimStart,
    ShimStatus,
    ShimUser,
    StreamName,
)
from agent.shim.programs.failure import Failure
from muster.protocol.refusal_codes import RefusalCode
from tests.agent.shims.conftest import Node, Stage

PYTHON = sys.executable


def test_true_ends_with_0_and_leaves_its_record(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("true")
        status = await task.ended()
        assert status.phase is ShimPhase.CLEANED
        assert status.exit == ShimExit(code=0)
        assert status.stopped_by is None
        assert status.first_failed is None
        phases = [received.phase for received in task.received]
        assert phases == sorted(phases, key=list(ShimPhase).index)
        # RUNNING may go unseen: `true` has often ended before the status is sent.
        assert status.running_s is not None
        on_disk = msgspec.json.decode(task.read("exit.json"), type=ShimStatus)
        assert on_disk == status

    stage.play(story)


def test_the_host_file_is_there_when_the_program_starts(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.prepared()
        for text in ("n1 slots=1\n", "n1 slots=2\nn2 slots=2\n"):
            assert task.connection.send(ShimHostfile(text))
        await task.send(ShimStart(argv=["cat", str(task.dir / "hostfile")]))
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        assert task.read("logs/rank-0.stdout") == b"n1 slots=2\nn2 slots=2\n"
        assert (task.dir / "hostfile").stat().st_mode & 0o777 == 0o644

    any_stage.play(story)


def test_without_its_host_file_no_program_starts(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.prepared()
        (task.dir / ".hostfile.new").mkdir()
        start = ShimStart(argv=["touch", str(task.dir / "started")])
        assert task.connection.send(ShimHostfile("n1 slots=1\n"), start)
        status = await task.ended()
        assert status.phase is ShimPhase.REFUSED
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.SPAWN_FAILED
        assert "host file of the task cannot be written: Is a directory" in status.refusal.text
        assert not (task.dir / "started").exists()

    stage.play(story)


@pytest.mark.parametrize("ranks", [0, 2])
def test_logs_that_cannot_be_made_end_the_task_and_not_its_shim(stage: Stage, ranks: int) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.prepared(launcher="processes" if ranks else "none")
        # Stands for a disk that has filled since.
        shutil.rmtree(task.dir / "logs")
        more = [{"RANK": str(rank)} for rank in range(ranks)]
        await task.send(ShimStart(argv=["true"], ranks=more))
        status = await task.ended()
        assert status.phase is ShimPhase.CLEANED
        assert status.exit == ShimExit(code=126)
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.SPAWN_FAILED
        why = "cannot be made in the agent's state_dir: No such file or directory."
        assert status.refusal.text == f"The log of rank 0 {why}"
        assert status.running_s is None

    stage.play(story)


def test_a_folder_of_torchrun_that_cannot_be_made_is_refused(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        (task.dir / "logs" / "torchrun").touch()
        status = await task.prepared(launcher="torchrun", python=PYTHON)
        assert status.phase is ShimPhase.REFUSED
        assert status.refusal is not None
        assert status.refusal.text.startswith("torchrun cannot be made in the agent's state_dir")

    any_stage.play(story)


def test_a_full_disk_has_a_code_of_its_own() -> None:
    full = Failure.of(OSError(errno.ENOSPC, "No space left on device"), "log", "setup.log")
    assert str(full.refusal) == RefusalCode.NO_SPACE
    missing = Failure.of(OSError(errno.ENOENT, "No such file"), "log", "setup.log")
    assert str(missing.refusal) == RefusalCode.SPAWN_FAILED


@pytest.mark.parametrize("code", [1, 3, 255])
def test_a_code_is_the_ranks_and_the_programs(any_stage: Stage, code: int) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sh", "-c", f"echo because >&2; exit {code}", env={"MUSTER_NODE_RANK": "5"})
        status = await task.ended()
        assert status.exit == ShimExit(code=code)
        assert status.first_failed == 5
        [rank] = status.ranks
        assert (rank.rank, rank.local_rank, rank.error) == (5, 0, "because")
        assert rank.exit is not None
        assert rank.exit.code == code

    any_stage.play(story)


def test_a_signal_is_reported_as_a_signal(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sh", "-c", "kill -SEGV $$")
        status = await task.ended()
        assert status.exit == ShimExit(signal=signal.SIGSEGV)
        assert status.ranks[0].exit is not None
        assert status.ranks[0].exit.signal == signal.SIGSEGV

    any_stage.play(story)


def test_bytes_are_kept_as_they_are(any_stage: Stage) -> None:
    out, err = b"\0\xff\xfe caf\xc3\xa9 \xc3\r\n\x1b[31m no newline", b"\x80" * 100_000
    code = f"import os; os.write(1, {out!r}); os.write(2, b'\\x80' * 100_000)"

    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(PYTHON, "-c", code, env={"MUSTER_NODE_RANK": "2"})
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        assert task.read(status.ranks[0].stdout) == out
        assert task.read(status.ranks[0].stderr) == err
        assert [(stream.stream, stream.rank, stream.path) for stream in status.streams] == [
            (StreamName.STDOUT, 2, "logs/rank-2.stdout"),
            (StreamName.STDERR, 2, "logs/rank-2.stderr"),
        ]

    any_stage.play(story)


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["no-such-program-x"], 127, "'no-such-program-x' was not found"),
        (["/etc/passwd"], 126, "/etc/passwd"),
        ([], 126, "no command"),
    ],
)
def test_a_program_that_cannot_run_is_reported_in_words(
    any_stage: Stage, argv: list[str], code: int, words: str
) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(*argv)
        status = await task.ended()
        assert ShimPhase.RUNNING not in [received.phase for received in task.received]
        assert status.phase is ShimPhase.CLEANED
        assert status.exit == ShimExit(code=code)
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.SPAWN_FAILED
        assert words in status.refusal.text

    any_stage.play(story)


def test_a_text_without_interpreter_line_is_explained(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        script = node.state_dir / "script"
        script.write_text("echo hello\n")
        script.chmod(0o755)
        await task.run(str(script))
        status = await task.ended()
        assert status.exit == ShimExit(code=126)
        assert status.refusal is not None
        assert "#!/bin/sh" in status.refusal.text

    any_stage.play(story)


def test_a_missing_folder_is_refused_before_anything_runs(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(cwd="/no/such/folder", setup=["touch", "/tmp/never"])
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.NO_FOLDER
        assert "/no/such/folder" in status.refusal.text
        assert msgspec.json.decode(task.read("exit.json"), type=ShimStatus) == status

    any_stage.play(story)


def test_setup_runs_first_with_its_own_log(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(
            cwd=str(node.state_dir), setup=["sh", "-c", "echo one; echo two >&2; echo 3 > made"]
        )
        assert status.phase is ShimPhase.PREPARED
        assert task.read("logs/setup.log") == b"one\ntwo\n"
        await task.send(ShimStart(argv=["cat", "made"]))
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        assert task.read("logs/rank-0.stdout") == b"3\n"
        assert status.streams[0].stream == StreamName.SETUP

    any_stage.play(story)


BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.parametrize("python", ["", "/bin/python"])
@pytest.mark.parametrize("step", ["setup", "program"])
def test_the_tools_of_the_python_come_first_and_nothing_else_does(
    stage: Stage, tmp_path: Path, python: str, step: str
) -> None:
    """`python` is a prefix or an interpreter, and only its own bin folder is on PATH."""
    venv = tmp_path / "parent" / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(PYTHON)
    said = tmp_path / "said"
    command = ["sh", "-c", f'echo "$PATH" > {said}']

    async def story(node: Node) -> None:
        task = await node.task()
        if step == "setup":
            await task.prepared(python=f"{venv}{python}", setup=command)
        else:
            await task.run(*command, python=f"{venv}{python}")
            await task.ended()
        assert said.read_text() == f"{venv}/bin:{BASE_PATH}\n"

    stage.play(story)


@pytest.mark.parametrize(
    ("python", "env", "path"),
    [("/no/such/venv", {}, BASE_PATH), (sys.prefix, {"PATH": "/usr/bin:/bin"}, "/usr/bin:/bin")],
)
def test_a_folder_that_is_not_there_and_a_path_of_the_job_add_nothing(
    stage: Stage, python: str, env: dict[str, str], path: str
) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sh", "-c", 'echo "$PATH"', python=python, env=env)
        await task.ended()
        assert task.read("logs/rank-0.stdout").decode() == f"{path}\n"

    stage.play(story)


def test_a_failed_setup_is_refused_with_its_last_lines(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        # Processes that setup leaves behind must not outlive the refusal.
        status = await task.prepared(setup=["sh", "-c", "sleep 1000 & echo no such wheel; exit 7"])
        assert status.phase is ShimPhase.REFUSED
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.SETUP_FAILED
        assert "code 7" in status.refusal.text
        assert "no such wheel" in status.refusal.text

    stage.play(story)


def test_code_is_fetched_before_the_setup_and_without_the_jobs_variables(stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        fetch = ShimFetch(["sh", "-c", 'echo "$A-${B-none}-$MUSTER_TASK" > fetched'], {"A": "1"})
        status = await task.prepared(
            cwd=str(task.dir),
            fetch=fetch,
            env={"B": "2"},
            setup=["sh", "-c", "cat fetched; exit 7"],
        )
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.SETUP_FAILED
        assert "1-none-" in status.refusal.text

    stage.play(story)


def test_code_is_fetched_as_the_user_of_the_job(any_stage: Stage) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    async def story(node: Node) -> None:
        task = await node.task()
        fetch = ShimFetch(["sh", "-c", "id -u; exit 3"], {}, "git fetch of x")
        status = await task.prepared(cwd="/usr/lib", fetch=fetch, user=ShimUser("nobody"))
        assert status.refusal is not None
        assert status.refusal.text.splitlines()[1:] == ["65534"]

    any_stage.play(story)


@pytest.mark.parametrize(("script", "said"), [("echo no >&2; exit 3", "no"), ("sleep 1000", "0.2")])
def test_code_that_cannot_be_fetched_is_refused(stage: Stage, script: str, said: str) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        fetch = ShimFetch(["sh", "-c", script], {}, "git fetch of x")
        limit = 0.2 if "sleep" in script else 60.0
        status = await task.prepared(fetch=fetch, setup=["touch", "set-up"], setup_timeout_s=limit)
        assert status.phase is ShimPhase.REFUSED
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.FETCH_FAILED
        assert status.refusal.text.startswith("git fetch of x")
        assert said in status.refusal.text

    stage.play(story)


def test_a_setup_that_hangs_is_ended(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(setup=["sleep", "1000"], setup_timeout_s=0.2)
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.SETUP_FAILED
        assert "0.2 s" in status.refusal.text

    any_stage.play(story)


def test_root_needs_a_permission(any_stage: Stage) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")

    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(allow_root=False)
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.ROOT_REFUSED

    any_stage.play(story)


def test_an_unknown_user_is_refused(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(user=ShimUser("no-such-user-x"))
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.USER_UNKNOWN
        assert "no-such-user-x" in status.refusal.text

    any_stage.play(story)


def test_a_user_with_another_uid_than_its_folders_is_refused(any_stage: Stage) -> None:
    """The account has changed since the agent made them."""

    async def story(node: Node) -> None:
        task = await node.task()
        status = await task.prepared(user=ShimUser("nobody", 47_111))
        assert status.refusal is not None
        assert status.refusal.code == RefusalCode.USER_UNKNOWN
        assert "nobody had uid 47111" in status.refusal.text

    any_stage.play(story)


def test_a_job_becomes_its_user_for_good(stage: Stage) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(
            "sh",
            "-c",
            "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; umask; ls -l /proc/self/fd/;"
            " echo reopened >> /dev/stdout; cat ../../etc/shadow",
            user=ShimUser("nobody"),
            no_new_privileges=True,
            cwd="/usr/lib",
        )
        status = await task.ended()
        lines = task.read("logs/rank-0.stdout").decode().splitlines()
        assert lines[:4] == ["65534", "65534", "65534", "NoNewPrivs:\t1"]
        assert lines[4] == "0022"
        assert lines[-1] == "reopened"
        assert b"Permission denied" in task.read("logs/rank-0.stderr")
        # Standard streams, and the folder that ls itself reads: nothing of the shim's.
        assert len([line for line in lines if " -> " in line]) == 4
        assert status.exit == ShimExit(code=1)

    stage.play(story)


def test_the_environment_is_made_from_scratch(
    any_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SECRET", "leaked")
    monkeypatch.setenv("PYTHONPATH", "/leaked")

    async def story(node: Node) -> None:
        task = await node.task()
        await task.prepared(env={"A": "1", "B": "1"})
        await task.send(ShimStart(argv=["env"], env={"LANG": "de_DE.UTF-8", "B": "2"}))
        await task.ended()
        lines = task.read("logs/rank-0.stdout").decode().splitlines()
        env = dict(line.split("=", 1) for line in lines)
        assert env.pop("MUSTER_SHIM").startswith("7.1.0:")
        assert env.pop("PATH").endswith("/usr/bin:/sbin:/bin")
        assert env.pop("HOME")
        assert env.pop("SHELL")
        assert env.pop("USER") == env.pop("LOGNAME")
        assert env == {
            "A": "1",
            "B": "2",
            "LANG": "de_DE.UTF-8",
            "TERM": "dumb",
            "MUSTER_TASK": "7.1.0",
        }

    any_stage.play(story)


def test_limits_are_raised_and_the_job_is_no_oom_exception(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run(
            "sh", "-c", "ulimit -l; ulimit -Hl; ulimit -n; ulimit -Hn; cat /proc/self/oom_score_adj"
        )
        await task.ended()
        lines = task.read("logs/rank-0.stdout").decode().split()
        assert lines[0] == lines[1]
        assert lines[2] == lines[3]
        assert lines[4] == "0"

    any_stage.play(story)


def test_a_program_has_the_signals_that_its_shim_does_without(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("cat", "/proc/self/status")
        await task.ended()
        lines = task.read("logs/rank-0.stdout").decode().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        assert int(status["SigBlk"], 16) == 0
        ignored = int(status["SigIgn"], 16)
        for name in ("HUP", "INT", "TERM", "PIPE", "XFSZ", "CHLD"):
            number = signal.Signals[f"SIG{name}"]
            assert not ignored >> (number - 1) & 1, name

    any_stage.play(story)


def test_an_environment_may_be_larger_than_a_packet(any_stage: Stage) -> None:
    large = {f"LARGE_{number}": "x" * 100_000 for number in range(5)}

    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sh", "-c", "ls -l /proc/self/fd; env | grep -c '^LARGE_.*xxx$'", env=large)
        await task.ended()
        *files, found = task.read("logs/rank-0.stdout").decode().splitlines()
        assert found == "5"
        # The file in which it came is gone.
        assert len([line for line in files if " -> " in line]) == 4

    any_stage.play(story)


def test_release_ends_the_shim_and_takes_only_its_socket(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sleep", "1000")
        await task.send(ShimRelease())
        await task.until(lambda status: status.complaint, "a complaint about the early release")
        await task.send(ShimKill())
        await task.ended()
        await task.send(ShimRelease())
        await task.gone()
        assert sorted(os.listdir(task.dir)) == [
            "exit.json",
            "lock",
            "logs",
            "shim.json",
        ]

    any_stage.play(story)


def test_a_shim_that_fails_leaves_word_of_what_it_died_of(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("true")
        await task.ended()
        (task.dir / "shim.sock").unlink()
        await task.send(ShimRelease())
        await task.gone()
        said = task.read("shim.log").decode()
        assert said.startswith("Traceback")
        assert "shim.sock" in said

    any_stage.play(story)


def test_start_twice_runs_once(any_stage: Stage) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sh", "-c", "echo once")
        await task.send(ShimStart(argv=["sh", "-c", "echo twice"]))
        await task.ended()
        await task.send(ShimStart(argv=["sh", "-c", "echo thrice"]))
        again = await node.again(task)
        assert (await again.ended()).exit == ShimExit(code=0)
        assert task.read("logs/rank-0.stdout") == b"once\n"

    any_stage.play(story)


def test_half_a_character_in_what_a_rank_failed_of(any_stage: Stage) -> None:
    """Python has such text for the name of a file that is no UTF-8."""
    text = "{'message': 'No such file: caf\\udce9.bin'}"
    code = (
        "import json, os;"
        f" json.dump({text}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w')); raise SystemExit(3)"
    )

    async def story(node: Node) -> None:
        task = await node.task()
        await task.prepared(launcher="processes")
        await task.send(ShimStart(argv=[PYTHON, "-c", code], ranks=[{"RANK": "0"}]))
        status = await task.ended()
        assert status.ranks[0].error == "No such file: caf?.bin"
        assert status.first_failed == 0
        assert msgspec.json.decode(task.read("exit.json"), type=ShimStatus) == status

    any_stage.play(story)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo ...errors.ChildFailedError: >&2; echo done", "ChildFailedError"),
        ("echo done >&2", None),
    ],
)
def test_a_script_that_ends_with_0_though_its_torchrun_failed_says_so(
    stage: Stage, script: str, error: str | None
) -> None:
    async def story(node: Node) -> None:
        task = await node.task()
        await task.run("sh", "-c", script)
        status = await task.ended()
        assert status.exit == ShimExit(code=0)
        assert status.ranks[0].error == error

    stage.play(story)
