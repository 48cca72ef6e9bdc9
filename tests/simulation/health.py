"""Hardware, disks, HCAs and hang watches of the nodes."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from agent.core import inputs as s
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import DumpStacks, NodeChanges, StacksReport
from muster.protocol.observations.disks import DiskHealth
from muster.protocol.observations.fabric import NodeRdma
from muster.protocol.observations.hangs import (
    Doing,
    Frame,
    RankActivity,
    RankStacks,
    Sign,
    ThreadStack,
)
from muster.protocol.observations.hardware_events import Grade, HardwareEvent
from tests.simulation.shim import Shim

if TYPE_CHECKING:
    from tests.simulation.node import Node

FIRST_SEEN: Final = 800
"""From this seed on. Those before stay the runs that they were."""

FIRST_FAILED: Final = 850
"""From this seed on GPUs fail under jobs, too."""

_EVERY_S: Final = 10.0
_STILL_S: Final = (5.0, 110.0)
"""Ranks that hang do so from then to then after their start, and go on by themselves."""


class Health:
    """Health of one node. In peace nothing happens to its hardware any more."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.on = self.active = node.world.seed >= FIRST_SEEN
        self.rng = random.Random(f"health {node.world.seed} {node.name}")
        self.events = 0
        self.low = False
        self.idle: set[TaskId] = set()  # reported as idle
        self.expected = 2
        if self.on:
            self._later()

    def make_peace(self) -> None:
        self.active = False

    def watch(self, task: TaskId) -> None:
        """From now on, in this life of the agent, see whether its ranks move."""
        if self.on:
            self.node.later(self.rng.uniform(1.0, _EVERY_S), partial(self._look, task))

    def watch_peers(self, task: TaskId) -> None:
        """They all answer."""
        if self.on:
            seen = s.TaskObserved(task, s.TaskChanges(silent=()))
            self.node.later(self.rng.uniform(1.0, _EVERY_S), partial(self.node.feed, seen))

    def stacks(self, task: TaskId, look: DumpStacks) -> StacksReport:
        """Ranks that hang stand still; others are somewhere else at each look."""
        folder = self.node.machine.folders.get(task)
        shim = None if folder is None else folder.shim
        if not self.on or shim is None or not shim.running:
            return StacksReport(task, look.epoch, look.number)
        line = 41 if self._still_s(shim) is not None else int(self.world.now * 10)
        frames = (
            Frame("acquire", "/usr/lib/python3/threading.py", 320),
            Frame("step", "t.py", line),
        )
        threads = (ThreadStack("MainThread", frames),)
        return StacksReport(
            task,
            look.epoch,
            look.number,
            ranks=tuple(RankStacks(rank, threads=threads) for rank in shim.ranks),
            activity=self._activity(shim),
        )

    # --- ranks --------------------------------------------------------------------------------

    def _look(self, task: TaskId) -> None:
        folder = self.node.machine.folders.get(task)
        if folder is None:
            return
        if folder.shim is not None and folder.shim.running:
            ranks, at = self._activity(folder.shim), self.node.mono
            seen = s.TaskChanges(activity=ranks, activity_at=at)
            self.node.feed(s.TaskObserved(task, seen))
            self._look_at_gpus(task, folder.shim)
        self.node.later(_EVERY_S, partial(self._look, task))

    def _look_at_gpus(self, task: TaskId, shim: Shim) -> None:
        """Report GPUs as idle if their ranks hang; for the others report only the end of it."""
        still_s = self._still_s(shim)
        since = None if still_s is None else self.node.mono - still_s
        if since is not None or task in self.idle:
            self.world.met["gpu_idle"] += since is not None
            self.node.feed(s.TaskObserved(task, s.TaskChanges(idle_since=since)))
        self.idle.discard(task) if since is None else self.idle.add(task)

    def _activity(self, shim: Shim) -> tuple[RankActivity, ...]:
        still_s = self._still_s(shim)
        self.world.met["rank_still"] += still_s is not None
        return tuple(
            RankActivity(
                rank,
                learned=True,
                still_s=still_s,
                idle_s=still_s,
                still_gap_s=1.0,
                idle_gap_s=1.0,
                doing=Doing.RUNS if still_s is None else Doing.SLEEPS,
                signs=(Sign.LOG, Sign.CPU),
            )
            for rank in shim.ranks
        )

    def _still_s(self, shim: Shim) -> float | None:
        """For how long its ranks have not moved; a gang hangs as a whole."""
        attempt = random.Random(f"hangs {self.world.seed} {shim.job} {shim.attempt}")
        age_s = self.world.now - (shim.started_at or self.world.now)
        begins_s, ends_s = _STILL_S
        hangs = attempt.random() < 0.5 and begins_s <= age_s < ends_s
        return age_s - begins_s if hangs else None

    # --- hardware -----------------------------------------------------------------------------

    def _later(self) -> None:
        self.world.at(self.rng.expovariate(1 / 60.0), self._happen)

    def _happen(self) -> None:
        if not self.active:
            return
        those = [self._report, self._fill, self._lose_port]
        if self.world.seed >= FIRST_FAILED:
            those.append(self._fail_gpu)
        what = self.rng.choice(those)
        if self.node.up and not self.node.frozen:
            what()
        self._later()

    def _report(self) -> None:
        """Report an event of no GPU: it is in the history of its node and not in that of a job."""
        grade = self.rng.choice((Grade.SHOWN, Grade.NOTE, Grade.NOTE, Grade.CRITICAL))
        self.world.met[f"hardware_{grade.value}"] += 1
        self._say("link", grade, "a switch has lost power")

    def _fail_gpu(self) -> None:
        """A GPU's Xid, of the job's own making or not."""
        grade = self.rng.choice((Grade.SHOWN, Grade.CRITICAL))
        machine = self.node.machine
        held = {uuid for folder in machine.folders.values() for uuid in folder.gpus}
        gpus = [gpu for gpu in machine.inventory.devices if gpu.uuid in held]
        gpu = self.rng.choice(gpus or machine.inventory.devices)
        xid = 79 if grade is Grade.CRITICAL else 31
        self.world.met[f"xid_{grade.value}"] += 1
        self._say(f"xid {xid}", grade, f"GPU {gpu.pci}: Xid {xid}", gpu.pci, gpu.uuid)

    def _say(self, code: str, grade: Grade, text: str, pci: str = "", uuid: str = "") -> None:
        self.events += 1
        boot = self.node.machine.boot_id
        event = HardwareEvent(boot, self.events, code, grade, text, pci, uuid)
        self.node.feed(s.NodeObserved(NodeChanges(hardware=(event,))))

    def _fill(self) -> None:
        self.low = not self.low
        disks = (DiskHealth("/tasks", 1 << 30, 100 << 30),) if self.low else ()
        self.node.feed(s.NodeObserved(NodeChanges(disks=disks)))

    def _lose_port(self) -> None:
        """There are none to be used before and after it: which nodes are chosen does not change."""
        self.expected = 5 - self.expected
        why = f"has {self.expected} ports that are down"
        rdma = NodeRdma("InfiniBand MT4129", expected=self.expected, why=why)
        self.node.feed(s.NodeObserved(NodeChanges(rdma=rdma)))
