"""The account that a job runs as on this node: the same for all jobs, or the submitter's own."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from agent.config import SUBMITTER, AgentConfig, is_account
from agent.taskdirs.taskdirs import Owner, owner_named
from muster.daemon.abandoned_thread import BlockingCall
from muster.daemon.errors import DaemonError, FileError
from muster.protocol.link.control_channel import PrepareTask

# Same limit as in the shim: a directory server that takes longer is considered hung.
ANSWER_S: Final = 120.0
KEEP_APART: Final = (
    f"in the configuration of an agent that root runs, set `run_as: {SUBMITTER}` and "
    "`allow_root_jobs: false`, or set `single_team: true` if all users trust each other"
)
_SHOWN: Final = 64
_NAMED: Final = 3

_log = structlog.get_logger("agent.taskdirs.task_accounts")


class UserRefusedError(DaemonError):
    """This node runs no jobs as the submitter; the text is a sentence."""


class TaskAccounts:
    """Accounts of jobs by the agent's configuration. `fixed` is the one of all jobs, None if they
    run as the agent's user or with `submitters`, each as the user who submitted it.
    """

    def __init__(self, config: AgentConfig) -> None:
        """Look up the account of `run_as`. Raises FileError."""
        self.submitters = config.as_submitters
        if self.submitters and os.geteuid() != 0:
            raise FileError(
                f"run_as: only root can run jobs as the users who submit them ({SUBMITTER}), and "
                f"this agent runs as uid {os.geteuid()}"
            )
        if os.geteuid() != 0:
            for name, wanted in (
                ("private_tmp", config.has_private_tmp),
                ("hide_processes", config.hides_processes),
                ("fence", config.fences),
            ):
                if wanted:
                    raise FileError(
                        f"{name}: only root can keep jobs apart so, and this agent runs as uid "
                        f"{os.geteuid()}"
                    )
        self.fixed = None if self.submitters else owner_named(config.run_as)
        if self.fixed is not None and not config.single_team:
            _log.warning(
                "users_not_kept_apart",
                why=f"all jobs run as {self.fixed.name} (run_as) and can read and end each other: "
                f"set run_as to {SUBMITTER}, or single_team to true if that is meant",
            )
        self._single_team = config.single_team
        self._uid_min = config.uid_min
        self._map = config.user_map
        self._together = "" if config.single_team else why_users_are_together(config)
        self._users: frozenset[str] = frozenset()

    @property
    def others(self) -> bool:
        """True if jobs run as other users than the agent."""
        return self.submitters or self.fixed is not None

    async def of(self, prepare: PrepareTask) -> Owner | None:
        """Return the account of a task, None for the agent's user. Raises UserRefusedError, or
        FileError if the directory services do not answer.
        """
        if not self.submitters:
            self._check_secret(prepare, self._together)
            return self.fixed
        name = self._map.get(prepare.user, prepare.user)
        if not self._single_team and self._sharing(name, prepare.user):
            self._check_secret(prepare, f"jobs of several users run as {name} (`user_map`)")
        if not name:
            raise UserRefusedError(
                "The coordinator does not say who submitted the job, as whom it would run; "
                "upgrade the coordinator."
            )
        if not is_account(name):
            raise UserRefusedError(
                f"The job was submitted by {name[:_SHOWN]!r}, which is not the name of an account; "
                "map it in `user_map` of the agent's configuration."
            )
        call = BlockingCall(partial(_looked_up, name, self._uid_min), f"agent.account.{name}")
        try:
            return await call.result(min(ANSWER_S, prepare.timeout_s))
        except TimeoutError as error:
            raise FileError(
                f"Looking up user {name} had no answer; check that the directory services of this "
                "node answer (getent passwd)."
            ) from error

    def why_none_of(self, users: Sequence[str]) -> str:
        """Return that no job of these users could run here, or "". Blocks."""
        for user in users:
            name = self._map.get(user, user)
            if is_account(name):
                with contextlib.suppress(UserRefusedError):
                    _looked_up(name, self._uid_min)
                    return ""
        shown = ", ".join(user[:_SHOWN] for user in users[:_NAMED])
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        return (
            f"jobs run as their submitters, and no user of the cluster ({shown}{more}) has an "
            f"account here from uid {self._uid_min}: useradd --create-home NAME, or `user_map`"
        )

    def use(self, users: Sequence[str] | None) -> None:
        """Take note of who may submit jobs; None if that is not known."""
        self._users = frozenset(users or ())

    def _sharing(self, name: str, user: str) -> bool:
        """True if jobs of further users run as the account `name` of this user: of others who are
        mapped to it, or of one who has this name."""
        if any(it == name and other != user for other, it in self._map.items()):
            return True
        return name != user and name in self._users and self._map.get(name, name) == name

    def _check_secret(self, prepare: PrepareTask, together: str) -> None:
        """Raise UserRefusedError if the job uses a secret that jobs of other users could read."""
        secret = prepare.git is not None and prepare.git.secret
        if secret and together:
            raise UserRefusedError(
                f"The job uses the secret {secret}, but {together}, so those of every user could "
                f"read it; {KEEP_APART}."
            )


def why_users_are_together(config: AgentConfig) -> str:
    """Return why jobs of different users run as one, or ""."""
    if config.as_submitters:
        return ""
    if config.run_as not in {None, "root"}:
        return f"all jobs on this node run as {config.run_as} (`run_as`)"
    if os.geteuid() == 0:
        return "all jobs on this node run as root (`allow_root_jobs`)"
    return f"all jobs on this node run as uid {os.geteuid()}, because the agent is not root"


def _looked_up(name: str, uid_min: int) -> Owner:
    """Blocks. Raises UserRefusedError."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise UserRefusedError(
            f"User {name}, who submitted the job, does not exist on this node; add the account, or "
            "map the name in `user_map` of the agent's configuration."
        ) from error
    if entry.pw_uid < uid_min:
        raise UserRefusedError(
            f"User {name}, who submitted the job, has uid {entry.pw_uid} on this node, and jobs "
            f"run as users from uid {uid_min} only (`uid_min` of the agent's configuration)."
        )
    return Owner(entry.pw_name, entry.pw_uid, entry.pw_gid)
