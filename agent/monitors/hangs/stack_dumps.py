"""Answers DumpStacks of the coordinator: stacks of a task's ranks, and NCCL's flight recorder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agent.core.inputs import Input, StacksObserved
from agent.monitors.hangs import flight_recorder
from agent.monitors.hangs import py_spy as spy
from agent.monitors.hangs.monitor import HangMonitor
from agent.probe import py_spy_check
from agent.shims.members import check
from agent.taskdirs.taskdirs import TaskDirs, TaskUser, user_of
from muster.daemon.clock import Clock
from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import DumpStacks, StacksReport
from muster.protocol.observations.hangs import RankActivity, RankStacks, RecordedRank

BYTES_MAX: Final = 512 << 10
"""The size limit of all encoded stacks in an answer: half a frame."""
_LEFT_OUT: Final = "its stack is left out: the stacks of this node are too large for one report"

_log = structlog.get_logger("agent.hangs")


class StackDumper:
    """Takes one dump at a time per task. Requests during a dump lead to one more dump, for the
    last."""

    def __init__(
        self,
        watch: HangMonitor,
        folders: TaskDirs,
        clock: Clock,
        post: Callable[[Input], None],
        owner: TaskOwner,
    ) -> None:
        self._watch = watch
        self._folders = folders
        self._clock = clock
        self._post = post
        self._owner = owner
        self._asked: dict[TaskId, DumpStacks] = {}

    def begin(self, look: DumpStacks) -> None:
        """Start a dump. Answered by StacksObserved."""
        busy = look.task in self._asked
        self._asked[look.task] = look
        if not busy:
            self._owner.spawn(self._look(look.task), name=f"look.{look.task}")

    async def _look(self, task: TaskId) -> None:
        while True:
            look = self._asked[task]
            try:
                found = await self._answer(look)
            except Exception:  # noqa: BLE001 - a failed dump harms no job
                _log.exception("look_failed", task=task)
                found = StacksReport(task, look.epoch, look.number, problem="the agent could not")
            self._post(StacksObserved(found))
            if self._asked[task] == look:
                del self._asked[task]
                return

    async def _answer(self, look: DumpStacks) -> StacksReport:
        pids = self._watch.pid_of(look.task)
        folder = self._folders.path(look.task)
        user = await asyncio.to_thread(user_of, folder)
        problem = py_spy_check.MISSING if py_spy_check.find() is None else ""
        stacks: tuple[RankStacks, ...] = ()
        recorded: tuple[RecordedRank, ...] = ()
        if not problem:
            ranks = await asyncio.to_thread(check, folder, pids)
            stacks = bounded(await spy.stacks_of(ranks, user, threads=look.threads))
        if look.recorder:
            with self._watch.asking(look.task):
                asked = await flight_recorder.ask(folder, user, pids)
                recorded = await flight_recorder.recorded(folder, user, asked)
            late = self._late(look.task, folder, user, asked)
            self._owner.spawn(late, name=f"late.{look.task}")
        return StacksReport(
            look.task, look.epoch, look.number, stacks, self._activity(look.task), recorded, problem
        )

    async def _late(
        self,
        task: TaskId,
        folder: Path,
        user: TaskUser,
        asked: Sequence[flight_recorder.DumpTarget],
    ) -> None:
        """Wait for ranks that write their dump only after the coordinator got its answer."""
        with self._watch.asking(task):
            await flight_recorder.written(folder, user, asked)

    def _activity(self, task: TaskId) -> tuple[RankActivity, ...]:
        known = self._watch.activity(task)
        if known is None:
            return ()
        ranks, at = known
        age = max(0.0, self._clock.now().mono - at)
        return tuple(rank.later(age) for rank in ranks)


def bounded(found: tuple[RankStacks, ...]) -> tuple[RankStacks, ...]:
    """Cut the stacks to fit an answer: first to the main threads, then to fewer frames, at last to
    fewer ranks.
    """
    if _size(found) > BYTES_MAX:
        found = tuple(RankStacks(r.rank, r.pid, r.threads[:1], r.problem) for r in found)
    most = 40
    while _size(found) > BYTES_MAX and most > 1:
        most //= 2
        found = tuple(_cut(rank, most) for rank in found)
    number = len(found)
    while _size(found) > BYTES_MAX and number:
        number //= 2
        found = (
            *found[:number],
            *(RankStacks(r.rank, r.pid, (), _LEFT_OUT) for r in found[number:]),
        )
    return found


def _cut(rank: RankStacks, most: int) -> RankStacks:
    threads = tuple(type(t)(t.name, t.frames[:most], t.gil) for t in rank.threads)
    return RankStacks(rank.rank, rank.pid, threads, rank.problem)


def _size(found: tuple[RankStacks, ...]) -> int:
    return len(msgspec.json.encode(found))
