"""`muster` as a real process, beside a coordinator that the test scripts."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.client.fake_coordinator import TOKEN, FakeCoordinator, Script, running
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess

TREE = Path(__file__).resolve().parents[2]
DEADLINE_S = 180.0

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Start = Callable[..., subprocess.Popen[bytes]]
Muster = Callable[..., subprocess.CompletedProcess[str]]
_NOTHING: Mapping[str, str] = {}


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


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """A real one. It knows two nodes, which are away: jobs are taken, and stay queued."""

    async def join(process: CoordinatorProcess) -> None:
        for name in ("c1", "c2"):
            async with connect(process, name) as agent:
                await agent.hello()

    with CoordinatorProcess(tmp_path_factory.mktemp("coordinator")).start() as process:
        asyncio.run(join(process))
        yield process


@pytest.fixture
def muster(coordinator: CoordinatorProcess, environ: dict[str, str], tmp_path: Path) -> Muster:
    """Run `muster` to its end at the real coordinator."""

    def run(
        *arguments: str, stdin: int = subprocess.DEVNULL, env: Mapping[str, str] = _NOTHING
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "muster.cli", *arguments],
            env={
                **environ,
                "MUSTER_URL": coordinator.url,
                "MUSTER_TOKEN": coordinator.admin,
                **env,
            },
            cwd=tmp_path,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    return run


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
