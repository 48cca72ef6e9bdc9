"""Both daemons, started as careless scripts start them: they serve, and end on request."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.process_of_agent import write_config
from tests.orchestrator.process import token_file

TREE = Path(__file__).resolve().parents[2]
DEADLINE_S = 180.0
DAEMONS = ("orchestrator", "agent")


def config_of(daemon: str, folder: Path) -> Path:
    if daemon == "agent":
        return write_config(folder, "http://127.0.0.1:9")
    token_file(folder / "tokens")
    config = folder / "coordinator.yaml"
    settings = {
        "listen": {"port": 0},
        "state_dir": str(folder / "state"),
        "tokens_file": str(folder / "tokens"),
    }
    config.write_text(json.dumps(settings))
    return config


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's socket, the only output of a daemon whose streams are closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(DEADLINE_S)
        yield heard


def spawn(
    daemon: str, config: bytes, folder: Path, script: str, environ: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start it by a shell that does `script` first; its output goes to `folder`/out."""
    kept = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
    with (folder / "out").open("ab") as out:
        return subprocess.Popen(
            [
                *(b"/bin/sh", b"-c", f'{script}\nexec "$@"'.encode(), b"sh"),
                *(sys.executable.encode(), b"-m", daemon.encode(), b"--config", config),
            ],
            env={
                **kept,
                "PYTHONPATH": str(TREE),
                "NOTIFY_SOCKET": str(folder / "notify"),
                **environ,
            },
            stdout=out,
            stderr=out,
            cwd="/",
        )


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize(
    ("script", "environ"),
    [
        ("exec <&- >&- 2>&-", {}),
        ("exec 2>&-", {"LANG": "C"}),
        ("ulimit -n 64", {"LC_ALL": "C", "PYTHONUTF8": "0"}),
        ("umask 0", {"HOME": "/nonexistent", "TMPDIR": "/proc", "LC_ALL": "en_US.ISO-8859-1"}),
        ("umask 077", {}),
    ],
    ids=["all-closed", "stderr-closed", "few-descriptors", "nowhere-to-write", "umask-077"],
)
def test_it_serves_and_ends(
    tmp_path: Path, manager: socket.socket, daemon: str, script: str, environ: dict[str, str]
) -> None:
    # A path that is no UTF-8 is one all the same.
    config = config_of(daemon, tmp_path)
    odd = os.fsencode(tmp_path) + b"/conf\xff\xe9.yaml"
    os.rename(config, odd)
    process = spawn(daemon, odd, tmp_path, script, environ)
    try:
        assert manager.recv(4096).startswith(b"READY=1")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert b"Traceback" not in (tmp_path / "out").read_bytes()
    for path in (tmp_path / "state").rglob("*"):
        # Nothing that is said may end in a file that happened to get its descriptor.
        assert path.is_dir() or b'"serving"' not in path.read_bytes(), path
        assert path.stat().st_mode & 0o066 == 0 or path.is_dir(), path


@pytest.mark.parametrize("daemon", DAEMONS)
def test_asked_to_end_while_it_starts_it_ends_and_starts_again(
    tmp_path: Path, manager: socket.socket, daemon: str
) -> None:
    config = os.fsencode(config_of(daemon, tmp_path))
    for pause_s in (0.0, 0.15, 0.4, 0.6):
        process = spawn(daemon, config, tmp_path, "", {})
        time.sleep(pause_s)  # no wait for anything: the signal comes at these moments
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) in (0, -signal.SIGTERM)
    assert b"Traceback" not in (tmp_path / "out").read_bytes()
    manager.setblocking(False)
    try:
        while manager.recv(4096):
            pass
    except BlockingIOError:
        pass
    manager.settimeout(DEADLINE_S)
    process = spawn(daemon, config, tmp_path, "", {})
    try:
        assert manager.recv(4096).startswith(b"READY=1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", 2, "token"),
        ("gpuz: 1\n", 2, "gpuz: no such setting"),
        ("state_dir: [1]\n", 2, "state_dir: expected"),
        ("log: {level: loud}\n", 2, "log.level"),
        ("log:\n\tlevel: info\n", 2, "line 2"),
        ("\x00", 2, "config"),
        ("log: {}\nlog: {}\n", 2, "set twice"),
        ("- a\n", 2, "expected settings"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_line(
    tmp_path: Path, daemon: str, text: str, code: int, said: str
) -> None:
    config = tmp_path / "config"
    config.write_text(text)
    process = spawn(daemon, os.fsencode(config), tmp_path, "", {})
    assert process.wait(DEADLINE_S) == code
    lines = [x for x in (tmp_path / "out").read_text().splitlines() if not x.startswith("{")]
    (line,) = lines
    name = "coordinator" if daemon == "orchestrator" else "agent"
    assert line.startswith(f"muster {name}: ")
    assert said in line
