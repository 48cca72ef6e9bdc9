"""Make the gangs of this node's tasks reachable, and undo that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Never

import structlog

from agent.core.inputs import Input, NetworkArranged, NetworkRefused, NetworkRestored
from agent.gang.fence import Fence, FenceError
from agent.gang.host_names import GangHostNames
from agent.gang.rendezvous_check import RendezvousChecks
from muster.daemon.errors import FileError
from muster.daemon.task_owner import TaskOwner
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, Refusal
from muster.protocol.refusal_codes import RefusalCode

# Pause between two attempts to remove entries that cannot be removed.
AGAIN_S: Final = 30.0
# Pause between two checks for restored entries: an editor may save an old copy.
LOOK_S: Final = 300.0

_log = structlog.get_logger("agent.gang.setup")


class GangSetup:
    """Carries out ArrangeNetwork, ReleasePort and RestoreNetwork; answers with inputs."""

    def __init__(
        self,
        hosts: GangHostNames,
        fence: Fence,
        post: Callable[[Input], None],
        owner: TaskOwner,
    ) -> None:
        self._hosts = hosts
        self._fence = fence
        self._post = post
        self._owner = owner
        self._rendezvous = RendezvousChecks()
        self._arranging: dict[TaskId, asyncio.Task[None]] = {}

    async def begin(self, tasks: Collection[TaskId]) -> None:
        """At the agent's start: remove what all other tasks left behind, and keep removing it if it
        fails or comes back."""
        self._hosts.adopt(tasks)
        cleaned = await self._cleaned()
        self._owner.spawn(self._clean(cleaned), name="network.clean", eternal=True)

    def arrange(self, task: TaskId, plan: ArrangeTask) -> None:
        """Arrange a plan. Answered by NetworkArranged or NetworkRefused, for the last plan of a
        task only."""
        self._cancel(task)
        self._arranging[task] = self._owner.spawn(self._arrange(task, plan), name=f"network.{task}")

    def let_go(self, task: TaskId) -> None:
        """Release the rendezvous port, so that the program can bind it."""
        self._rendezvous.let_go(task)

    def restore(self, task: TaskId) -> None:
        """Undo a plan. Answered by NetworkRestored."""
        self._cancel(task)
        self._rendezvous.let_go(task)
        if self._hosts.off:
            self._post(NetworkRestored(task))
        else:
            self._owner.spawn(self._restore(task), name=f"network.{task}.restore")

    async def _arrange(self, task: TaskId, plan: ArrangeTask) -> None:
        check = plan.rendezvous
        warnings: tuple[str, ...] = ()
        refusal: Refusal | None = None
        launches = check is not None and check.launcher == task
        try:
            await self._fence.arrange(task, plan)
        except FenceError as error:
            refusal = Refusal(RefusalCode.NOT_FENCED, str(error), node_fault=True)
        if refusal is None and check is not None and launches:
            # Before the names, so that other nodes do not wait for this one.
            refusal = await self._rendezvous.prove(task, check)
        if refusal is None:
            named = await self._hosts.arrange(task, plan)
            refusal, warnings = (named, ()) if isinstance(named, Refusal) else (None, named)
        if refusal is None and check is not None and not launches:
            refusal = await self._rendezvous.prove(task, check)
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
        reported = False
        while True:
            try:
                await self._hosts.drop(task)
            except FileError as error:
                _log.error("hosts_not_removed", task=task, why=str(error))
            else:
                break
            if not reported:
                # Stale names harm less than a node that is never free again.
                reported = True
                self._post(NetworkRestored(task))
            await asyncio.sleep(AGAIN_S)
        if not reported:
            self._post(NetworkRestored(task))

    def _cancel(self, task: TaskId) -> None:
        before = self._arranging.pop(task, None)
        if before is not None:
            before.cancel()
