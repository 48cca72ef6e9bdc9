"""Start the programs of a task without torchrun: one program, or one for each rank of the node.

Under torchrun the bootstrap starts the ranks instead.
"""

from __future__ import annotations

import errno
import os

from agent.shim.messages import ShimExit, ShimRefusal, ShimStart
from agent.shim.programs.bootstrap_channel import LOG_FOLDER, LOG_FOLDER_FD
from agent.shim.programs.failure import Failure
from agent.shim.programs.preparation import Preparation
from agent.shim.programs.ranks import Ranks, error_file
from agent.shim.programs.runner import (
    EXIT_CANNOT_RUN,
    EXIT_NOT_FOUND,
    Program,
    RunnerReport,
)
from agent.shim.status import Status


class ProgramListener:
    """Callbacks for the progress of the programs. The task implements them."""

    def program_runs(self) -> None: ...
    def rank_failed(self) -> None: ...
    def rank_ended(self) -> None: ...
    def programs_ended(self, how: ShimExit) -> None: ...


class Programs:
    """The programs of one task. `programs_ended` receives the first failure among them."""

    def __init__(
        self, preparation: Preparation, ranks: Ranks, status: Status, listener: ProgramListener
    ) -> None:
        self._preparation = preparation
        self._ranks = ranks
        self._status = status
        self._listener = listener
        self._left = 0
        self._failure: ShimExit | None = None

    def start(self, command: ShimStart, env: dict[str, str]) -> int | None:
        """Start all programs. Returns the pid of the only program if the job has no ranks, else
        None.
        """
        pid = self._start_all(command, env)
        if self._failure is not None and self._left == 0:
            # No program is running, so no end will follow.
            self._listener.programs_ended(self._failure)
        return pid

    def _start_all(self, command: ShimStart, env: dict[str, str]) -> int | None:
        if not command.ranks:
            node_rank = env.get("MUSTER_NODE_RANK", "0")
            return self._start(command, int(node_rank) if node_rank.isdecimal() else 0, 0, env)
        for local_rank, own in enumerate(command.ranks):
            if self._failure is None:
                self._start(command, int(own["RANK"]), local_rank, {**env, **own})
        return None

    def _start(
        self, command: ShimStart, rank: int, local_rank: int, env: dict[str, str]
    ) -> int | None:
        def became(report: RunnerReport) -> None:
            if report.failure is None:
                self._listener.program_runs()
            else:
                self._not_started(rank, report.failure, interpreter=command.interpreter)

        def ended(how: ShimExit) -> None:
            self._left -= 1
            recorded = self._ranks.recorded_error(rank) if command.ranks and how.failed else None
            if not command.ranks and not how.failed:
                recorded = self._ranks.overlooked_failure(rank)
            self._ranks.ended(rank, how, recorded)
            self._ended(how)

        try:
            fds = self._open(rank, local_rank, errors=bool(command.ranks))
        except OSError as error:
            self._not_started(rank, Failure.of(error, "log", f"The log of rank {rank}"))
            return None
        try:
            child = self._preparation.additional_child(became)
        except OSError as error:
            _close(fds)
            self._not_started(rank, Failure.of(error, "fork", "fork"))
            return None
        self._left += 1
        child.ended = ended
        if LOG_FOLDER_FD in fds:
            env = {**env, "TORCHELASTIC_ERROR_FILE": f"{LOG_FOLDER}/{error_file(rank)}"}
        child.become(self._program(command, env, fds), became)
        self._ranks.began(rank, child.pid, ours=True)
        _close(fds)
        return child.pid

    def _open(self, rank: int, local_rank: int, *, errors: bool) -> dict[int, int]:
        """The descriptors for a rank to inherit: its number to ours. Raises OSError."""
        out, err = self._ranks.open(rank, local_rank)
        fds = {1: out, 2: err}
        try:
            return {**fds, LOG_FOLDER_FD: self._ranks.open_errors()} if errors else fds
        except OSError:
            _close(fds)
            raise

    def _program(self, command: ShimStart, env: dict[str, str], fds: dict[int, int]) -> Program:
        candidates, arguments = command.argv[:1], command.argv[1:]
        if command.interpreter:
            candidates, arguments = self._preparation.interpreter_candidates(), command.argv
        return self._preparation.program(candidates, arguments, env, fds)

    def _not_started(self, rank: int, failure: Failure, *, interpreter: bool = False) -> None:
        missing = failure.stage == "program" and failure.code == errno.ENOENT
        text = self._preparation.why_not(failure, interpreter=interpreter)
        how = ShimExit(EXIT_NOT_FOUND if missing else EXIT_CANNOT_RUN)
        self._status.refusal = self._status.refusal or ShimRefusal(failure.refusal, text)
        self._ranks.ended(rank, how, text)
        self._failed(how)

    def _ended(self, how: ShimExit) -> None:
        if how.failed:
            self._failed(how)
        if self._left == 0:
            self._listener.programs_ended(self._failure or how)
        else:
            self._listener.rank_ended()

    def _failed(self, how: ShimExit) -> None:
        self._failure = self._failure or how
        if self._left:
            self._listener.rank_failed()


def _close(fds: dict[int, int]) -> None:
    for fd in fds.values():
        os.close(fd)
