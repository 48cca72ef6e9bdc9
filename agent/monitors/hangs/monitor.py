"""Hang monitor: samples the ranks of all tasks of this node every few seconds and posts changes.

One pass serves all tasks: it reads the process list and the sockets once. It costs a millisecond or
two; benchmarks/hangs measures it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agent.core.activity_baseline import LOUD_LOOKS, ActivityBaseline, ActivitySample, signature
from agent.core.inputs import Input, TaskChanges, TaskObserved
from agent.core.shim_protocol import ShimPhase, ShimRank, ShimStatus
from agent.monitors.hangs.procfs import Processes
from agent.monitors.hangs.sock_diag import TcpConnection, connections
from agent.monitors.monitor import Monitor
from agent.monitors.traffic.counters import names_of_ports
from agent.probe.fabric import sysfs_formats
from agent.probe.fabric.fs_root import FsRoot, Unread
from agent.probe.fabric.rdma_devices import CLASS
from agent.shims.members import ENDED, Process, check
from muster.daemon.clock import Clock
from muster.fabric.counters import RECEIVED, SENT, WORD_BYTES
from muster.protocol.ids import TaskId
from muster.protocol.observations.hangs import Doing, RankActivity, Sign

STATE: Final = "cadence.json"
_STATE_BYTES_MAX: Final = 1 << 20
_STORE: Final = "MASTER_PORT"
_PORT_DIGITS: Final = 5
_HCAS: Final = "NCCL_IB_HCA"
_RANKS: Final = "WORLD_SIZE"
_RANKS_HERE: Final = "LOCAL_WORLD_SIZE"
MUTE_S: Final = 60.0
"""If a rank has shown no signs for this long while others of its task have, it reaches the other
nodes through them."""

_log = structlog.get_logger("agent.hangs")


class SavedBaseline(msgspec.Struct, omit_defaults=True):
    """The baseline of a rank, saved for the next agent process. `still`/`idle` were reported before
    the restart; assume they still hold until the rank moves."""

    pid: int
    began: int
    louds: int
    still_gap_s: float
    idle_gap_s: float
    signs: tuple[Sign, ...]
    still: bool = False
    idle: bool = False


@dataclass(slots=True)
class _Rank:
    """A rank under observation. `process` has passed the check that it belongs to the task; nothing
    is read of one that had ended before.

    `store` is the port of the gang's key-value store, which has traffic even during a hang.
    `alone`: the gang has no other node. `through_others`: traffic on the task's sockets counts for
    this rank, too.
    """

    cadence: ActivityBaseline
    process: Process
    files: tuple[Path, Path]
    store: int
    hcas: tuple[str, ...] | None
    alone: bool = True
    through_others: bool = False
    log: int | None = None
    cpu_s: float | None = None
    disk: int | None = None
    sockets: dict[int, int] | None = None
    hca: int | None = None


@dataclass(slots=True)
class _Task:
    folder: Path
    wanted: dict[int, ShimRank] = field(default_factory=dict)
    gone: dict[int, float] = field(default_factory=dict)  # ranks that have ended, and since when
    ranks: dict[int, _Rank] = field(default_factory=dict)
    kept: dict[int, SavedBaseline] | None = None
    refused: set[Process] = field(default_factory=set)  # already logged
    said: tuple[object, ...] = ()
    # Requests of the agent that make ranks move, such as recorder dumps: how many so far, how many
    # running now, and how many that no later sample can contain.
    asks: int = 0
    asking: int = 0
    settled: int = 0
    wrote: dict[int, SavedBaseline] = field(default_factory=dict)


class HangMonitor(Monitor):
    """Samples all tasks whose program runs. Supervisors pass the status of their shims to
    `heard`."""

    def __init__(
        self,
        clock: Clock,
        post: Callable[[Input], None],
        period_s: float,
        root: Path = Path("/"),
        processes: Processes | None = None,
    ) -> None:
        """`root` is the fabric's root directory."""
        super().__init__(post, period_s, at_once=False)
        self._clock = clock
        self._root = root
        self._processes = processes or Processes()
        self._tasks: dict[TaskId, _Task] = {}

    def look_every(self, period_s: float) -> None:
        """Sample at this interval from now on."""
        if period_s != self._period_s:
            self._period_s = period_s
            self.stir()

    def heard(self, task: TaskId, folder: Path, status: ShimStatus) -> None:
        """Take the newest status of a task."""
        if status.phase is not ShimPhase.RUNNING:
            self._tasks.pop(task, None)
            return
        known = self._tasks.setdefault(task, _Task(folder))
        known.wanted = {rank.rank: rank for rank in status.ranks if rank.pid and rank.exit is None}
        at = self._clock.now().mono
        ended = [rank.rank for rank in status.ranks if rank.exit is not None]
        known.gone = {rank: known.gone.get(rank, at) for rank in ended}

    def pid_of(self, task: TaskId) -> dict[int, int]:
        """The pids of the task's living ranks."""
        known = self._tasks.get(task)
        return {} if known is None else {n: rank.pid or 0 for n, rank in known.wanted.items()}

    @contextmanager
    def asking(self, task: TaskId) -> Iterator[None]:
        """Mark a request of the agent to the ranks. Activity until the first sample after it counts
        neither as movement nor as silence."""
        known = self._tasks.get(task)
        if known is None:
            yield
            return
        known.asks += 1
        known.asking += 1
        try:
            yield
        finally:
            known.asking -= 1

    async def look(self) -> None:
        """Sample once and post changes."""
        # Also tasks whose ranks have all ended: torchrun may still wait for the other nodes, and
        # that is worth one report.
        tasks = {name: task for name, task in self._tasks.items() if task.wanted or task.gone}
        if not tasks:
            return
        wanted = {name: dict(task.wanted) for name, task in tasks.items()}
        over = {name: task.asks for name, task in tasks.items() if not task.asking}
        found = await asyncio.to_thread(self._look, tasks, wanted)
        for name, asks in over.items():
            tasks[name].settled = asks
        for name, (at, ranks) in found.items():
            task = self._tasks.get(name)
            if task is not tasks[name]:
                continue
            said = tuple(signature(rank) for rank in ranks)
            if said != task.said:
                task.said = said
                changes = TaskChanges(activity=ranks, activity_at=at)
                self._post(TaskObserved(name, changes))

    def activity(self, task: TaskId) -> tuple[tuple[RankActivity, ...], float] | None:
        """The result of the last sample, and its time."""
        known = self._tasks.get(task)
        if known is None or not known.ranks:
            return None
        seen_at = max(rank.cadence.seen_at for rank in known.ranks.values())
        return _activity(known, seen_at), seen_at

    # --- in a thread ------------------------------------------------------------------------------

    def _look(
        self, tasks: dict[TaskId, _Task], wanted: dict[TaskId, dict[int, ShimRank]]
    ) -> dict[TaskId, tuple[float, tuple[RankActivity, ...]]]:
        for name, task in tasks.items():
            self._begin(name, task, wanted[name])
        every = [rank.process for task in tasks.values() for rank in task.ranks.values()]
        members = self._processes.look(process.pid for process in every if process.same)
        sockets = connections()
        hcas = self._hcas()
        found = {}
        for name, task in tasks.items():
            own = task.asks == task.settled
            ranks = list(task.ranks.values())
            pids = {rank.process: members.get(rank.process.pid, []) for rank in ranks}
            went = {it.process: self._network(it, pids[it.process], sockets) for it in ranks}
            self._find_mute(ranks)
            for rank in ranks:
                network = went[rank.process]
                if rank.through_others:
                    network = sum(count or 0 for count in went.values())
                rank.cadence.period_s = self._period_s
                self._sample(rank, pids[rank.process], network, hcas, own=own)
            at = self._clock.now().mono
            found[name] = at, _activity(task, at)
            self._keep(task)
        return found

    def _begin(self, name: TaskId, task: _Task, wanted: dict[int, ShimRank]) -> None:
        """Start to watch ranks that are new or have a new process. A process that does not belong
        to the task is not watched."""
        if task.kept is None:
            task.kept = _kept(task.folder)
        for number in task.ranks.keys() - wanted.keys():
            del task.ranks[number]
        pids = {number: rank.pid or 0 for number, rank in wanted.items()}
        new = {
            number: pid
            for number, pid in pids.items()
            if number not in task.ranks or task.ranks[number].process.pid != pid
        }
        for number, process in check(task.folder, new).items() if new else ():
            if process.problem not in ("", ENDED):
                task.ranks.pop(number, None)
                if process not in task.refused:
                    task.refused.add(process)
                    _log.warning("rank_not_watched", task=name, rank=number, why=process.problem)
                continue
            rank = wanted[number]
            cadence = ActivityBaseline(number, self._period_s, self._clock.now().mono)
            before = task.kept.get(number)
            if before is not None and (before.pid, before.began) == process[:2]:
                cadence.louds, cadence.signs = before.louds, set(before.signs)
                cadence.still_gap_s, cadence.idle_gap_s = before.still_gap_s, before.idle_gap_s
                cadence.resume(still=before.still, idle=before.idle)
            variables = self._processes.environment(process.pid, _STORE, _HCAS, _RANKS, _RANKS_HERE)
            if not process.same:
                # The variables may belong to another process, since the pid is free again.
                variables = {}
            task.ranks[number] = _Rank(
                cadence,
                process,
                (task.folder / rank.stdout, task.folder / rank.stderr),
                _port(variables.get(_STORE, "")),
                _planned(variables.get(_HCAS, "")),
                alone=variables.get(_RANKS) == variables.get(_RANKS_HERE),
            )

    def _find_mute(self, ranks: list[_Rank]) -> None:
        """Find ranks without sockets of their own. Over TCP only the ranks at the ends of a node's
        ring have sockets; the others send through NVLink, which is not counted."""
        if not any(rank.cadence.learned for rank in ranks):
            return
        for rank in ranks:
            cadence = rank.cadence
            if not rank.alone and not cadence.learned and cadence.seen_at - cadence.began >= MUTE_S:
                rank.through_others = True

    def _sample(
        self,
        rank: _Rank,
        members: list[int],
        network: int | None,
        hcas: dict[str, int],
        *,
        own: bool,
    ) -> None:
        """Take a sample. `own`: the rank acts by itself, not at the agent's request."""
        cadence = rank.cadence
        quiet = cadence.idle_at < cadence.seen_at
        doing, where, written = Doing.GONE, "", None
        if rank.process.same:
            doing, where = self._processes.doing(rank.process.pid, threads=quiet)
            written = self._processes.disk_bytes(rank.process.pid)
        if not rank.process.same:
            # The pid may have been reused, so the values may belong to another process.
            doing, where, written = Doing.GONE, "", None
        log, rank.log = _moved(rank.log, _sizes(rank.files))
        disk, rank.disk = _moved(rank.disk, written)
        count = self._hca_bytes(rank, hcas)
        hca, rank.hca = _moved(rank.hca, count)
        cpu = self._processes.cpu_s(members)
        cpu_s = None if rank.cpu_s is None else max(0.0, cpu - rank.cpu_s)
        rank.cpu_s = cpu
        moved = {
            Sign.LOG: log,
            Sign.NETWORK: network,
            Sign.HCA: hca,
            Sign.DISK: disk,
        }
        at = self._clock.now().mono
        cadence.take(
            ActivitySample(at, moved, cpu_s, doing, where)
            if own
            else ActivitySample(at, asked=True)
        )

    def _network(
        self, rank: _Rank, members: list[int], connected: dict[int, TcpConnection] | None
    ) -> int | None:
        inodes = None if connected is None else self._processes.sockets(members)
        if connected is None or inodes is None:
            rank.sockets = None
            return None
        now = {
            inode: connected[inode].bytes
            for inode in inodes
            if inode in connected and rank.store not in connected[inode].ports
        }
        before, rank.sockets = rank.sockets, now
        if before is None:
            return None
        return sum(max(0, count - before.get(inode, 0)) for inode, count in now.items())

    def _hcas(self) -> dict[str, int]:
        """Bytes of each port, in both directions."""
        tree = FsRoot(self._root)
        found = {}
        for name, port in names_of_ports(tree):
            words = 0
            for counter in (SENT, RECEIVED):
                text = tree.text(f"{CLASS}/{name}/ports/{port}/counters/{counter}")
                words += 0 if isinstance(text, Unread) else sysfs_formats.counter(text) or 0
            found[f"{name}:{port}"] = words * WORD_BYTES
        return found

    def _hca_bytes(self, rank: _Rank, hcas: dict[str, int]) -> int | None:
        if not hcas:
            return None
        planned = rank.hcas
        return sum(
            count
            for port, count in hcas.items()
            if planned is None or port in planned or port.partition(":")[0] in planned
        )

    def _keep(self, task: _Task) -> None:
        """Save the baselines. Without fsync, because losing one only means learning it again."""
        now = {
            number: SavedBaseline(
                rank.process.pid,
                rank.process.began,
                LOUD_LOOKS,
                rank.cadence.still_gap_s,
                rank.cadence.idle_gap_s,
                tuple(sorted(rank.cadence.signs, key=lambda sign: sign.value)),
                activity.still_s is not None,
                activity.idle_s is not None,
            )
            for number, rank in task.ranks.items()
            if rank.cadence.learned
            for activity in [rank.cadence.activity()]
        }
        if not now or now == task.wrote:
            return
        path = task.folder / STATE
        temporary = path.with_suffix(".new")
        try:
            temporary.write_bytes(msgspec.json.encode(now))
            os.replace(temporary, path)
            task.wrote = now
        except OSError as error:
            _log.debug("cadence_not_kept", why=str(error))


