"""`muster` as a real process, beside a coordinator that the test scripts."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.fake_coordinator import TOKEN, FakeCoordinator, Script, running

TREE = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing of the machine's own configuration is found."""
    kept = {
        name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ
    }
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(TREE)}


@pytest.fixture
def fake(environ: dict[str, str]) -> Iterator[FakeCoordinator]:
    """A coordinator that `run` and `start` reach."""
    with running(Script()) as coordinator:
        environ["MUSTER_URL"] = coordinator.url
        environ["MUSTER_TOKEN"] = TOKEN
        yield coordinator


@pytest.fixture
def run(environ: dict[str, str], tmp_path: Path) -> Run:
    """Run `muster` to its end; the environment is that of the test, with what is given."""

    def run_muster(*arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "muster.cli", *arguments],
            env={**environ, **env},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )

    return run_muster


@pytest.fixture
def start(environ: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start `muster` and leave it running; what is left at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start_muster(*arguments: str, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "muster.cli", *arguments],
            env={**environ, **env},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start_muster
    for process in started:
        process.kill()
        process.communicate()
