"""Ends of attempts and jobs: exit statuses, causes, outcomes, and the exit code for the user's
shell.

The first cause wins: what happens to an attempt after it began to stop is a consequence.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

EXIT_CANCELLED: Final = 121
EXIT_INFRA: Final = 122
EXIT_NEVER_STARTED: Final = 123
EXIT_TIME_LIMIT: Final = 124
EXIT_CLIENT: Final = 125
EXIT_DETACHED: Final = 130


class ExitStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exit of a process: an exit code, or the number of the signal that ended it."""

    code: int | None = None
    signal: int | None = None

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def shell_code(self) -> int:
        """Return the shell's exit code: 128 + N for signal N."""
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.code is None else self.code


class Outcome(enum.Enum):
    """Outcome of an attempt, and of its job."""

    SUCCESS = "success"
    USER = "user"
    INFRA = "infra"
    NEVER_STARTED = "never_started"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"


class CauseCode(enum.Enum):
    """The reason why an attempt stopped. `Cause.text` has the message."""

    COMPLETED = "completed"
    RANK_FAILED = "rank_failed"
    LAUNCHER_FAILED = "launcher_failed"
    PREPARE_REFUSED = "prepare_refused"
    PREPARE_TIMEOUT = "prepare_timeout"
    ARRANGE_FAILED = "arrange_failed"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    NODE_LOST = "node_lost"
    TASK_VANISHED = "task_vanished"
    LEASE_EXPIRED = "lease_expired"
    RDMA_NOT_USED = "rdma_not_used"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    DRAINED = "drained"
    HARDWARE = "hardware_failed"
    HUNG = "hung"
    IDLE = "idle"
    RESTORED = "restored"


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first failure (or the success), with its place.

    `exit` is the failing rank's; `node_fault` means that another node might succeed. `kind` is the
    failure class, a stable word, and `tail` the last lines of output from that place; both may be
    "".
    """

    code: CauseCode
    outcome: Outcome
    text: str
    node: str | None = None
    rank: int | None = None
    exit: ExitStatus | None = None
    refusal: str | None = None
    node_fault: bool = False
    kind: str = ""
    tail: str = ""

    @property
    def exit_code(self) -> int:
        """Return the exit code of `muster wait` for a job with this cause."""
        match self.outcome:
            case Outcome.SUCCESS:
                return 0
            case Outcome.USER:
                # A launcher that ended too early may have exited with 0.
                return (self.exit.shell_code if self.exit is not None else 0) or 1
            case Outcome.INFRA:
                return EXIT_INFRA
            case Outcome.NEVER_STARTED:
                return EXIT_NEVER_STARTED
            case Outcome.TIME_LIMIT:
                return EXIT_TIME_LIMIT
            case Outcome.CANCELLED:
                return EXIT_CANCELLED
