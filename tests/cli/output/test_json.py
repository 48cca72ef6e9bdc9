"""`--json`: every verb has it, and what it prints is one document, or a document a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec
import pytest

from agent.probe.fabric import command as node_command
from muster.cli.commands import VERBS, muster
from muster.cli.output.log_printer import record_bytes
from muster.http import views as api
from muster.protocol.states import JobState
from muster.spec.parse import parse_job
from tests.cli.conftest import Run
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record

# Commands without output that another program would want as JSON.
WITHOUT: Final = {
    "schema": "prints JSON as it is",
    "completion": "prints a script for a shell",
    "coordinator": "is a daemon; what it prints is its log",
    "agent": "is a daemon; what it prints is its log",
    "backup": "prints one line; its exit code says whether the copy is whole",
    "join": "asks for the secret, and says how to go on; its exit code says whether it joined",
    "login": "asks for the token, and prints one line; its exit code says whether it was taken",
    "logout": "prints one line; its exit code says whether the token is gone",
    "restore": "prints one line; its exit code says whether the backup is in place",
}
# These become programs of a node, with options of their own.
OF_A_NODE: Final = ("probe", "doctor")


def _verbs() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(muster, info_name="muster")
    for name in VERBS:
        found = muster.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            inner = click.Context(found, info_name=name)
            for part in found.list_commands(inner):
                command = found.get_command(inner, part)
                assert command is not None
                yield f"{name} {part}", command
        else:
            yield name, found


@pytest.mark.parametrize(("name", "command"), [*_verbs()], ids=str)
def test_every_verb_has_it(name: str, command: click.Command) -> None:
    has = any("--json" in parameter.opts for parameter in command.params)
    assert has is (name not in WITHOUT and name not in OF_A_NODE), WITHOUT.get(name, "")


@pytest.mark.parametrize("verb", OF_A_NODE)
def test_programs_of_a_node_have_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        node_command.main(verb, ["--help"])
    assert "--json" in capsys.readouterr().out


def test_logs_are_records_and_a_trailer(run: Run, fake: FakeCoordinator) -> None:
    fake.put(ended(job_view(), JobState.FAILED, 3))
    fake.log(record(1, b"loss 0.5\n"), record(2, b"\xff\x00"))
    for arguments, code in ((["logs", "42", "--json"], 0), (["attach", "42", "--json"], 3)):
        done = run(*arguments)
        *lines, trailer = done.stdout.splitlines()
        records = [msgspec.json.decode(line, type=api.LogRecord) for line in lines]
        assert [record_bytes(found) for found in records] == [b"loss 0.5\n", b"\xff\x00"]
        end = msgspec.json.decode(trailer, type=api.LogTrailer)
        assert (end.end, end.state, end.exit_code) == (True, "FAILED", 3)
        assert (done.returncode, done.stderr) == (code, b"")


def test_records_that_are_not_complete_are_no_success(run: Run, fake: FakeCoordinator) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.script.undelivered = "c1 is away"
    done = run("logs", "42", "--json")
    assert json.loads(done.stdout) == {
        "end": True,
        "state": "SUCCEEDED",
        "exit_code": 0,
        "reason": "c1 is away",
        "cursor": "0",
    }
    assert done.returncode == 125
    assert b"not complete: c1 is away" in done.stderr


def test_options_that_change_lines_exclude_json(run: Run) -> None:
    done = run("logs", "42", "--json", "--grep", "loss", "--no-prefix")
    assert done.returncode == 2
    assert b"leave out --grep, --no-prefix" in done.stderr


def test_the_files_of_a_download(run: Run, fake: FakeCoordinator, tmp_path: Path) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.log(record(1, b"x\n"))
    done = run("logs", "42", "--download", "here", "--json")
    (name,) = json.loads(done.stdout)["files"]
    assert (tmp_path / name).read_bytes() == b"x\n"


def test_the_files_of_init(run: Run, tmp_path: Path) -> None:
    done = run("init", "--dir", "cluster", "--json")
    written = json.loads(done.stdout)
    assert written["url"] == "http://127.0.0.1:7077"
    assert len(written["files"]) == 5
    for file in written["files"]:
        assert (tmp_path / file).is_file()
    assert "_join_" not in done.stdout.decode()


ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("verb", ["ps -a --json", "logs --json 42"])
def test_json_is_json_whatever_the_locale(run: Run, fake: FakeCoordinator, verb: str) -> None:
    said = "\u00fc \u4e2d \U0001f600"
    fake.put(ended(job_view(), JobState.FAILED, 1, said))
    fake.log(record(1, said))
    done = run(*verb.split(), **ASCII_ONLY)
    assert said in json.dumps([json.loads(t) for t in _documents(done.stdout)], ensure_ascii=False)


def test_a_job_that_is_printed_is_the_job_whatever_the_locale(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text('{run: x.py, env: {A: "\u00fc"}}', encoding="utf-8")
    done = run("submit", "-f", "job.yaml", "--dry-run", **ASCII_ONLY)
    assert parse_job(done.stdout.decode()).env == {"A": "\u00fc"}


def _documents(out: bytes) -> list[bytes]:
    """Split the output into JSON documents: one document over several lines, or one a line."""
    return [out] if out.startswith(b"{\n") else out.splitlines()
