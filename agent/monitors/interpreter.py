"""Monitor of the interpreter of jobs that name none: whether it has torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from agent.core.inputs import Input, NodeObserved
from agent.monitors.monitor import Monitor
from agent.probe.interpreter import UnknownError, interpreter_of, look_for_torch
from agent.taskdirs.task_accounts import TaskAccounts
from muster.daemon.abandoned_thread import BlockingCall
from muster.protocol.link.control_channel import NodeChanges

PERIOD_S: Final = 30.0
# A start of the agent waits no longer. A slow file system answers at a later look.
_PATIENCE_S: Final = 10.0
# An interpreter that has torch is asked again every 10th time, or when its file changes.
_LOOKS_WITH_TORCH: Final = 10

_log = structlog.get_logger("agent.monitors.interpreter")


class InterpreterMonitor(Monitor):
    """Posts every change of the reason for which jobs that name no interpreter have no torch. The
    first look is the caller's."""

    def __init__(
        self,
        python: Path,
        owners: TaskAccounts,
        post: Callable[[Input], None],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        super().__init__(post, period_s, at_once=False)
        self._python = python
        self._user = None if owners.fixed is None else owners.fixed.name
        self._submitters = owners.submitters
        self._check = BlockingCall(self._ask, "agent.monitors.interpreter")
        self._version: object = None
        self._looks_left = 0
        self._reason = ""

    async def look(self) -> None:
        try:
            reason = await self._check.result(_PATIENCE_S)
        except TimeoutError:
            return  # the call goes on
        if self._is_news("no_torch", reason, before=""):
            if reason:
                _log.warning("no_torch", why=reason)
            else:
                _log.info("torch_found", python=str(self._python))
            self._post(NodeObserved(NodeChanges(no_torch=reason)))

    def _ask(self) -> str:
        """Ask the interpreter if its file is new, if it had no torch, or if it is time."""
        version = _version_of(self._python)
        self._looks_left -= 1
        if version == self._version and not self._reason and self._looks_left > 0:
            return ""
        self._version, self._looks_left = version, _LOOKS_WITH_TORCH
        try:
            lack = look_for_torch(self._python, self._user, submitters=self._submitters)
        except UnknownError as error:
            _log.info("torch_unknown", why=str(error))
            lack = None
        self._reason = "" if lack is None else lack.what
        return self._reason


def _version_of(python: Path) -> object:
    try:
        found = interpreter_of(python).stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_mtime_ns
