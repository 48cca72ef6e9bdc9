"""The owner of the state with a real journal, and agents that are only written down."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from muster.daemon.clock import SystemClock
from muster.protocol.ids import NodeName, SessionId
from muster.protocol.link.control_channel import (
    Command,
    Hello,
    Inventory,
    NodeObservations,
    Refused,
)
from muster.spec.model import JobSpec, Launcher, Shell
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.inputs import HelloReceived, SubmitReceived
from orchestrator.core.model.limits import Limits
from orchestrator.journal.errors import JournalWriteError
from orchestrator.journal.journal import Journal
from orchestrator.journal.writer import JournalWriter
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.replay import replay

SPEC = JobSpec(name="demo", run=Shell("true"), launcher=Launcher.NONE)
S1 = SessionId(1)
HELLO = Hello(
    NodeName("n1"), "agent", "boot", "0.1.0", NodeObservations(Inventory("10.0.0.1", "m1", cpus=1))
)


class Happened(list[str]):
    """A list of events in order, with a wait for the next."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def append(self, what: str) -> None:
        super().append(what)
        self._more.set()

    async def until(self, what: str, times: int = 1) -> None:
        while self.count(what) < times:
            self._more.clear()
            await self._more.wait()


class Recorder(JournalWriter):
    """The real journal, which also writes down what is committed, and may be held up."""

    def __init__(self, journal: Journal, happened: Happened) -> None:
        super().__init__(journal)
        self.happened = happened
        self.commits: list[list[f.Fact]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False

    async def append(self, facts: Sequence[tuple[f.Fact, float]]) -> range:
        self.happened.append("commit begins")
        await self.gate.wait()
        if self.fails:
            raise JournalWriteError("the disk is gone")
        seqs = await super().append(facts)
        self.commits.append([fact for fact, _ in facts])
        self.happened.append("commit ends")
        return seqs


class Rig:
    """An owner with a real journal; commands to agents are written down in `happened`."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.happened = Happened()
        journal = Journal.open(folder)
        self.journal = Recorder(journal, self.happened)
        self.coordinator = Coordinator(
            state=replay(journal.replay()),
            journal=self.journal,
            clock=SystemClock(),
            limits=limits,
            sessions=self,
            changes=ChangeCounters(),
        )

    def send(self, session: SessionId, command: Command) -> None:
        self.happened.append(type(command).__name__)

    def refuse(self, session: SessionId, refused: Refused) -> None:
        self.happened.append("refuse")

    def close(self, session: SessionId, why: str) -> None:
        self.happened.append("close")

    async def submit(self, key: str = "") -> Any:
        return await self.coordinator.request(
            lambda rid: SubmitReceived(rid, SPEC, "ann", key, "digest")
        )

    async def deciding(self) -> asyncio.Task[Any]:
        """A submit whose commit has begun, and lasts until the journal's gate is opened."""
        self.happened.clear()
        self.journal.gate.clear()
        submitting = asyncio.create_task(self.submit())
        await self.happened.until("commit begins")
        return submitting

    async def join(self) -> None:
        await self.coordinator.put(HelloReceived(S1, HELLO, "10.0.0.1"))
        await self.happened.until("Welcome")


def with_owner(
    folder: Path,
    main: Callable[[Rig], Coroutine[Any, Any, None]],
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
) -> Rig:
    async def run() -> Rig:
        rig = Rig(folder, limits)
        owner = asyncio.get_running_loop().create_task(rig.coordinator.run(1))
        try:
            async with asyncio.timeout(180):
                await rig.coordinator.started.wait()
                await main(rig)
        finally:
            owner.cancel()
            await asyncio.gather(owner, return_exceptions=True)
            await rig.coordinator.flush()
            rig.journal.close()
        return rig

    return asyncio.run(run())
