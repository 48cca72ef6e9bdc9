"""Makes the gangs of this node's tasks reachable, and takes that back."""

from __future__ import annotations

from collections.abc import Callable

from agent.core.stimuli import NetworkArranged, NetworkRestored, Stimulus
from muster.protocol.ids import TaskId
from muster.protocol.messages import ArrangeTask


class Network:
    """Carries out ArrangeNetwork and RestoreNetwork; answers with stimuli."""

    def __init__(self, post: Callable[[Stimulus], None]) -> None:
        self._post = post

    def arrange(self, task: TaskId, _plan: ArrangeTask) -> None:
        """NetworkArranged or NetworkRefused answers."""
        self._post(NetworkArranged(task))

    def restore(self, task: TaskId) -> None:
        """NetworkRestored answers."""
        self._post(NetworkRestored(task))
