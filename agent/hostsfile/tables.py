"""Host tables of this node's tasks, in files: one for the machine, or one per task. The methods
block on the disk: call them from one thread.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from agent.hostsfile.editor import HostsFile
from muster.daemon.errors import FileError
from muster.protocol.hosts_file import (
    Conflict,
    Others,
    Table,
    conflicts,
    parse,
    table_problems,
    with_block,
    without_blocks,
    without_names,
)
from muster.protocol.ids import TaskId, parse_task_id
from muster.protocol.link.control_channel import Refusal
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.text import listed


class TableRefused(Exception):
    """This table cannot be written here."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class Tables(Protocol):
    """Storage of host tables."""

    def clear(self, task: TaskId, table: Table, others: Others, own: str) -> frozenset[str]:
        """Before a table is written, refuse it if it contradicts lines of the hosts file.

        Returns the names in our blocks of the file, in lower case. Raises TableRefused.
        """

    def put(self, task: TaskId, table: Table, others: Others, own: str) -> tuple[str, ...]:
        """Write the table of a task; returns warnings. `own` is this node's address in it.

        Raises TableRefused.
        """


def lease_of_task(task: TaskId) -> str:
    """Return the name of a task's block. Attempts own blocks, and have one task per node."""
    job, attempt, _ = parse_task_id(task)
    return f"{job}.{attempt}"


def check(table: Table) -> None:
    """Validate a table, although its sender has done so: one bad name refuses it all. Raises
    TableRefused.
    """
    problems = table_problems(table)
    if problems:
        text = f"the coordinator sent an invalid host table: {listed(problems)}"
        raise TableRefused(Refusal(RefusalCode.HOSTS_BAD_TABLE, text))


class SharedTables:
    """Blocks in the machine's own hosts file, one per attempt."""

    def __init__(self, file: HostsFile, path: Path, *, must: bool) -> None:
        """With `must`, an unwritable file refuses the table; otherwise it is a warning."""
        self._file = file
        self._path = path
        self._must = must
        self._holders: set[TaskId] = set()

    def clear(self, task: TaskId, table: Table, others: Others, own: str) -> frozenset[str]:
        check(table)
        lease = lease_of_task(task)
        names: frozenset[str] = frozenset()

        def change(text: bytes) -> bytes:
            nonlocal names
            text = without_blocks(text, self._alive() | {lease})
            _refuse(conflicts(text, lease, table, others), own, self._path)
            names = _names_of_ours(text)
            return text

        # `put` reports an unwritable file.
        with contextlib.suppress(FileError):
            self._file.update(change)
        return names

    def put(self, task: TaskId, table: Table, others: Others, own: str) -> tuple[str, ...]:
        check(table)
        lease = lease_of_task(task)
        self._holders.add(task)

        def change(text: bytes) -> bytes:
            text = without_blocks(text, self._alive())
            _refuse(conflicts(text, lease, table, others), own, self._path)
            return with_block(text, lease, table)

        try:
            self._file.update(change)
        except FileError as error:
            if self._must:
                raise TableRefused(
                    Refusal(RefusalCode.HOSTS_UNWRITABLE, str(error), node_fault=True)
                ) from error
            return (f"peers have only their existing names here: {error}",)
        return ()

    def hold(self, tasks: Collection[TaskId]) -> None:
        """Keep the blocks of these tasks, which an earlier agent process may have written."""
        self._holders.update(tasks)

    def drop(self, task: TaskId) -> None:
        """Remove the task's block, unless another task of its attempt has it, too: a node that came
        back to its gang has two. Does nothing if there is none. Raises FileError.
        """
        self._holders.discard(task)
        lease = lease_of_task(task)
        if lease in self._alive():
            return

        def change(text: bytes) -> bytes:
            return without_blocks(text, set(parse(text).entries) - {lease})

        self._file.update(change)

    def clean(self) -> None:
        """Remove every block without a task, also of earlier agent processes. Raises FileError."""
        self._file.update(lambda text: without_blocks(text, self._alive()))

    def _alive(self) -> set[str]:
        return {lease_of_task(task) for task in self._holders}


class PrivateTables:
    """A hosts file per task, visible only to its job: the machine's, with the gang's names and
    addresses.
    """

    def __init__(self, machine: Path, file_of: Callable[[TaskId], Path]) -> None:
        """`file_of` is the path of a task's file, created before its shim started and mounted over
        `machine` for the job.
        """
        self._machine = machine
        self._file_of = file_of

    def clear(self, task: TaskId, table: Table, others: Others, own: str) -> frozenset[str]:
        check(table)
        try:
            text = self._machine.read_bytes()
        except OSError:
            return frozenset()  # `put` reports it
        foreign = without_blocks(text, ())
        _refuse(conflicts(foreign, lease_of_task(task), table, others), own, self._machine)
        return _names_of_ours(text)

    def put(self, task: TaskId, table: Table, others: Others, own: str) -> tuple[str, ...]:
        check(table)
        lease = lease_of_task(task)
        try:
            text = machine_text(self._machine)
            _refuse(conflicts(text, lease, table, others), own, self._machine)
            mine = without_names(text, [name for name, _ in table])
            # Write the same file, because the job's namespace has it mounted.
            with self._file_of(task).open("r+b") as file:
                file.write(with_block(mine, lease, table))
                file.truncate()
        except OSError as error:
            text_ = f"{error.filename} cannot be read or written: {error.strerror}"
            raise TableRefused(
                Refusal(RefusalCode.HOSTS_UNWRITABLE, text_, node_fault=True)
            ) from error
        return ()


def machine_text(path: Path) -> bytes:
    """Return the machine's hosts file without our blocks. Raises OSError."""
    try:
        return without_blocks(path.read_bytes(), ())
    except FileNotFoundError:
        return b""


def _names_of_ours(text: bytes) -> frozenset[str]:
    """Return the names in our blocks of a hosts file, in lower case."""
    entries = [entry for lease in parse(text).entries.values() for entry in lease]
    return frozenset(name.lower() for _, names in entries for name in names)


def _refuse(found: Sequence[Conflict], own: str, path: Path) -> None:
    """Refuse to override foreign lines. A line about this node's own name is left to the rendezvous
    check, which knows whether programs use it. Raises TableRefused.
    """
    wrong = [conflict for conflict in found if not _only_own(conflict, own)]
    if wrong:
        texts = [_sentence(conflict, path) for conflict in wrong]
        raise TableRefused(Refusal(RefusalCode.HOSTS_CONFLICT, listed(texts), node_fault=True))


def _only_own(conflict: Conflict, own: str) -> bool:
    """True if this node's own name has a loopback address, as Debian's installer writes it."""
    try:
        address = ipaddress.ip_address(conflict.found)
    except ValueError:
        return False
    return address.is_loopback and conflict.wanted == own and not conflict.lease


def _sentence(conflict: Conflict, path: Path) -> str:
    if conflict.lease:
        job, _, attempt = conflict.lease.partition(".")
        return (
            f"the name {conflict.name} leads to {conflict.found} for attempt {attempt} of job "
            f"{job}, which is still on this node, and to {conflict.wanted} for this one"
        )
    return (
        f"line {conflict.line} of {path} gives the name {conflict.name} to {conflict.found}, and "
        f"the node of that name is at {conflict.wanted}: remove or correct that line"
    )
