"""The users of a storm: they submit, say it again, cancel, and remember what they were promised."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.client import ApiError, Client, ClientError
from muster.protocol.states import ENDED_STATES, JobState
from tests.storm.cluster import job_of

UNFINISHED_MAX = 5
PAUSE_S = 0.3
_NO_ROOM = 507
KINDS = {"one": 5, "gang": 4, "torchrun": 1}


@dataclass
class Job:
    """An acknowledged job, and what users have seen of it."""

    id: int
    key: str
    kind: str
    folder: Path
    spec: dict[str, Any]
    state: JobState = JobState.QUEUED
    cancelled: bool = False
    attempts_at_cancel: int | None = None


@dataclass
class Users:
    """They act in a thread of their own, since a call to a coordinator that is away waits.
    `no_room`: the coordinator may say that its disk is full."""

    client: Client
    root: Path
    rng: random.Random
    log: Any
    no_room: Callable[[], bool] = lambda: False
    jobs: dict[int, Job] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _pending: tuple[str, str, Path, dict[str, Any]] | None = None
    _number: int = 0

    def start(self) -> None:
        (self.root / "nodes").mkdir(parents=True)
        self._thread = threading.Thread(target=self._run, name="users", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float) -> bool:
        """No job is submitted any more. What was begun is ended first; whether it was in time."""
        self._stop.set()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set() or self._pending is not None:
            try:
                self._act()
            except ApiError as error:
                if error.problem.status == _NO_ROOM and self.no_room():
                    self.did["refused for want of room"] += 1
                else:
                    self._violation("I1", f"a call was refused: {error}")
            except ClientError as error:
                self.did["unanswered"] += 1
                self.log("unanswered", str(error))
            self._stop.wait(PAUSE_S)

    def _act(self) -> None:
        self.look()
        unfinished = [j for j in self.jobs.values() if j.state not in ENDED_STATES]
        if self._pending is not None or len(unfinished) < UNFINISHED_MAX:
            self._submit()
        elif self.rng.random() < 0.06:
            self._cancel(self.rng.choice(unfinished))
        elif self.rng.random() < 0.1:
            self._again(self.rng.choice(list(self.jobs.values())))

    def look(self) -> None:
        """All jobs that were acknowledged are there, and what has ended stays so (I1, I2)."""
        known = list(self.jobs.values())
        there = {job.id: job for job in self.client.all_jobs().jobs}
        for job in known:
            now = there.get(job.id)
            if now is None:
                self._violation("I1", f"job {job.id} was acknowledged and is not there")
                continue
            if job.state in ENDED_STATES and now.state is not job.state:
                self._violation("I2", f"job {job.id} was {job.state.value}, is {now.state.value}")
            job.state = now.state

    def _submit(self) -> None:
        if self._pending is None:
            if self._stop.is_set():
                return
            self._number += 1
            kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
            folder = self.root / f"{self._number:04d}"
            folder.mkdir()
            spec = job_of(folder, kind, self.rng.uniform(0.5, 10.0))
            self._pending = (f"key-{self._number}", kind, folder, spec)
        key, kind, folder, spec = self._pending
        number = self.client.submit(spec, key).id
        self._pending = None
        self.did["submitted"] += 1
        self.log("submitted", f"{number} {kind}")
        if number in self.jobs:
            self._violation("I1", f"{key} and {self.jobs[number].key} are both job {number}")
        self.jobs[number] = Job(number, key, kind, folder, spec)

    def _again(self, job: Job) -> None:
        number = self.client.submit(job.spec, job.key).id
        self.did["submitted again"] += 1
        if number != job.id:
            self._violation("I1", f"{job.key} was job {job.id} and is job {number} as well")

    def _cancel(self, job: Job) -> None:
        self.client.cancel(job.id, force=self.rng.random() < 0.3)
        job.cancelled = True
        self.did["cancelled"] += 1
        self.log("cancelled", f"{job.id}")
        job.attempts_at_cancel = len(self.client.job(job.id).attempts)

    def _violation(self, which: str, text: str) -> None:
        self.violations.append(f"{which}: {text}")
        self.log("violation", f"{which}: {text}")
