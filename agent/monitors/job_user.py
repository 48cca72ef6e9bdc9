"""Monitor of the user that jobs run as: whether this node could start any job at all.

A node that refuses every job is not free, and says so before a job finds out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from agent.core.inputs import Input, NodeObserved
from agent.monitors.monitor import Monitor
from agent.taskdirs.task_accounts import TaskAccounts
from muster.daemon.abandoned_thread import BlockingCall
from muster.protocol.link.control_channel import NodeChanges

PERIOD_S: Final = 30.0
NOBODY: Final = 65534
"""A uid and gid without rights of its own."""
_PATIENCE_S: Final = 10.0
_ENTER: Final = ("/bin/sh", "-c", 'cd -- "$1"', "sh")

_log = structlog.get_logger("agent.monitors.job_user")


def check(owners: TaskAccounts, tasks: Path) -> str:
    """Return why every job would be refused here, else "". Blocks."""
    owner = owners.fixed
    if owners.submitters:
        # Which groups they will have is not known.
        who, uid, gid, groups = "users", NOBODY, NOBODY, [NOBODY]
    elif owner is None:
        return ""
    else:
        who, uid, gid = f"user {owner.name}", owner.uid, owner.gid
        groups = os.getgrouplist(owner.name, owner.gid)
    try:
        # Only the kernel knows: the folders above may have access lists.
        entered = subprocess.run(
            [*_ENTER, str(tasks)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            user=uid,
            group=gid,
            extra_groups=groups,
            check=False,
        )
    except OSError as error:
        _log.warning("job_user_not_examined", user=who, why=str(error))
        return ""
    if entered.returncode == 0:
        return ""
    return (
        f"{who}, whom jobs run as, cannot enter {tasks}: let others pass through each "
        "folder above it (chmod o+x)"
    )


class JobUserMonitor(Monitor):
    """Posts every change of the reason for which all jobs would be refused."""

    def __init__(
        self,
        owners: TaskAccounts,
        tasks: Path,
        post: Callable[[Input], None],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        super().__init__(post, period_s)
        self._check = BlockingCall(lambda: check(owners, tasks), "agent.monitors.job_user")

    async def look(self) -> None:
        try:
            reason = await self._check.result(_PATIENCE_S)
        except TimeoutError:
            return  # a disk that hangs is reported as such
        if self._is_news("refuses", reason, before=""):
            if reason:
                _log.warning("jobs_will_be_refused", why=reason)
            else:
                _log.info("jobs_are_taken")
            self._post(NodeObserved(NodeChanges(refuses_jobs=reason)))
