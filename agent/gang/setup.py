"""Makes the gangs of this node's tasks reachable, and takes that back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Never

import structlog

from agent.core.inputs import Input, NetworkArranged, NetworkRefused, NetworkRestored
from agent.gang.host_names import GangHostNames
from agent.gang.rendezvous_check import RendezvousChecks
from muster.daemon.errors import FileError
from muster.daemon.task_owner import TaskOwner
from muster.protocol.control_channel import ArrangeTask, Refusal
from muster.protocol.ids import TaskId

# Between two tries to take back what cannot be taken back.
AGAIN_S: Final = 30.0
# Between two looks for what somebody has put back: an editor that saves what it read long ago.
LOOK_S: Final = 300.0

_log = structlog.get_logger("agent.gang.setup")


class GangSetup:
    """Carries out ArrangeNetwork, LetGo and RestoreNetwork; answers with inputs."""

    def __init__(
        self, hosts: GangHostNames, post: Callable[[Input], None], owner: TaskOwner
    ) -> None:
        self._hosts = hosts
        self._post = post
        self._owner = owner
        self._meetings = RendezvousChecks()
        self._arranging: dict[TaskId, asyncio.Task[None]] = {}

    async def begin(self, tasks: Collection[TaskId]) -> None:
        """At the agent's start: what all other tasks left behind goes, if not at once, then later,
        and so does what of it comes back."""
        self._hosts.adopt(tasks)
        cleaned = await self._cleaned()
        self._owner.spawn(self._clean(cleaned), name="network.clean", eternal=True)

    def arrange(self, task: TaskId, plan: ArrangeTask) -> None:
        """NetworkArranged or NetworkRefused answers, to the last plan of a task."""
        self._cancel(task)
        self._arranging[task] = self._owner.spawn(self._arrange(task, plan), name=f"network.{task}")

    def let_go(self, task: TaskId) -> None:
        """The rendezvous port is its program's from now on."""
        self._meetings.let_go(task)

    def restore(self, task: TaskId) -> None:
        """NetworkRestored answers."""
        self._cancel(task)
        self._meetings.let_go(task)
        if self._hosts.off:
            self._post(NetworkRestored(task))
        else:
            self._owner.spawn(self._restore(task), name=f"network.{task}.restore")

    async def _arrange(self, task: TaskId, plan: ArrangeTask) -> None:
        meeting = plan.meeting
        warnings: tuple[str, ...] = ()
        refusal: Refusal | None = None
        launches = meeting is not None and meeting.launcher == task
        if meeting is not None and launches:
            # First, so that nobody waits for us.
            refusal = await self._meetings.prove(task, meeting)
        if refusal is None:
            named = await self._hosts.arrange(task, plan)
            refusal, warnings = (named, ()) if isinstance(named, Refusal) else (None, named)
        if refusal is None and meeting is not None and not launches:
            refusal = await self._meetings.prove(task, meeting)
        self._arranging.pop(task, None)
        if refusal is not None:
            self._post(NetworkRefused(task, refusal))
        else:
            self._post(NetworkArranged(task, warnings))

    async def _clean(self, cleaned: bool) -> Never:
        while True:
            await asyncio.sleep(LOOK_S if cleaned else AGAIN_S)
            cleaned = await self._cleaned()

    async def _cleaned(self) -> bool:
        try:
            await self._hosts.clean()
        except FileError as error:
            _log.error("old_hosts_not_removed", why=str(error))
            return False
        return True

    async def _restore(self, task: TaskId) -> None:
        told = False
        while True:
            try:
                await self._hosts.drop(task)
            except FileError as error:
                _log.error("hosts_not_removed", task=task, why=str(error))
            else:
                break
            if not told:
                # Stale names harm less than a node that is never free again.
                told = True
                self._post(NetworkRestored(task))
            await asyncio.sleep(AGAIN_S)
        if not told:
            self._post(NetworkRestored(task))

    def _cancel(self, task: TaskId) -> None:
        before = self._arranging.pop(task, None)
        if before is not None:
            before.cancel()
