"""The reason why something of a job could not be started, as data and in words."""

from __future__ import annotations

import errno

from muster.protocol.refusal_codes import RefusalCode


class Failure:
    """The reason why a runner could not carry out an order. `stage`: log, fork, look_up, apart,
    user, folder, program.
    """

    __slots__ = ("code", "path", "stage", "text")

    def __init__(self, stage: str, path: str, code: int, text: str) -> None:
        self.stage = stage
        self.path = path
        self.code = code
        self.text = text

    @classmethod
    def of(cls, error: OSError, stage: str, path: str) -> Failure:
        return cls(stage, path, error.errno or 0, error.strerror or str(error))

    @property
    def refusal(self) -> RefusalCode:
        """The refusal code for this failure, if its stage has none of its own."""
        full = self.stage == "log" and self.code in (errno.ENOSPC, errno.EDQUOT)
        return RefusalCode.NO_SPACE if full else RefusalCode.SPAWN_FAILED


def describe(failure: Failure, user: str) -> str:
    """Describe the failure in one sentence: what failed, on which path, what to do."""
    match failure.stage:
        case "log":
            return f"{failure.path} cannot be made in the agent's state_dir: {failure.text}."
        case "apart":
            return (
                f"The job cannot get a {failure.path} of its own: {failure.text}. The agent has to"
                " run as root, or without `hosts.mode: private`, `private_tmp` and"
                " `hide_processes`."
            )
        case "user":
            return (
                f"This node could not become user {failure.path}: {failure.text}."
                " The agent has to run as root."
            )
        case "folder":
            return (
                f"User {user} cannot enter the folder {failure.path}: {failure.text}."
                " Make it on this node or name another `workdir`."
            )
        case "program" if failure.code == errno.ENOENT:
            return (
                f"The program {failure.path!r} was not found for user {user};"
                " check its name and PATH."
            )
        case "program" if failure.code == errno.ENOEXEC:
            return (
                f"{failure.path} is not a program: give it a first line such as #!/bin/sh,"
                " or call its interpreter."
            )
        case "program":
            return f"User {user} cannot run {failure.path!r}: {failure.text}."
        case _:
            return f"{failure.text or failure.stage} ({failure.path})."
