"""Whole journals of a coordinator's life, as each layout and schema of them was written."""

from __future__ import annotations

import json
import lzma
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.protocol.ids import JobId
from muster.protocol.instant import Instant
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from muster.spec.model import Retry
from orchestrator.core.engine.replay_job import replay_job
from orchestrator.core.engine.turn import Turn
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.effects import RequestId
from orchestrator.core.facts.jobs import DURABLE, SCHEMA, Fact
from orchestrator.core.model.state import Attempt, Job, State
from orchestrator.core.model.status import job_state
from orchestrator.journal import archive
from orchestrator.journal.journal import Journal
from orchestrator.journal.reader_pool import read_only
from orchestrator.journal.schema import FILE_NAME, LAYOUT
from orchestrator.shell.job_archive import row_of
from orchestrator.shell.replay import replay
from tests.golden import examples
from tests.orchestrator.core.playbook import Cluster, prepared, spec, task

FOLDER = Path(__file__).parent / "recorded" / "journals"


@dataclass
class Written(Cluster):
    """A cluster whose durable facts are kept with their moments, as a journal has them."""

    rows: list[tuple[Fact, float]] = field(default_factory=list)

    def turn(self, received: s.Input) -> Turn:
        done = super().turn(received)
        at = Instant(self.mono, 0.0).mono + 1_700_000_000.0
        durable = [(fact, at) for fact in done.facts if isinstance(fact, DURABLE)]
        self.rows += durable
        self.mono += 0.25 if durable else 0.0
        return done

    def ask(self, make: Any, job: int, *more: Any, **given: Any) -> None:
        self.requests += 1
        self.turn(make(RequestId(self.requests), JobId(job), "ada", *more, **given))


def life() -> Written:
    """Jobs of every kind there is, some over, some not."""
    cluster = Written()
    for i in range(9):
        cluster.join(f"n{i}", machine_id=f"m{i}", address=f"10.0.0.{i + 1}")
    cluster.submit(spec("done", nodes=2), key="key-1", digest="d1")
    for name in cluster.run_gang(1):
        cluster.finish(name)
    cluster.submit(spec("fails", retry=Retry(user=1, backoff_s=1.0)))
    for attempt in (1, 2):
        (name,) = cluster.run_gang(2, attempt)
        cluster.finish(name, 3)
        cluster.beat(2.0)
    cluster.submit(spec("cancelled", nodes=9))
    cluster.cancel(3, reason="a mistake")
    for number in range(9):
        cluster.clean(task(3, 1, number))
    cluster.drain("n8", "bad DIMM")
    cluster.drain("n7", "new cable")
    cluster.resume("n7", check=False)
    cluster.submit(spec("runs", nodes=2, priority=60))
    cluster.run_gang(4)
    cluster.ask(s.SignalReceived, 4, "SIGUSR1")
    cluster.ask(s.ChangeReceived, 4, time_limit_s=7200.0)
    cluster.submit(spec("elastic", nodes=1, max_nodes=3, rendezvous="c10d"))
    cluster.run_gang(5)
    cluster.end(task(5, 1, 2), ExitStatus(signal=9))
    cluster.clean(task(5, 1, 2))
    cluster.submit(spec("stops"))
    (name,) = cluster.run_gang(6)
    cluster.cancel(6, reason="enough", grace_s=60.0)
    cluster.end(name, ExitStatus(signal=15), "stop")
    cluster.submit(spec("prepares", nodes=1))
    cluster.report(task(7, 1, 0), TaskState.PREPARED, prepared=prepared())
    cluster.submit(spec("waits", nodes=8, priority=40))
    cluster.submit(spec("held", nodes=8))
    cluster.ask(s.ChangeReceived, 9, hold=True, reason="not today")
    cluster.submit(spec("again", nodes=1), key="key-10", digest="d10")
    return cluster


