"""Host names of gangs: write them, verify them, and remove them again.

Disk and resolver may be slow, so the event loop waits for neither. One thread changes files, in
order. Each check has a thread of its own, which is abandoned on timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import structlog

from agent.config import AgentConfig
from agent.gang.name_check import Findings, Resolver, check_before_write, check_names, unanswered
from agent.hostsfile.editor import HostsFile
from agent.hostsfile.tables import PrivateTables, SharedTables, TableRefused, Tables
from agent.shim.system.syscalls import bind_privately
from muster.daemon.errors import ConfigError
from muster.protocol.hosts_file import Others, Table
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, Refusal
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.text import listed

PROOF_S: Final = 15.0
_BACKUP: Final = "hosts.before"

_Result = TypeVar("_Result")
_log = structlog.get_logger("agent.hosts")


def mode_of(config: AgentConfig) -> str:
    """`file`, `private` or `off`. Raises ConfigError."""
    root = os.geteuid() == 0
    match config.hosts.mode:
        case "auto":
            return "file" if root and not config.shared_host else "off"
        case "private" if not root:
            raise ConfigError(
                "hosts.mode is private, and only root can mount a file for a single job: run the "
                "agent as root, or use another mode"
            )
        case mode:
            return mode


class GangHostNames:
    """The hosts tables of one agent. Needs a running event loop."""

    def __init__(
        self,
        config: AgentConfig,
        file_of: Callable[[TaskId], Path],
        resolver: Resolver | None = None,
    ) -> None:
        """`file_of`: the private hosts file of a task. Raises ConfigError."""
        path = config.hosts.file
        self._node = config.node
        self._resolver = resolver or Resolver()
        self._lenient = config.hosts.mode == "auto"
        self._path = path
        self._private: Callable[[TaskId], Path] | None = None
        self._tables: Tables | None = None
        self._shared: SharedTables | None = None
        if not config.shared_host:
            # In every mode, because entries written in another mode have to be removed.
            file = HostsFile(path, config.state_dir / _BACKUP)
            self._shared = SharedTables(file, path, must=not self._lenient)
        match mode_of(config):
            case "file":
                self._tables = self._shared
            case "private":
                self._private = file_of
                self._tables = PrivateTables(path, file_of)
            case _:
                pass
        # One thread runs all changes in order, so that a removed table stays removed.
        self._files = ThreadPoolExecutor(1, "hosts")

    @property
    def off(self) -> bool:
        """True if host names are off and no old tables need cleaning."""
        return self._tables is None and self._shared is None

    def adopt(self, tasks: Collection[TaskId]) -> None:
        """Call first: only these tasks may have tables from an earlier agent process."""
        if self._shared is not None:
            self._shared.hold(tasks)

    async def clean(self) -> None:
        """Remove the tables of tasks that no longer exist. Raises FileError."""
        if self._shared is not None:
            await self._in_files(self._shared.clean)

    async def arrange(self, task: TaskId, plan: ArrangeTask) -> Refusal | tuple[str, ...]:
        """Write the table of the plan and verify it. Returns warnings, or a refusal."""
        if self._tables is None or not plan.hosts:
            return ()
        own = dict(plan.hosts).get(self._node, "")
        arguments = (task, plan.hosts, plan.others, own)
        try:
            ours = await self._in_files(self._tables.clear, *arguments)
            unknown = [entry for entry in plan.hosts if entry[0].lower() not in ours]
            before = await self._check_before_write(unknown, plan.others, own)
            if before.problems:
                return Refusal(RefusalCode.HOSTS_ELSEWHERE, listed(before.problems))
            warned = await self._in_files(self._tables.put, *arguments)
        except TableRefused as error:
            return error.refusal
        try:
            findings = await _in_own_thread(lambda: self._prove(task, plan, own))
        except TimeoutError:
            text = f"no name server has resolved the gang's names within {PROOF_S:g} s"
            findings = Findings((text,))
        except OSError as error:
            text = f"the job's own {self._path} cannot be mounted: {error.strerror}"
            return Refusal(RefusalCode.HOSTS_UNWRITABLE, text, node_fault=True)
        # In `auto` mode a table that could not be written fully is only a warning.
        lenient = self._lenient and bool(warned)
        if findings.problems and not lenient:
            text = f"{listed(findings.problems)}; {self._path}, nsswitch.conf and DNS decide that"
            return Refusal(RefusalCode.HOSTS_UNRESOLVED, text, node_fault=True)
        warnings = (*before.warnings, *warned, *findings.problems, *findings.warnings)
        for warning in warnings:
            _log.warning("hosts", task=task, why=warning)
        return warnings

    async def drop(self, task: TaskId) -> None:
        """Take back the table of a task. Raises FileError."""
        if self._shared is not None:
            await self._in_files(self._shared.drop, task)

    def close(self) -> None:
        self._files.shutdown(wait=False, cancel_futures=True)

    async def _check_before_write(self, table: Table, others: Others, own: str) -> Findings:
        """Check whether names that are about to be written already lead to other machines."""
        try:
            return await _in_own_thread(
                lambda: check_before_write(table, others, own, self._resolver)
            )
        except TimeoutError:
            return unanswered(len(table))

    def _prove(self, task: TaskId, plan: ArrangeTask, own: str) -> Findings:
        """Verify the table as the job will see it; runs in a thread of its own."""
        if self._private is not None:
            bind_privately(str(self._private(task)), str(self._path))
        return check_names(plan.hosts, plan.others, own, self._resolver)

    async def _in_files(self, call: Callable[..., _Result], *arguments: object) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._files, lambda: call(*arguments))


async def _in_own_thread(call: Callable[[], _Result]) -> _Result:
    """Run a call that may hang or change its thread's mounts. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def finish(result: _Result | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001  raised where the result is awaited
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, name="hosts.proof", daemon=True).start()
    async with asyncio.timeout(PROOF_S):
        return await done
