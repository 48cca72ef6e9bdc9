"""Monitor of what every job needs, its user and a fence: whether this node could start any job.

A node that refuses every job is not free, and says so before a job finds out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from agent.config import AgentConfig
from agent.core.inputs import Input, NodeObserved
from agent.monitors.monitor import Monitor
from agent.shims.apart import FENCE, why_no_fence, why_refused_without
from agent.taskdirs.entrance import cannot_enter
from agent.taskdirs.task_accounts import TaskAccounts
from agent.taskdirs.taskdirs import TASKS
from muster.daemon.abandoned_thread import BlockingCall
from muster.protocol.link.control_channel import Inventory, NodeChanges

PERIOD_S: Final = 30.0
_PATIENCE_S: Final = 10.0

_log = structlog.get_logger("agent.monitors.job_user")


def check(owners: TaskAccounts, tasks: Path, users: tuple[str, ...] | None = None) -> str:
    """Return why every job would be refused here, else "". `users` may submit jobs; None if they
    are not known. Blocks.
    """
    owner = owners.fixed
    if owner is None and not owners.submitters:
        return ""
    name = owner.name if owner is not None else None
    try:
        closed = cannot_enter(name, tasks)
        return closed or (owners.why_none_of(users) if users and owners.submitters else "")
    except (OSError, KeyError) as error:
        _log.warning("job_user_not_examined", user=name or "users", why=str(error))
        return ""


class JobUserMonitor(Monitor):
    """Posts every change of the reason for which all jobs would be refused."""

    def __init__(
        self,
        owners: TaskAccounts,
        config: AgentConfig,
        post: Callable[[Input], None],
        unfenced: Callable[[], str],
        inventory: Inventory,
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        """`unfenced` returns why a fence could not be written last, or "". `inventory` is of the
        agent's start."""
        super().__init__(post, period_s)
        self._owners = owners
        self._tasks = config.state_dir / TASKS
        self._config = config
        self._unfenced = unfenced
        self._unenforced = inventory.unenforced
        self._users: tuple[str, ...] | None = None
        self._check = BlockingCall(self._checked, "agent.monitors.job_user")

    def use(self, users: tuple[str, ...] | None) -> None:
        """Look soon whether any of these users, who may submit jobs, has an account."""
        self._users = users
        self._owners.use(users)
        self.stir()

    def _checked(self) -> tuple[str, str]:
        """Return why every job would be refused and why gangs have no fence, each or "". Blocks."""
        no_fence = ""
        if self._config.fences and os.geteuid() == 0:
            no_fence = self._unfenced() or why_no_fence()
        refuses = check(self._owners, self._tasks, self._users)
        return refuses or (why_refused_without(no_fence) if self._config.fence else ""), no_fence

    async def look(self) -> None:
        try:
            reason, no_fence = await self._check.result(_PATIENCE_S)
        except TimeoutError:
            return  # a disk that hangs is reported as such
        if self._config.fences:
            self._note_fence(no_fence)
        if self._is_news("refuses", reason, before=""):
            if reason:
                _log.warning("jobs_will_be_refused", why=reason)
            else:
                _log.info("jobs_are_taken")
            self._post(NodeObserved(NodeChanges(refuses_jobs=reason)))

    def _note_fence(self, why: str) -> None:
        """Post that gangs have a fence now, or why not, if that has changed."""
        if self._is_news("fence", why, before=self._unenforced.get(FENCE, "")):
            others = {what: it for what, it in self._unenforced.items() if what != FENCE}
            found = {**others, FENCE: why} if why else others
            self._post(NodeObserved(NodeChanges(unenforced=found)))