def write(folder: Path) -> None:
    """A journal of that life in `folder`, the first three jobs in its archive."""
    cluster = life()
    with closing(Journal.open(folder)) as journal:
        journal.begin_epoch()
        for row in cluster.rows:
            journal.append([row])
        over = [cluster.job(job) for job in (1, 2, 3)]
        assert journal.archive([row_of(job, "d1" if job.key else "") for job in over])


def summary(folder: Path) -> dict[str, Any]:
    """Return the state that a coordinator reads from the journal in `folder`. It may be
    upgraded."""
    with closing(Journal.open(folder)) as journal:
        state = replay(journal.replay())
        tally, first_job = journal.tally(), journal.first_job
    with closing(read_only(folder / FILE_NAME)) as database:
        gone = sorted(row[0] for row in database.execute("SELECT job FROM archived"))
        ended = [
            replay_job((r.fact, r.at) for r in archive.facts_of(database, number))
            for number in gone
        ]
        keyed = archive.by_key(database, "ada", "key-1")
    return {
        "epoch": state.epoch,
        "cluster": state.cluster,
        "next_job": max(state.next_job, first_job),
        "tally": dict(sorted(tally.items())),
        "archived": [_job(job) for job in ended],
        "by_key": None if keyed is None else list(keyed),
        "jobs": [_job(job) for job in state.jobs.values()],
        "keys": [[*who, *what] for who, what in state.keys.items()],
        "queues": examples.decoded(state.queues),
        "held": sorted(state.held),
        "elastic": sorted(state.elastic),
        "ports": examples.decoded(state.ports),
        "nodes": _nodes(state),
    }


def _job(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.spec.name,
        "user": job.user,
        "state": job_state(job).value,
        "phase": job.phase.value,
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at,
        "priority": job.spec.priority,
        "time_limit_s": job.spec.time_limit_s,
        "cause": examples.decoded(job.cause),
        "used": [job.infra_used, job.user_used],
        "held_for": None if job.hold is None else job.hold.reason,
        "attempts": [_attempt(attempt) for attempt in job.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "phase": attempt.phase.value,
        "master": [attempt.master_addr, attempt.master_port],
        "cause": examples.decoded(attempt.cause),
        "signals": [[signal.number, signal.name] for signal in attempt.signals],
        "times": [attempt.placed_at, attempt.started_at, attempt.stopping_at, attempt.closed_at],
        "tasks": [
            [
                task.id,
                task.node,
                task.state.value,
                task.joined,
                task.left,
                examples.decoded(task.exit),
            ]
            for task in attempt.tasks
        ],
    }


def _nodes(state: State) -> list[dict[str, Any]]:
    return [
        {
            "name": node.name,
            "agent_id": node.agent_id,
            "admin": node.admin.value,
            "reason": None if node.drain is None else node.drain.reason,
            "holders": sorted([job, attempt] for job, attempt in node.holders),
            "inventory": examples.decoded(node.inventory),
        }
        for node in state.nodes.values()
    ]


def path_of(folder: Path = FOLDER) -> Path:
    """Return the path of the recording of the journal that this version writes."""
    return folder / f"layout-{LAYOUT}-schema-{SCHEMA}.sqlite.xz"


def summary_of(recorded: Path) -> Path:
    return recorded.with_name(recorded.name.removesuffix(".sqlite.xz") + ".json")


def unpack(recorded: Path, folder: Path) -> None:
    """Put a recorded journal where a coordinator would find it."""
    (folder / FILE_NAME).write_bytes(lzma.decompress(recorded.read_bytes()))


def record(folder: Path = FOLDER) -> list[str]:
    """The names of what was recorded."""
    path = path_of(folder)
    if path.exists():
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
        path.write_bytes(lzma.compress((Path(temporary) / FILE_NAME).read_bytes()))
        summarized = summary(Path(temporary))
    lines = [
        f'"{name}": {json.dumps(part, ensure_ascii=False)}' for name, part in summarized.items()
    ]
    summary_of(path).write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    return [path.name]
