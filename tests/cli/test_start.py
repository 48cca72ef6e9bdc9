"""The start: what a command imports, what it says of wrong commands, and never a traceback."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.commands import VERBS, invoke
from muster.protocol.states import JobState
from tests.cli.conftest import TREE, Run
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record

# Each of these costs as much as a whole command may, or belongs to a daemon.
HEAVY = {"aiohttp", "asyncio", "rich", "rich.traceback", "structlog", "tenacity", "torch"}
DAEMONS = {"orchestrator", "agent"}

LIST_IMPORTS = """
import atexit, json, sys
atexit.register(lambda: open(sys.argv[-1], "w").write(json.dumps(sorted(sys.modules))))
from muster.cli.main import run
sys.exit(run(sys.argv[1:-1]))
"""


def imported(run_python: Path, environ: dict[str, str], *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LIST_IMPORTS, *arguments, str(run_python)],
        env=environ,
        cwd=run_python.parent,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(run_python.read_text()))


@pytest.mark.parametrize(
    "arguments", [("--help",), ("ps",), ("ps", "--json"), ("nodes",), ("show", "42")]
)
def test_the_start_imports_nothing_heavy(
    fake: FakeCoordinator, environ: dict[str, str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    fake.put(job_view())
    found = imported(tmp_path / "imports", environ, *arguments)
    assert "muster.cli.commands" in found
    assert not found & (HEAVY | DAEMONS)


def test_help_imports_no_verb_and_no_client(environ: dict[str, str], tmp_path: Path) -> None:
    found = imported(tmp_path / "imports", environ, "--help")
    assert not found & {"muster.client", "http.client", "yaml", "msgspec"}


def test_a_submit_without_a_file_reads_no_yaml(
    fake: FakeCoordinator, environ: dict[str, str], tmp_path: Path
) -> None:
    fake.put(job_view())
    found = imported(tmp_path / "imports", environ, "submit", "--", "true")
    assert "muster.spec.parse" in found
    assert not found & {"yaml", "hmac", "difflib"}
    assert not found & {
        "muster.cli.jobs.logs",
        "muster.client.log_stream",
        "muster.protocol.link.control_channel",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        (b"ps", b"--user", b"\xff"),
        (b"show", b"f\xfcr"),
        (b"cancel", b"42", b"--reason", b"f\xfcr"),
        (b"rerun", b"42", b"--set", b"env.A=\xff"),
    ],
)
def test_arguments_in_another_encoding_are_refused_in_words(
    fake: FakeCoordinator, environ: dict[str, str], arguments: tuple[bytes, ...]
) -> None:
    fake.put(job_view())
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli", *arguments],
        env=environ,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"is not UTF-8" in done.stderr
    assert b"mistake" not in done.stderr


COLLECTED = """
import atexit, gc, sys
begun = gc.get_stats()[2]["collections"]

def tell():
    full = gc.get_stats()[2]["collections"] - begun
    print(gc.isenabled(), gc.get_freeze_count() > 10_000, full, file=sys.stderr)

atexit.register(tell)
from muster.cli.main import main
main()
"""


def test_the_collector_looks_at_nothing_that_was_imported(
    fake: FakeCoordinator, environ: dict[str, str]
) -> None:
    fake.put(job_view())
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED, "ps"],
        env=environ,
        capture_output=True,
        timeout=300,
        check=False,
    )
    # It goes on afterwards: a command may run for days.
    assert (done.returncode, done.stderr) == (0, b"True True 0\n")


def test_help_lists_the_verbs_and_the_exit_codes(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in (b"submit", b"coordinator", b"121", b"detached by Ctrl-C"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "verb",
    [
        verb
        for verb in VERBS
        if verb not in {"coordinator", "backup", "restore", "agent", "probe", "doctor", "join"}
    ],
)
def test_every_verb_has_a_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([verb, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"muster {verb}" in out
    assert err == ""


def test_an_unknown_verb_is_refused_with_the_nearest(run: Run) -> None:
    done = run("cancle", "42")
    assert done.returncode == 2
    assert b"No such command 'cancle'. Did you mean 'cancel'?" in done.stderr


def test_the_daemons_get_their_arguments_as_they_are(run: Run, tmp_path: Path) -> None:
    for verb, package in (("coordinator", "orchestrator"), ("agent", "agent")):
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "__main__.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
        done = run(verb, "--help", "--config", "x y", "-v", PYTHONPATH=f"{tmp_path}:{TREE}")
        assert done.stdout == b"['--help', '--config', 'x y', '-v']\n"
        assert done.returncode == 7


def test_the_folder_one_stands_in_is_no_daemon(run: Run, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "__init__.py").touch()
    (tmp_path / "agent" / "__main__.py").write_text("print('planted')")
    assert b"planted" not in run("agent", "--help").stdout


def test_an_error_nobody_foresaw_is_one_line(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import muster.cli.jobs.ps as ps\n"
        "def boom(*a, **k): raise LookupError('no \\x1b[31m such')\n"
        "ps.connect = boom\n"
    )
    path = f"{broken}:{TREE}"
    done = run("ps", PYTHONPATH=path)
    assert done.returncode == 125
    assert done.stderr.startswith(b"muster: unexpected LookupError: no \\x1b[31m such\n")
    assert b"Traceback" not in done.stderr
    details = Path(done.stderr.decode().split("the details are in ")[1].strip())
    assert details.parent == tmp_path / ".local/state/muster"
    assert "LookupError" in details.read_text()
    assert stat.S_IMODE(details.stat().st_mode) == 0o600
    assert b"Traceback" in run("ps", PYTHONPATH=path, MUSTER_DEBUG="1").stderr


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("verb", ["wait 42", "ps", "logs 42", "show 42", "wait nope"])
def test_a_closed_stream_changes_no_exit_code(
    fake: FakeCoordinator, environ: dict[str, str], verb: str, closed: str
) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    fake.log(record(1, "out\n"), record(2, "err\n", stream="stderr"))
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m muster.cli {verb} {closed}"],
        env=environ,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == (125 if "nope" in verb else 0), done.stderr
    assert b"Error" not in done.stderr


def test_the_own_version_needs_no_coordinator(run: Run) -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"client       ")
    assert b", protocol 1" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_a_hint_for_the_api_is_none_for_the_command_line(run: Run, fake: FakeCoordinator) -> None:
    problem = {
        "type": "about:blank",
        "title": "x",
        "status": 404,
        "code": "unknown_job",
        "detail": "there is no job 99",
        "hint": "list the jobs: muster ps -a (GET /v1/jobs)",
        "request_id": "r-1",
    }
    answer = (404, json.dumps(problem).encode(), "application/problem+json")
    fake.script.first_answers.append(answer)
    done = run("show", "99")
    assert done.stderr == b"muster: there is no job 99\n  list the jobs: muster ps -a\n"


def test_the_help_of_a_group_cuts_no_sentence(run: Run) -> None:
    assert b"..." not in run("node", "--help").stdout.split(b"Commands:")[1]
