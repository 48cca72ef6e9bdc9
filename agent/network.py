"""Makes the gangs of this node's tasks reachable, and takes that back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.core.stimuli import NetworkArranged, NetworkRefused, NetworkRestored, Stimulus
from agent.meeting import Meetings
from muster.daemon.tasks import TaskOwner
from muster.protocol.ids import TaskId
from muster.protocol.messages import ArrangeTask


class Network:
    """Carries out ArrangeNetwork, LetGo and RestoreNetwork; answers with stimuli."""

    def __init__(self, post: Callable[[Stimulus], None], owner: TaskOwner) -> None:
        self._post = post
        self._owner = owner
        self._meetings = Meetings()
        self._arranging: dict[TaskId, asyncio.Task[None]] = {}

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
        self._post(NetworkRestored(task))

    async def _arrange(self, task: TaskId, plan: ArrangeTask) -> None:
        refusal = None
        if plan.meeting is not None:
            refusal = await self._meetings.prove(task, plan.meeting)
        self._arranging.pop(task, None)
        if refusal is not None:
            self._post(NetworkRefused(task, refusal))
        else:
            self._post(NetworkArranged(task))

    def _cancel(self, task: TaskId) -> None:
        before = self._arranging.pop(task, None)
        if before is not None:
            before.cancel()
