"""Generator of very many ended jobs, with the journal's own code: appended, then archived."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import Prepared, RankReport
from muster.protocol.observations.interfaces import Endpoint
from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.spec.parse import parse_mapping
from orchestrator.core.engine.replay_job import replay_job
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import Job
from orchestrator.journal.archive import Archived
from orchestrator.journal.journal import Journal
from orchestrator.shell.job_archive import row_of

USERS: Final = 50
NAMES: Final = 1000
POOLS: Final = ("default", "default", "default", "big")
_BATCH: Final = 2000
_BEGAN: Final = 1.76e9
_NODE: Final = NodeName("node-1")
_SPEC: Final = parse_mapping(
    {
        "name": "train",
        "run": "train.py --epochs 3",
        "python": "/opt/venv/bin/python",
        "nodes": 1,
        "env": {"OMP_NUM_THREADS": "8", "DATA": "/data/imagenet"},
        "time_limit": "4h",
    }
)
_PREPARED: Final = Prepared(
    address="10.0.0.1",
    ports=(29500, 29501, 29502),
    gpus=8,
    log_dir="/var/lib/muster/tasks/1.1.0/logs",
    workdir="/home/ann/imagenet",
    scratch="/var/lib/muster/tasks/1.1.0/scratch",
    output="/var/lib/muster/tasks/1.1.0/output",
    hostfile="/var/lib/muster/tasks/1.1.0/hostfile",
    interface="ens1f0",
    boot_s=1.5,
    hostname="node-1",
    addresses=("10.0.0.1", "192.168.1.1"),
)
_DONE: Final = Cause(CauseCode.COMPLETED, Outcome.SUCCESS, "completed")
_FAILED: Final = Cause(
    CauseCode.RANK_FAILED,
    Outcome.USER,
    "rank 0 on node-1 ended with code 3",
    rank=0,
    node="node-1",
    exit=ExitStatus(code=3),
)
_CANCELLED: Final = Cause(CauseCode.CANCELLED, Outcome.CANCELLED, "cancelled by somebody")


def write(state_dir: Path, jobs: int) -> None:
    """Write the journal of `jobs` jobs of one node each, with 12 facts per job. Of a hundred, nine
    have failed and one was cancelled in the queue.
    """
    journal = Journal.open(state_dir)
    try:
        for first in range(1, jobs + 1, _BATCH):
            facts: list[tuple[f.Fact, float]] = []
            rows: list[Archived] = []
            for number in range(first, min(first + _BATCH, jobs + 1)):
                mine = list(_facts(number))
                facts += mine
                rows.append(_row(number, mine))
            journal.append(facts)
            journal.archive(rows)
            if first % (50 * _BATCH) == 1:
                print(f"{first - 1} jobs", file=sys.stderr, flush=True)
    finally:
        journal.close()


def user(number: int) -> str:
    return f"user-{number % USERS}"


def name(number: int) -> str:
    return f"train-{number * 7919 % NAMES}"


def key(number: int) -> str:
    return f"0b6a1c1e-6f1f-4d0e-9f5e-{number:012x}"


def digest(number: int) -> str:
    return f"{number:064x}"


def _facts(number: int) -> Iterator[tuple[f.Fact, float]]:
    job, at = JobId(number), _BEGAN + 10.0 * number
    spec = structs.replace(_SPEC, name=name(number), pool=POOLS[number // 50 % len(POOLS)])
    yield f.JobSubmitted(job, spec, user(number), key(number), digest(number)), at
    if number % 100 == 1:
        yield f.JobEnded(job, _CANCELLED), at + 1
        return
    failed = number % 100 in range(2, 11)
    cause, status = (_FAILED, ExitStatus(code=3)) if failed else (_DONE, ExitStatus(code=0))
    here = Endpoint(node=_NODE, address="10.0.0.1", interface="ens1f0")
    yield f.AttemptPlaced(job, 1, (_NODE,), "the first that is free"), at + 1
    yield f.TaskPrepared(job, 1, 0, _PREPARED), at + 2
    network = "ens1f0, the fastest that all have"
    yield f.AttemptArranged(job, 1, "10.0.0.1", 29500, (here,), network), at + 2
    yield f.TaskArranged(job, 1, 0), at + 2
    yield f.AttemptStarted(job, 1), at + 2
    yield f.TaskStarted(job, 1, 0), at + 3
    yield f.StopRequested(job, 1, cause), at + 60
    yield f.TaskExited(job, 1, 0, status, (RankReport(0, exit=status),)), at + 60
    yield f.TaskCleaned(job, 1, 0), at + 61
    yield f.AttemptClosed(job, 1), at + 61
    yield f.JobEnded(job, cause), at + 61


_examples: dict[int, Job] = {}


def _row(number: int, facts: list[tuple[f.Fact, float]]) -> Archived:
    """Return the row that the coordinator would write for such a job; replaying each job would take
    all day.
    """
    (submitted, at), *_ = facts
    assert isinstance(submitted, f.JobSubmitted)
    example = _examples.get(number % 100)
    if example is None:
        example = _examples[number % 100] = replay_job(facts)
    later = at - example.submitted_at
    job = replace(
        example,
        id=submitted.job,
        spec=submitted.spec,
        user=submitted.user,
        key=submitted.key,
        submitted_at=at,
        ended_at=(example.ended_at or 0.0) + later,
        attempts=[replace(t, started_at=(t.started_at or 0.0) + later) for t in example.attempts],
    )
    return row_of(job, submitted.digest)
