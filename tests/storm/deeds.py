"""The faults of a storm, each with what ends it; chance alone chooses among them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from examples.local_cluster import Daemon
from examples.rig.proxy import End, Flow, Way
from tests.small_disk import fill
from tests.storm.cluster import PROGRAM, StormCluster
from tests.storm.harm import Harm

Undo = Callable[[], None]
Later = Callable[[float, str, Undo], None]
Say = Callable[[str, str], None]

_PROGRAM: Final = PROGRAM.name
CALM_S: Final = 20.0
"""So long after a deed what it was done to may still suffer from it."""
_STOPS_S: Final = 10.0
_NOTICED_S: Final = 30.0
"""Seconds after there is room again in which the warning may still stand."""


class Deeds:
    """`later(seconds, target, undo)` ends a fault; until then nothing else befalls its target."""

    def __init__(
        self,
        cluster: StormCluster,
        rng: random.Random,
        later: Later,
        say: Say,
        root: Path,
        jobs: Callable[[], list[int]],
    ) -> None:
        self.cluster = cluster
        self.rng = rng
        self.later = later
        self.say = say
        self.busy: set[str] = set()
        self.down: set[str] = set()
        self.ended: dict[str, float] = {}
        self.full_until = 0.0
        self.harm = Harm(cluster, rng, self._until, self.busy, root, jobs)
        self.all: Final[dict[str, tuple[int, Callable[[], str | None]]]] = {
            "coordinator killed": (3, self.kill_coordinator),
            "agent killed": (4, self.kill_agent),
            "shim killed": (3, self.kill_shim),
            "rank killed": (3, self.kill_rank),
            "rank stopped": (2, self.stop_rank),
            "coordinator stopped": (2, self.stop_coordinator),
            "agent stopped": (3, self.stop_agent),
            "machine off": (1, self.power_off),
            "machine cut off": (3, self.cut),
            "coordinator cut off": (1, self.cut_head),
            "connections reset": (3, self.reset),
            "connections half open": (2, self.half_open),
            "connections cut short": (2, self.truncate),
            "connections slow": (2, self.slow),
            "coordinator's disk full": (1, self.fill_coordinator),
            "node's disk full": (2, self.fill_node),
            **self.harm.all,
        }

    def one(self) -> str | None:
        """Do one; what it was, None where there was nobody to do it to."""
        names = list(self.all)
        (name,) = self.rng.choices(names, [self.all[n][0] for n in names])
        target = self.all[name][1]()
        if target is not None:
            self.say(name, target)
        return None if target is None else name

    # --- daemons ----------------------------------------------------------------------------------

    def kill_coordinator(self) -> str | None:
        return self._kill(self.cluster.coordinator)

    def kill_agent(self) -> str | None:
        name = self._node()
        return None if name is None else self._kill(self.cluster.nodes[name])

    def stop_coordinator(self) -> str | None:
        return self._stop(self.cluster.coordinator)

    def stop_agent(self) -> str | None:
        name = self._node()
        return None if name is None else self._stop(self.cluster.nodes[name])

    def _kill(self, daemon: Daemon) -> str | None:
        if daemon.name in self.busy:
            return None
        self.down.add(daemon.name)
        daemon.kill()
        self._until(self.rng.choice((0.0, 0.5, 3.0)), daemon.name, partial(self._start, daemon))
        return daemon.name

    def _start(self, daemon: Daemon) -> None:
        daemon.start()
        self.down.discard(daemon.name)

    def _stop(self, daemon: Daemon) -> str | None:
        if daemon.name in self.busy:
            return None
        os.kill(daemon.pid, signal.SIGSTOP)
        _await_stop(daemon)
        undo = partial(_go_on, daemon)
        self._until(self.rng.uniform(0.5, 8.0), daemon.name, undo)
        return daemon.name

    # --- what daemons have started ----------------------------------------------------------------

    def kill_shim(self) -> str | None:
        return self._signal(("muster-shim", "muster-forksrv"), signal.SIGKILL)

    def kill_rank(self) -> str | None:
        return self._signal((), signal.SIGKILL)

    def stop_rank(self) -> str | None:
        return self._signal((), signal.SIGSTOP)

    def _signal(self, ours: tuple[str, ...], number: signal.Signals) -> str | None:
        """To one of our processes of these names, or to one that a job runs."""
        those = sorted(self._processes(ours))
        if not those:
            return None
        pid, command = self.rng.choice(those)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            if number is signal.SIGSTOP:
                self.later(self.rng.uniform(0.5, 5.0), "", partial(_continue, pid))
        return f"{pid} {command}"

    def _processes(self, ours: tuple[str, ...]) -> Iterator[tuple[int, str]]:
        for line in self.cluster.leftovers():
            pid, _, command = line.partition(": ")
            with contextlib.suppress(OSError):
                comm = Path(f"/proc/{pid}/comm").read_text().strip()
                if comm in ours or (not ours and "muster-" not in comm and _PROGRAM in command):
                    yield int(pid), f"{comm} {command[-60:]}"

    # --- machines and their network ---------------------------------------------------------------

    def power_off(self) -> str | None:
        name = self._node()
        if name is None:
            return None
        self.down.add(name)
        self.cluster.machines[name].power_off()
        self._until(self.rng.uniform(0.0, 5.0), name, partial(self._boot, name))
        return name

    def _boot(self, name: str) -> None:
        self.cluster.boot(name)
        self.down.discard(name)

    def cut(self) -> str | None:
        name = self._node()
        if name is None:
            return None
        machine = self.cluster.machines[name]
        inbound, outbound = self.rng.choice(((True, True), (True, False), (False, True)))
        machine.cut(inbound=inbound, outbound=outbound)
        # Now and then for longer than the lease.
        self._until(self.rng.choice((1.0, 4.0, 8.0, 20.0)), name, machine.mend)
        return f"{name} {inbound=} {outbound=}"

    def cut_head(self) -> str | None:
        name = self.cluster.head.name
        if name in self.busy:
            return None
        self.cluster.head.cut()
        self._until(self.rng.uniform(0.5, 6.0), name, self.cluster.head.mend)
        return name

    def reset(self) -> str | None:
        name = self.rng.choice(list(self.cluster.proxies))
        end = self.rng.choice(list(End))
        self.ended[f"proxy {name}"] = time.monotonic()
        return f"{name} {end.value} {self.cluster.proxies[name].cut(end)}"

    def half_open(self) -> str | None:
        way = Way(flow=Flow.SWALLOW)
        return self._shape(way, self.rng.choice((way, Way())))

    def truncate(self) -> str | None:
        way = Way(cut_after=self.rng.randrange(100, 20_000), end=self.rng.choice(list(End)))
        return self._shape(way, way)

    def slow(self) -> str | None:
        return self._shape(Way(rate=64_000, delay_s=0.2), Way(stalls=0.05, stall_s=0.3))

    def _shape(self, up: Way, down: Way) -> str | None:
        name = self.rng.choice(list(self.cluster.proxies))
        if f"proxy {name}" in self.busy:
            return None
        proxy = self.cluster.proxies[name]
        proxy.shape(up=up, down=down)
        self._until(self.rng.uniform(1.0, 8.0), f"proxy {name}", proxy.mend)
        return name

    # --- disks ------------------------------------------------------------------------------------

    def fill_coordinator(self) -> str | None:
        name = self.cluster.coordinator.name
        if name in self.busy:
            return None
        # Users act meanwhile, and to fill it takes a while on a busy machine.
        self.full_until = float("inf")
        self.full_until = self._fill(name) + time.monotonic() + _NOTICED_S
        return name

    def fill_node(self) -> str | None:
        name = self._node()
        if name is not None:
            self._fill(name)
        return name

    def _fill(self, name: str) -> float:
        """To the last byte; for how long."""
        for_s = self.rng.uniform(0.5, 8.0)
        self._until(for_s, name, fill(self.cluster.disk(name)).unlink)
        return for_s

    # --- the books --------------------------------------------------------------------------------

    def over(self, target: str) -> None:
        """A deed has ended."""
        self.busy.discard(target)
        self.ended[target] = time.monotonic()

    def excused(self, name: str) -> bool:
        """True if something is being done to this daemon or to its way to the others, or was
        until a short while ago."""
        head = {self.cluster.coordinator.name, self.cluster.head.name}
        involved = {name, f"proxy {name}", *head}
        since = time.monotonic() - CALM_S
        return any(n in self.busy or self.ended.get(n, since) > since for n in involved)

    def _node(self) -> str | None:
        free = [name for name in self.cluster.nodes if name not in self.busy]
        return self.rng.choice(free) if free else None

    def _until(self, seconds: float, target: str, undo: Undo) -> None:
        self.busy.add(target)
        self.later(seconds, target, undo)


def _await_stop(daemon: Daemon) -> None:
    """Wait until a stopped daemon's nsenter has stopped itself, too. Continued before that, it
    would stop for good, and nobody would learn how the daemon ends."""
    assert daemon.process is not None
    deadline = time.monotonic() + _STOPS_S
    while not _is_stopped(daemon.process.pid) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _go_on(daemon: Daemon) -> None:
    """nsenter does not go on with what it has started."""
    assert daemon.process is not None
    for pid in (daemon.pid, daemon.process.pid):
        _continue(pid)


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
