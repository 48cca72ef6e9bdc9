"""The site's hooks: `prolog`, `epilog` and `health_check` of the agent's configuration.

They run as the agent's user, which is root where jobs run as other users. A prolog that fails
refuses its task. An epilog or a health check that fails drains the node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Never

import structlog

from agent.config import AgentConfig
from agent.hooks.program import HookError, check_program, run_program
from muster.daemon.clock import Clock
from muster.daemon.errors import ConfigError
from muster.protocol.ids import parse_task_id
from muster.protocol.link.control_channel import PrepareTask

EPILOG: Final = "epilog"
HEALTH_CHECK: Final = "health_check"
_PROLOG: Final = "prolog"
_REMIND_S: Final = 3600.0
"""Seconds until a health check that keeps failing in the same way is reported again."""

_log = structlog.get_logger("agent.hooks")


class PrologError(HookError):
    """The prolog of a task failed."""


class SiteHooks:
    """Runs the configured programs. `report` takes a code and a text, and drains the node."""

    def __init__(
        self, config: AgentConfig, clock: Clock, report: Callable[[str, str], None]
    ) -> None:
        self._config = config
        self._clock = clock
        self._report = report
        self._reported: tuple[str, float] = ("", 0.0)
        self._changed = asyncio.Event()

    def use(self, config: AgentConfig) -> None:
        """Use this configuration from now on."""
        if config.health_check_period_s != self._config.health_check_period_s:
            self._changed.set()
        self._config = config

    async def before(self, prepare: PrepareTask, uid: int) -> str:
        """Run the prolog of a task that will run as `uid`, and return its last line. Raises
        PrologError."""
        if self._config.prolog is None:
            return ""
        try:
            return await self._run(self._config.prolog, _PROLOG, _of_task(prepare, uid))
        except HookError as error:
            raise PrologError(str(error)) from error

    async def after(self, prepare: PrepareTask, uid: int) -> str:
        """Run the epilog of a task whose processes have ended, and return its last line, or how it
        failed."""
        if self._config.epilog is None:
            return ""
        try:
            return await self._run(self._config.epilog, EPILOG, _of_task(prepare, uid))
        except HookError as error:
            self._report(EPILOG, f"job {parse_task_id(prepare.task)[0]}: {error}")
            return str(error).removeprefix(f"{EPILOG} ")

    async def check_health(self) -> Never:
        """Run the health check at once and then periodically, until cancelled."""
        while True:
            self._changed.clear()
            await self._check_health()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.health_check_period_s):
                    await self._changed.wait()

    async def _check_health(self) -> None:
        assert self._config.health_check is not None
        try:
            await self._run(self._config.health_check, HEALTH_CHECK, {})
        except HookError as error:
            text, now = str(error), self._clock.now().mono
            if text != self._reported[0] or now - self._reported[1] >= _REMIND_S:
                self._reported = text, now
                self._report(HEALTH_CHECK, text)
        else:
            self._reported = "", 0.0

    async def _run(self, path: Path, name: str, env: Mapping[str, str]) -> str:
        own = {"MUSTER_HOOK": name, "MUSTER_NODE": self._config.node}
        try:
            line = await run_program(path, name, own | dict(env), self._config.hook_timeout_s)
        except HookError as error:
            _log.warning("hook_failed", hook=name, job=env.get("MUSTER_JOB_ID"), why=str(error))
            raise
        _log.debug("hook_ran", hook=name, job=env.get("MUSTER_JOB_ID"), line=line)
        return line


def check_hooks(config: AgentConfig) -> None:
    """Raise ConfigError if a configured program is not safe to run."""
    for name, path in (
        (_PROLOG, config.prolog),
        (EPILOG, config.epilog),
        (HEALTH_CHECK, config.health_check),
    ):
        if path is None:
            continue
        try:
            check_program(path)
        except HookError as error:
            raise ConfigError(f"{name}: {error}") from error


def _of_task(prepare: PrepareTask, uid: int) -> dict[str, str]:
    job, attempt, rank = parse_task_id(prepare.task)
    return {
        "MUSTER_JOB_ID": str(job),
        "MUSTER_ATTEMPT": str(attempt),
        "MUSTER_NODE_RANK": str(rank),
        "MUSTER_USER": prepare.user,
        "MUSTER_UID": str(uid),
        "MUSTER_GPUS": ",".join(prepare.gpus),
    }
