"""The deeds of a storm that somebody means, or does by mistake: jobs that lie to their shim, agents
that lie within their rights, users who are greedy, and operators' accidents.

What waits for the coordinator does so in a thread: it may be away.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from examples.rig.machine import Machine
from muster.client import ClientError
from muster.protocol.states import ENDED_STATES
from tests.storm import accidents, greed, lies
from tests.storm.cluster import StormCluster
from tests.storm.rogue import Rogue, Rogues

Undo = Callable[[], None]
Until = Callable[[float, str, Undo], None]

LIES: Final = ("endless", "pids", "garbage", "huge", "silent", "twice", "early", "ghosts")
SUBMITS: Final = 40
START_S: Final = 3.0
STREAMS: Final = 2000
_PATIENCE_S: Final = 60.0


class Harm:
    """`until(seconds, target, undo)` ends a deed; `busy` are the targets of those that go on;
    `jobs` are those that were acknowledged."""

    def __init__(
        self,
        cluster: StormCluster,
        rng: random.Random,
        until: Until,
        busy: set[str],
        root: Path,
        jobs: Callable[[], list[int]],
    ) -> None:
        self.cluster = cluster
        self.rng = rng
        self._until = until
        self._busy = busy
        self._root = root
        self._jobs = jobs
        self._number = 0
        self._lying: dict[int, str] = {}
        self._threads: list[threading.Thread] = []
        self._open = contextlib.ExitStack()
        self._ground: Machine | None = None
        self._rogues: Rogues | None = None
        self.all: Final[dict[str, tuple[int, Callable[[], str | None]]]] = {
            "job that lies": (3, self.lie),
            "agent that lies": (2, self.join),
            "agents that come and go": (1, self.knock),
            "user who is greedy": (2, self.want_more),
            "claim taken by a stranger": (1, self.squat),
            "journal damaged": (1, self.damage),
            "clock ahead": (1, self.set_clock),
        }
        self.violations: list[str] = []

    def close(self) -> None:
        """Nothing of it goes on."""
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        self._open.close()

    def unfinished(self) -> Iterator[str]:
        """Jobs that lie and have not come to their end, though they were cancelled."""
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        client = self.cluster.client()
        for job, kind in self._lying.items():
            view = client.job(job)
            if view.state not in ENDED_STATES:
                client.cancel(job)
                yield f"I10: job {job}, which lies ({kind}), is {view.state.value}"

    def lie(self) -> str | None:
        """Until its user cancels it."""
        if "liar" in self._busy:
            return None
        self._number += 1
        kind = self.rng.choice(LIES)
        folder = self._root / f"{self._number:04d}"
        spec = lies.job(kind, folder)
        key = f"lie-{self._number}"
        self._spawn(partial(self._submit, spec, key, kind))
        self._until(self.rng.uniform(2.0, 8.0), "liar", partial(self._spawn, self._cancel))
        return kind

    def join(self) -> str | None:
        """In a pool of its own: what is given to it never runs."""
        if "stranger" in self._busy:
            return None
        self._number += 1
        labels = {f"k{n}": "v" * 60 for n in range(self.rng.choice((0, 60, 9000)))}
        rogue = Rogue(
            f"stranger-{self._number}",
            self._stand().address,
            inventory={"labels": labels, "pool": "strangers"},
        )
        rogues = self._speakers()
        self._spawn(partial(rogues.join, rogue))
        self._until(self.rng.uniform(1.0, 5.0), "stranger", partial(rogues.leave, rogue))
        return rogue.name

    def knock(self) -> str | None:
        if "knock" in self._busy:
            return None
        self._spawn(partial(self._speakers().knock, 100))
        self._until(self.rng.uniform(1.0, 5.0), "knock", lambda: None)
        return "a hundred times"

    def want_more(self) -> str | None:
        if "greed" in self._busy:
            return None
        wishes: dict[str, Callable[[], object]] = {
            "submits": self._submits,
            "big specs": partial(greed.big_specs, self.cluster, 3),
            "lists": partial(greed.lists, self.cluster, 80),
        }
        name = self.rng.choice(list(wishes))
        self._spawn(wishes[name])
        self._until(self.rng.uniform(2.0, 8.0), "greed", lambda: None)
        return name

    # --- what has ended when it returns -----------------------------------------------------------

    def squat(self) -> str | None:
        """An agent is restarted while somebody without rights holds whatever it could ask for."""
        free = [name for name in self.cluster.nodes if name not in self._busy]
        if not free:
            return None
        name = self.rng.choice(free)
        agent = self.cluster.nodes[name]
        with self._held(name), accidents.squatted(self.cluster, name):
            agent.start()
            assert agent.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(START_S)
                self.violations.append(f"claim: {name} cannot start: {agent.tail(1)}")
        if agent.process.poll() is not None:
            agent.start()
        return name

    def damage(self) -> str | None:
        """Damage the journal while the coordinator is down after a crash; then restore it."""
        if self._head_is_busy():
            return None
        damage = self.rng.choice(accidents.DAMAGES)
        with self._held(self.cluster.coordinator.name):
            self.violations += accidents.damaged(self.cluster, damage, self._jobs())
        return damage.__name__

    def set_clock(self) -> str | None:
        """The coordinator starts with a clock that is wrong, and is started again with it mended.
        What that has removed is missing at the end."""
        if self._head_is_busy():
            return None
        days = self.rng.choice((40.0, 400.0))
        with self._held(self.cluster.coordinator.name), accidents.ahead(self.cluster, days):
            self.cluster.client().nodes()
        return f"{days:g} days"

    @contextlib.contextmanager
    def _held(self, name: str) -> Iterator[None]:
        """Meanwhile something is done to this daemon, as others are to know."""
        self._busy.add(name)
        try:
            yield
        finally:
            self._until(0.0, name, lambda: None)

    def _head_is_busy(self) -> bool:
        return bool(self._busy & {self.cluster.coordinator.name, self.cluster.head.name})

    # --- in threads -------------------------------------------------------------------------------

    def _spawn(self, what: Callable[[], object]) -> None:
        def run() -> None:
            with contextlib.suppress(ClientError, OSError, TimeoutError):
                what()

        thread = threading.Thread(target=run, name="harm", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _submit(self, spec: dict[str, object], key: str, kind: str) -> None:
        self._lying[self.cluster.client().submit(spec, key).id] = kind

    def _cancel(self) -> None:
        for job in list(self._lying):
            self.cluster.client().cancel(job)

    def _submits(self) -> None:
        greed.cancels(self.cluster, greed.submits(self.cluster, SUBMITS))

    def _stand(self) -> Machine:
        """The machine of all strangers."""
        if self._ground is None:
            self._ground = self.cluster.rig.add("stranger")
        return self._ground

    def _speakers(self) -> Rogues:
        if self._rogues is None:
            self._rogues = self._open.enter_context(Rogues(self.cluster, self._stand()))
        return self._rogues
