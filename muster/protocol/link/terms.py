"""Terms of a running task: its time limit and the members of its gang."""

from __future__ import annotations

import msgspec

from muster.protocol.ids import TaskId


class Member(msgspec.Struct, frozen=True):
    """A task of a gang, and where its agent answers agents of the gang."""

    task: TaskId
    address: str
    port: int


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """The conditions under which a task runs, which may change. Terms with a greater number replace
    others of the attempt.

    The node ends its ranks `limit_s` after the start of the program, and sends them `warn_signal`
    after `warn_s`. `members` are the present tasks of a gang whose agents vouch for each other,
    including this one. `admits`, on the launcher's node of an elastic gang, are the addresses of
    its present nodes, which may connect to the leased ports.
    """

    number: int
    limit_s: float | None = None
    warn_s: float | None = None
    warn_signal: str = ""
    members: tuple[Member, ...] = ()
    admits: tuple[str, ...] = ()


class ChangeTerms(msgspec.Struct, frozen=True, tag="terms"):
    """Follow these terms from now on. Repeated until the task's report says that they are on the
    node's disk."""

    task: TaskId
    terms: Terms