def _activity(task: _Task, at: float) -> tuple[RankActivity, ...]:
    activity = [rank.cadence.activity() for rank in task.ranks.values()]
    activity += [
        RankActivity(
            rank, still_s=max(0.0, at - ended), idle_s=max(0.0, at - ended), doing=Doing.GONE
        )
        for rank, ended in task.gone.items()
        if rank not in task.ranks
    ]
    return tuple(sorted(activity, key=lambda rank: rank.rank))


def _kept(folder: Path) -> dict[int, SavedBaseline]:
    try:
        with open(folder / STATE, "rb") as file:
            return msgspec.json.decode(file.read(_STATE_BYTES_MAX), type=dict[int, SavedBaseline])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _moved(before: int | None, now: int | None) -> tuple[int | None, int | None]:
    """The increase and the new value. A counter that has decreased started again from zero."""
    if before is None or now is None:
        return None, now
    return (now - before if now >= before else now), now


def _sizes(files: tuple[Path, Path]) -> int | None:
    total = None
    for path in files:
        try:
            total = (total or 0) + os.stat(path, follow_symlinks=False).st_size
        except OSError:
            continue
    return total


def _port(text: str) -> int:
    """The port of MASTER_PORT. Returns 0 if it is none: a rank may have any environment."""
    return int(text) if len(text) <= _PORT_DIGITS and text.isascii() and text.isdecimal() else 0


def _planned(text: str) -> tuple[str, ...] | None:
    """The ports of an exact NCCL_IB_HCA. Returns None if the setting does not name them."""
    return tuple(text[1:].split(",")) if text.startswith("=") else None
