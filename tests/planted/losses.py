"""Acknowledged work is there after a restart, or the start is refused; and a wrong clock removes
nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Inventory
from muster.spec.model import JobSpec, Shell
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import Node, State
from orchestrator.journal import journal, loss, mark, schema
from orchestrator.journal.errors import JournalError
from orchestrator.journal.journal import Journal
from orchestrator.journal.wal import WriteAheadLog
from orchestrator.shell import coordinator
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.retention import Keep, Retention
from tests.planted import Bug, put, wrap

JOBS = 12
DAY = 86400.0
NOW = 1e9


def _killed(folder: Path) -> Path:
    """A state folder whose coordinator was killed with all of its jobs in the log."""
    work, left = folder / "work", folder / "left"
    with closing(Journal.open(work)) as journal:
        journal.begin_epoch()
        for number in range(1, JOBS + 1):
            spec = JobSpec(name="job", run=Shell("true"))
            journal.append([(f.JobSubmitted(JobId(number), spec, "ann"), 1.0)])
        shutil.copytree(work, left)
    return left


def _found(folder: Path) -> int:
    """Return the number of jobs after a start; all of them if the start was refused."""
    try:
        with closing(Journal.open(folder)) as journal:
            return sum(1 for _ in journal.replay())
    except JournalError:
        return JOBS


def a_lost_database_is_not_begun_anew(folder: Path) -> None:
    left = _killed(folder)
    (left / schema.FILE_NAME).unlink()
    assert _found(left) == JOBS, "it began anew"


def a_bit_of_the_log_that_flips_loses_no_job_in_silence(folder: Path) -> None:
    """Also where the mark says nothing, as after a power failure."""
    left = _killed(folder)
    log = left / f"{schema.FILE_NAME}-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 3] ^= 1
    log.write_bytes(data)
    (left / mark.FILE_NAME).write_bytes(b"")
    assert _found(left) == JOBS, "jobs are gone without a word"


def a_log_that_is_cut_loses_no_job_in_silence(folder: Path) -> None:
    left = _killed(folder)
    log = left / f"{schema.FILE_NAME}-wal"
    os.truncate(log, log.stat().st_size // 2)
    assert _found(left) == JOBS, "jobs are gone without a word"


def a_wrong_clock_removes_no_logs(folder: Path) -> None:
    """It is 40 days ahead of that of the only node."""
    (folder / "1" / "1").mkdir(parents=True)
    (folder / "1" / "1" / "0.stdout.0").write_bytes(b"what it said")
    node = Node(NodeName("n1"), "id", "boot", "0.1.0", Inventory("10.0.0.1", "m1"))
    node.link, node.ahead_s = LinkState.CONNECTED, -40 * DAY
    state = State()
    state.nodes[node.name] = node
    removed: list[int] = []

    async def remove(name: JobId, *_: Any) -> None:
        removed.append(name)

    async def ended_at(names: list[JobId]) -> dict[JobId, float]:
        return dict.fromkeys(names, NOW - 40 * DAY)

    async def in_thread(call: Callable[[], Any]) -> Any:
        return call()

    known = SimpleNamespace(
        state=state,
        now=lambda: Instant(0.0, NOW),
        archive=SimpleNamespace(ended_at=ended_at),
        _began_mono=0.0,
        _last_record=None,
    )
    known._clock = known
    real = cast(Coordinator, known)
    known._ahead_s = lambda: Coordinator._ahead_s(real)
    known.clock_doubt = lambda: Coordinator.clock_doubt(real)
    known.may_remove_by_age = lambda: Coordinator.may_remove_by_age(real)
    store = SimpleNamespace(remove=remove, in_thread=in_thread)
    retention = Retention(folder, cast(Any, store), real, Keep(7 * DAY, 1 << 40))
    for hours in range(1, 3):
        known.now = lambda at=3600.0 * hours: Instant(at, NOW + at)
        asyncio.run(retention.sweep())
    assert removed == [], "the logs of a job are gone"


def _of_a_database_alone(real: Any) -> Any:
    def refuse_loss(path: Path, *more: Any, **options: Any) -> str:
        return str(real(path, *more, **options)) if loss.size(path) else ""

    return refuse_loss


BUGS = (
    Bug(
        "a lost database is begun anew",
        "I6",
        wrap(journal, "refuse_loss", _of_a_database_alone),
        a_lost_database_is_not_begun_anew,
    ),
    Bug(
        "a damaged log is read as far as it goes",
        "I6",
        put(loss, "examine_log", lambda _: WriteAheadLog()),
        a_bit_of_the_log_that_flips_loses_no_job_in_silence,
    ),
    Bug(
        "nobody notes what was committed",
        "I6",
        put(mark.JournalMark, "committed", lambda *_: None),
        a_log_that_is_cut_loses_no_job_in_silence,
    ),
    Bug(
        "the clock is never in doubt",
        "I6",
        put(coordinator, "clock_doubt", lambda *_: ""),
        a_wrong_clock_removes_no_logs,
    ),
)
