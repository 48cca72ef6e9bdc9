"""From what an agent reports to the cause that ends an attempt, in words that name the place."""

from __future__ import annotations

from muster.protocol.hosts import BadHost, check_address
from muster.protocol.messages import PORT_TAKEN, UNREACHABLE, RankReport, Refusal, TaskReport
from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.protocol.states import TaskState
from orchestrator.core.state import Attempt, Task
from orchestrator.core.task import reached


def failed_rank(report: TaskReport) -> RankReport | None:
    """The rank of this task that failed first, if one has."""
    failed = [r for r in report.ranks if r.exit is not None and not r.exit.ok]
    for rank in failed:
        if rank.rank == report.first_failed:
            return rank
    return failed[0] if failed else None


def from_report(task: Task, report: TaskReport) -> Cause | None:
    """Why the gang has to stop, if this report says so. None for reports of an orderly course."""
    if report.stopped_by == "lease":
        return Cause(
            CauseCode.LEASE_EXPIRED,
            Outcome.INFRA,
            f"{task.node} was cut off for longer than its lease and stopped its ranks",
            node=task.node,
            node_fault=True,
        )
    if report.stopped_by == "shim_lost":
        return Cause(
            CauseCode.TASK_VANISHED,
            Outcome.INFRA,
            f"the process that watches over the ranks on {task.node} was killed",
            node=task.node,
            node_fault=True,
        )
    if report.stopped_by:
        return None
    if report.prepared is not None and task.prepared is None:
        try:
            check_address(report.prepared.address)
        except BadHost as error:
            return Cause(
                CauseCode.ARRANGE_FAILED,
                Outcome.INFRA,
                f"{task.node} reports an address that no peer can use: {error}",
                node=task.node,
                node_fault=True,
            )
    if report.refusal is not None and report.exit is not None:
        return Cause(
            CauseCode.START_FAILED,
            # A port that another program took is no fault of the job's.
            Outcome.INFRA if report.refusal.code == PORT_TAKEN else Outcome.USER,
            f"{task.node} could not start it: {report.refusal.text}",
            node=task.node,
            exit=report.exit,
            refusal=report.refusal.code,
        )
    if report.refusal is not None and report.state is TaskState.PREPARED:
        if report.refusal.code == UNREACHABLE:
            # The others say which end of the way it is.
            return None
        return from_refusal(task, report.refusal, CauseCode.ARRANGE_FAILED)
    rank = failed_rank(report)
    if rank is not None and rank.exit is not None:
        return Cause(
            CauseCode.RANK_FAILED,
            Outcome.USER,
            f"rank {rank.rank} on {task.node} {told(rank.exit)}"
            + (f": {_last_line(rank.error)}" if rank.error else ""),
            node=task.node,
            rank=rank.rank,
            exit=rank.exit,
        )
    if report.exit is not None and not report.exit.ok:
        return Cause(
            CauseCode.LAUNCHER_FAILED,
            Outcome.USER,
            f"the launcher on {task.node} {told(report.exit)}; see its log: "
            f"muster logs {task.job} --node {task.node}",
            node=task.node,
            exit=report.exit,
        )
    return None


def from_refusal(
    task: Task, refusal: Refusal, code: CauseCode = CauseCode.PREPARE_REFUSED
) -> Cause:
    """Why a gang is rolled back whose node refused."""
    return Cause(
        code,
        Outcome.INFRA,
        f"{task.node} refused: {refusal.text}",
        node=task.node,
        refusal=refusal.code,
        node_fault=refusal.node_fault,
    )


def unreached(attempt: Attempt) -> Cause:
    """Of a gang of which a worker did not reach the launcher: if none did, that is to blame."""
    launcher, *workers = attempt.tasks
    task, refusal = next((t, t.refusal) for t in workers if t.refusal is not None)
    if any(reached(t.state, TaskState.ARRANGED) for t in workers):
        return from_refusal(task, refusal, CauseCode.ARRANGE_FAILED)
    return Cause(
        CauseCode.ARRANGE_FAILED,
        Outcome.INFRA,
        f"none of the gang reaches its launcher; {task.node} says: {refusal.text}",
        node=launcher.node,
        refusal=refusal.code,
        node_fault=True,
    )


def told(exit_status: ExitStatus) -> str:
    """How a process ended, as a verb phrase."""
    if exit_status.signal is not None:
        return f"was killed by {signal_name(exit_status.signal)}"
    if exit_status.code is not None:
        return f"exited with code {exit_status.code}"
    return "ended in a way that was not seen"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; a plain number for those without a common name."""
    return _SIGNALS.get(number, f"signal {number}")


_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
