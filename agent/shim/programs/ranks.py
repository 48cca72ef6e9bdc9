"""The ranks of a task: their files, their pids, and the first failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from agent.shim.commands import RANKS_MAX
from agent.shim.exit_record import ERRORS, LOGS, Logs
from agent.shim.messages import ShimExit, ShimRank, ShimStartMethod, ShimStream
from agent.shim.status import Status
from agent.shim.system.event_loop import now
from agent.shim.system.syscalls import environment_of, values_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

RANK_MAX = 1 << 24
# The maximum of any kernel.
PID_MAX = 1 << 22
CODE_MAX = 255
SIGNAL_MAX = 64
ERROR_BYTES_MAX = 4096
_SECONDS_MAX = 1e9
_WHY_CHARS_MAX = 512
_RECOGNISE_S = 0.1
# torchrun appends RANK to its own environment, so a large one must be read whole.
_ENVIRONMENT_BYTES_MAX = 1 << 20


def error_file(rank: int) -> str:
    """The file's name in the folder of errors."""
    return f"rank-{rank}.json"


class Ranks:
    """Keeps the ranks and streams of the status document. `by_number`: the ranks of this round."""

    def __init__(
        self,
        status: Status,
        logs: Logs,
        kernel: Callable[[int | None, str], str] = lambda _pid, _said: "",
        oom_kills: Callable[[], int | None] = lambda: None,
        memory_limit_reached: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Set the sources of evidence.

        `oom_kills` counts the task's processes that were killed for memory;
        `memory_limit_reached` is the task's own limit, if they were killed for that. `kernel`
        returns the lines of the kernel's log about a rank, by its pid and last output.
        """
        self._status = status
        self._logs = logs
        self._oom_kills = oom_kills
        self._memory_limit_reached = memory_limit_reached
        self._kernel = kernel
        # True once the ranks got a stop signal. One is enough: many programs take a second one for
        # "at once".
        self.signalled = False
        self._at_once = self._in_all = RANKS_MAX
        self.by_number: dict[int, ShimRank] = {}
        self._paths: set[str] = set()
        self._had: set[int] = set()  # Ranks with files, of all rounds.
        self._ours: set[int | None] = set()  # Pids that were the task's when they were reported.

    def plan(self, at_once: int, in_all: int) -> None:
        """Limit the ranks at one time, and the different ranks that get files."""
        self._at_once, self._in_all = at_once, in_all

    def asked(self, message: dict[str, object]) -> tuple[int, int] | None:
        """Rank and local rank for which the job's own process requests files.

        Returns None if the plan has no room for that rank.
        """
        rank, local_rank = message.get("rank"), message.get("local_rank")
        if not _within(rank, 0, RANK_MAX - 1) or not _within(local_rank, 0, self._at_once - 1):
            return None
        ranks = self.by_number
        # The first rank of the node begins a new round.
        begins = local_rank == 0 or rank in ranks or len(ranks) < self._at_once
        known = rank in self._had or len(self._had) < self._in_all
        return (rank, local_rank) if begins and known else None

    def stream(self, stream: str, rank: int | None, name: str) -> str:
        """Add a file that can be read, once; returns its path."""
        path = f"{LOGS}/{name}"
        if path not in self._paths:
            self._paths.add(path)
            self._status.streams += (ShimStream(stream, path, rank),)
        return path

    def open(self, rank: int, local_rank: int) -> tuple[int, int]:
        """Open the files of a rank that is about to start.

        A rank that starts again appends to the same files. The first rank of the node starts a new
        round: torchrun has ended the previous ranks, and numbers them anew if its gang has changed.
        Raises OSError.
        """
        if local_rank == 0:
            self.by_number.clear()
            self._status.ranks, self._status.first_failed = (), None
        names = (f"rank-{rank}.stdout", f"rank-{rank}.stderr")
        out = self._logs.open(names[0])
        try:
            err = self._logs.open(names[1])
        except OSError:
            os.close(out)
            raise
        stdout, stderr = (
            self.stream(stream, rank, name)
            for stream, name in zip(("stdout", "stderr"), names, strict=True)
        )
        self._had.add(rank)
        self.by_number[rank] = ShimRank(rank, local_rank, stdout, stderr)
        self._status.ranks = tuple(self.by_number.values())
        self.signalled = False
        return out, err

    def open_errors(self) -> int:
        """The folder for torch's @record, for ranks that the shim starts itself. Raises OSError."""
        return self._logs.open_folder(ERRORS)

    def recorded_error(self, rank: int) -> str | None:
        return self._logs.recorded_error(error_file(rank))

    def overlooked_failure(self, rank: int) -> str | None:
        """torchrun's report of failed ranks, from the last lines of a script that succeeded."""
        tail = self._logs.tail(f"rank-{rank}.stderr", ERROR_BYTES_MAX)
        return _CHILD_FAILED if _CHILD_FAILED in tail else None

    def began(self, rank: object, pid: object, *, ours: bool) -> None:
        """Note the pid of a rank. It may come from the job's own process, so it is checked. `ours`:
        it is a process of the task.
        """
        known = self.by_number.get(rank) if isinstance(rank, int) else None
        if known is not None and _within(pid, 1, PID_MAX):
            known.pid = pid
            if ours:
                self._ours.add(pid)

    def recognise(self, members: dict[int, int]) -> None:
        """Find the ranks whose pid was not reported, by RANK in their environment.

        `members`: pid to start time of the living. A rank's children have its environment too, but
        are younger.
        """
        unknown = {b"%d" % rank.rank: rank for rank in self.by_number.values() if not rank.pid}
        until = now() + _RECOGNISE_S
        for pid in sorted(members, key=lambda pid: members[pid]) if unknown else ():
            if now() > until:
                # A job may have any number of processes, and the shim must keep answering
                # meanwhile.
                return
            for value in values_of(environment_of(pid, _ENVIRONMENT_BYTES_MAX), "RANK"):
                rank = unknown.pop(value, None)
                if rank is not None:
                    rank.pid = pid
                    self._ours.add(pid)

    def ended(self, rank: int, how: ShimExit, error: str | None) -> None:
        """Note how a rank ended. Only the first report counts.

        If the rank did not fail, `error` is a failure that the program overlooked.
        """
        known = self.by_number.get(rank)
        if known is None or known.exit is not None:
            return
        began = self._status.started_at
        at_s = 0.0 if began is None else round(now() - began, 6)
        known.exit = ShimExit(how.code, how.signal, at_s)
        known.stopped = self.signalled or self._status.stopped_by is not None
        if not how.failed:
            known.error = error
            return
        tail = self._logs.tail(f"rank-{rank}.stderr", ERROR_BYTES_MAX)[-ERROR_BYTES_MAX:]
        known.error = (error or tail)[-ERROR_BYTES_MAX:] or None
        known.stderr_tail = (tail or None) if error else None
        known.disk_full = how.code != 0 and self._logs.no_room()
        known.oom = how.signal == signal.SIGKILL and self._killed_for_memory()
        # A killed worker of a data loader makes its rank fail with an exception.
        self._status.memory_max = self._status.memory_max or self._memory_limit_reached()
        if not known.stopped:
            pid = known.pid if known.pid in self._ours else None
            known.kernel = self._kernel(pid, f"{error or ''}\n{tail}") or None
        if self._status.first_failed is None and not known.stopped:
            self._status.first_failed = rank

    def _killed_for_memory(self) -> bool:
        before, count = self._status.oom_kills or 0, self._oom_kills()
        self._status.oom_kills = count
        return (count or 0) > before

    def reported(self, message: dict[str, object]) -> None:
        """Note the bootstrap's report of a start method or of a rank's end, if it is valid."""
        if message.get("t") == "start_method":
            self._start_method(message)
        else:
            self._end_reported(message)

    def _start_method(self, message: dict[str, object]) -> None:
        """Note the first method, and the change from fork to exec: a liar might send many."""
        known, method = self._status.start_method, message.get("method")
        if method not in ("fork", "exec") or (known and (known.method, method) != ("fork", "exec")):
            return
        seconds = {}
        for name in ("import_s", "preload_s", "check_s", "fork_s"):
            value = message.get(name)
            if not isinstance(value, float) or not 0 <= value < _SECONDS_MAX:
                return
            seconds[name] = round(value, 4)
        why = str(message.get("why", ""))[:_WHY_CHARS_MAX]
        self._status.start_method = ShimStartMethod(str(method), why, **seconds)

    def _end_reported(self, message: dict[str, object]) -> None:
        rank, code, number = message.get("rank"), message.get("code"), message.get("signal")
        error = message.get("error")
        if not isinstance(rank, int):
            return
        if _within(code, 0, CODE_MAX) and number is None:
            how = ShimExit(code)
        elif _within(number, 1, SIGNAL_MAX) and code is None:
            how = ShimExit(signal=number)
        else:
            return
        self.ended(rank, how, error if isinstance(error, str) and how.failed else None)

    def of_pid(self, pid: int) -> int | None:
        """The rank that runs as this process. Returns None if there is no such rank."""
        for rank in self.by_number.values():
            if rank.pid == pid and rank.exit is None:
                return rank.rank
        return None

    def pids(self) -> list[int]:
        """The pids of the living ranks."""
        return [rank.pid for rank in self.by_number.values() if rank.alive and rank.pid]

    def all_ended(self) -> bool:
        ranks = self.by_number.values()
        return bool(ranks) and all(rank.exit is not None for rank in ranks)


_CHILD_FAILED = "ChildFailedError"


def _within(number: object, least: int, most: int) -> TypeGuard[int]:
    """True if `number` is an integer between `least` and `most`."""
    if not isinstance(number, int) or isinstance(number, bool):
        return False
    return least <= number <= most
