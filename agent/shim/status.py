"""The status of a shim's own task, and its encoding."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from agent.shim.messages import ShimExit, ShimPhase, ShimStatus


class Status(ShimStatus):
    """The status with the times behind its `running_s`, on the clock of `loop.now`."""

    def __init__(self, task: str, log_dir: str) -> None:
        super().__init__(task, ShimPhase.NEW, log_dir=log_dir)
        self.started_at: float | None = None
        self.ended_at: float | None = None

    def document(self, moment: float) -> dict[str, object]:
        """The whole status, at `moment`."""
        if self.started_at is not None:
            self.running_s = round((self.ended_at or moment) - self.started_at, 6)
        return {name: getattr(self, name) for name in ShimStatus.__annotations__}


def exit_of(status: int) -> ShimExit:
    """The exit that the status word of waitpid describes."""
    value = os.waitstatus_to_exitcode(status)
    return ShimExit(value) if value >= 0 else ShimExit(signal=-value)


def encoded(document: Mapping[str, object]) -> bytes:
    """The document as UTF-8, in one line.

    Invalid characters become question marks, because readers would refuse the whole document.
    Python uses lone surrogates for undecodable bytes of file names.
    """
    return json.dumps(document, ensure_ascii=False, default=vars).encode(errors="replace")
