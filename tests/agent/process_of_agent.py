"""A real agent as a process of its own, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests.agent.coordinator import DEADLINE_S, TOKEN, Coordinator, Session

ROOT = Path(__file__).resolve().parents[2]
_numbers = count()


def write_config(folder: Path, coordinator: str, **more: Any) -> Path:
    """A configuration file for an agent whose state is in `folder`/state."""
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    config = folder / "agent.yaml"
    settings = {
        "coordinator": coordinator,
        "node": "n1",
        "state_dir": str(folder / "state"),
        "token_file": str(token),
        "shared_host": True,
        "allow_root_jobs": True,
        # Killed agents would leave their table on this machine.
        "fence": False,
        "gpus": 0,
        "python": sys.executable,
        "log": {"level": "debug", "format": "json"},
        **more,
    }
    config.write_text(json.dumps(settings))
    return config


class AgentProcess:
    """`python -m agent`; at the end of the context it is killed, and so is what it left running."""

    def __init__(
        self, config: Path, *, within: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        """`within`: a command that becomes the one behind it; `env`: more variables."""
        self.config = config
        self._within = within
        self._env = env or {}
        self.log = config.with_suffix(f".{next(_numbers)}.log")
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        sys.stderr.write(self.log.read_text())

    def start(self) -> None:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **self._env}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, sys.executable, "-m", "agent", "--config", str(self.config)],
                env=environ,
                stdout=log,
                stderr=log,
                cwd=self.config.parent,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, as a crash would be."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    async def end(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, DEADLINE_S)


@contextlib.asynccontextmanager
async def joined(
    folder: Path, **settings: Any
) -> AsyncIterator[tuple[Coordinator, AgentProcess, Session]]:
    """A coordinator, and an agent that it has welcomed."""
    async with (
        Coordinator() as coordinator,
        AgentProcess(write_config(folder, coordinator.url, **settings)) as agent,
    ):
        session = await coordinator.session()
        await session.welcome()
        yield coordinator, agent, session
