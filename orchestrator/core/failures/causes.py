"""Causes that end an attempt, derived from an agent's report; their text names node and rank."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.hosts_file import BadHost, check_address
from muster.protocol.link.control_channel import RankReport, Refusal, TaskReport
from muster.protocol.outcome import Cause, CauseCode, ExitStatus, Outcome
from muster.protocol.refusal_codes import RefusalCode
from orchestrator.core.failures.classify import CONSEQUENCES, FailureVerdict, judge, says_in_use
from orchestrator.core.model.state import Attempt, Job, Task

TEXT_CHARS_MAX: Final = 800
TAIL_CHARS_MAX: Final = 4096
_EXIT_NOT_FOUND: Final = 127
_TEXTS_MAX: Final = 8


def first_failed(report: TaskReport) -> tuple[RankReport, FailureVerdict] | None:
    """The rank of this task that failed first by itself, with its verdict; None if none failed.

    A rank that failed as a consequence of another rank's failure may have ended earlier.
    """
    failed = [
        (rank, rank.exit)
        for rank in report.ranks
        if rank.exit is not None and not rank.exit.ok and not rank.stopped
    ]
    # An agent quotes fewer texts than that, and each costs the search for many patterns.
    failed.sort(key=lambda it: (not (it[0].error or it[0].kernel), it[0].at_s or 0.0))
    found = [
        (rank, _judged(rank if place < _TEXTS_MAX else _without_texts(rank), how))
        for place, (rank, how) in enumerate(failed)
    ]
    return min(
        found,
        key=lambda it: (
            it[1].kind in CONSEQUENCES,
            it[0].at_s or 0.0,
            it[0].rank != report.first_failed,
        ),
        default=None,
    )


def _without_texts(rank: RankReport) -> RankReport:
    return replace(rank, error="", kernel="", oom_said="")


def _judged(rank: RankReport, how: ExitStatus) -> FailureVerdict:
    return judge(
        how,
        rank.error,
        oom=rank.oom,
        kernel=rank.kernel,
        oom_said=rank.oom_said,
        memory_max=rank.memory_max,
    )


def from_report(task: Task, report: TaskReport, leased: int = 0) -> Cause | None:
    """The cause for which the gang has to stop; None if the report shows normal progress.

    `leased` is the port on which rank 0 itself listens; 0 if torchrun listens there.
    """
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
    if report.stopped_by == "lease":
        return Cause(
            CauseCode.LEASE_EXPIRED,
            Outcome.INFRA,
            f"{task.node} had no answer for longer than the lease and stopped its ranks",
            node=task.node,
        )
    if report.stopped_by == "shim_lost":
        return Cause(
            CauseCode.TASK_VANISHED,
            Outcome.INFRA,
            f"the process that supervises the ranks on {task.node} was killed",
            node=task.node,
            node_fault=True,
        )
    if report.stopped_by:
        return None
    if report.refusal is not None and report.exit is not None:
        return _start_failed(task, report.refusal, report.exit)
    failed = first_failed(report)
    if failed is not None:
        return _rank_failed(task, *failed, leased)
    if report.exit is not None and not report.exit.ok:
        return _launcher_failed(task, report.exit, report.launcher_said)
    return None


def limit_over(job: Job, attempt: Attempt, task: Task, report: TaskReport) -> Cause:
    """The cause of an attempt whose time limit is over on a node, which has stopped its ranks."""
    limit_s = job.spec.time_limit_s
    if limit_s is None or report.terms < attempt.limit_terms:
        text = f"{task.node} had not received the new time limit when the old one was over"
    else:
        text = f"the time limit of {limit_s:g} s is over"
    return Cause(CauseCode.TIME_LIMIT, Outcome.TIME_LIMIT, text)


def from_record(task: Task) -> Cause | None:
    """The cause for which the gang has to stop, from the recorded facts of an ended task."""
    if task.exit is None:
        return None
    known = TaskReport(
        task.id, task.state, ranks=task.ranks, exit=task.exit, stopped_by=task.stopped_by
    )
    return from_report(task, known)


def is_consequence(cause: Cause) -> bool:
    """True if the kind of the cause usually follows from another rank's failure."""
    return cause.kind in CONSEQUENCES


def ended_before_s(cause: Cause, report: TaskReport) -> float:
    """Seconds between the end of the blamed rank and its report, on the node's clock."""
    at_s = next((r.at_s for r in report.ranks if r.rank == cause.rank), None)
    return max(0.0, report.running_s - at_s) if at_s is not None else 0.0


def _start_failed(task: Task, refusal: Refusal, how: ExitStatus) -> Cause:
    missing, full = how.code == _EXIT_NOT_FOUND, refusal.code == RefusalCode.NO_SPACE
    return Cause(
        CauseCode.START_FAILED,
        # Neither a port that another program took nor a full disk is the job's fault.
        Outcome.INFRA if full or refusal.code == RefusalCode.PORT_TAKEN else Outcome.USER,
        shortened(f"{task.node} could not start it: {refusal.text}"),
        node=task.node,
        node_fault=full,
        exit=how,
        refusal=refusal.code,
        kind=FailureKind.NO_PROGRAM if missing else judge(how, refusal.text).kind,
    )


def _rank_failed(task: Task, rank: RankReport, verdict: FailureVerdict, leased: int) -> Cause:
    how = rank.exit or ExitStatus()
    in_use = verdict.kind is FailureKind.PORT_IN_USE and rank.rank == 0
    taken = in_use and leased > 0 and says_in_use(rank.error, leased)
    if taken:
        advice = f"port {leased} was free for MASTER_PORT, but another program has taken it since"
        verdict = replace(verdict, advice=advice)
    full = rank.disk_full and (verdict.kind is FailureKind.DISK_FULL or not verdict.said)
    what = f"rank {rank.rank} on {task.node} {described(how)}"
    if full:
        # The error message may be lost, because the log is on the full disk.
        what = f"disk full on {task.node}, where the folders of tasks are: {what}"
    return Cause(
        CauseCode.RANK_FAILED,
        Outcome.INFRA if taken or full or verdict.infra else Outcome.USER,
        _sentence(what, verdict),
        node=task.node,
        node_fault=full or verdict.infra,
        rank=rank.rank,
        exit=how,
        refusal=RefusalCode.PORT_TAKEN if taken else None,
        kind=FailureKind.DISK_FULL if full else verdict.kind,
        tail=(rank.stderr or rank.error)[-TAIL_CHARS_MAX:],
    )


def launcher_ended(task: Task, how: ExitStatus, when: str) -> Cause:
    """The cause of a gang whose launcher on a node ended too early; `when` follows its end."""
    text = (
        f"the launcher on {task.node} {described(how)} {when}: the job's interpreter or torchrun "
        f"did not do what was asked; see its log: muster logs {task.job} --node {task.node}"
    )
    return Cause(CauseCode.LAUNCHER_FAILED, Outcome.USER, shortened(text), node=task.node, exit=how)


def _launcher_failed(task: Task, how: ExitStatus, said: str) -> Cause:
    verdict = judge(how, said)
    text = f"the launcher on {task.node} {described(how)}"
    if not verdict.said and not verdict.advice:
        text += f"; see its log: muster logs {task.job} --node {task.node}"
    return Cause(
        CauseCode.LAUNCHER_FAILED,
        Outcome.USER,
        _sentence(text, verdict),
        node=task.node,
        exit=how,
        kind=verdict.kind,
        tail=said[-TAIL_CHARS_MAX:],
    )


def _sentence(what: str, verdict: FailureVerdict) -> str:
    said = f": {verdict.said}" if verdict.said else ""
    advice = f"; {verdict.advice}" if verdict.advice else ""
    return shortened(f"{what}{said}{advice}")


def shortened(text: str) -> str:
    """Bound a text that may contain the name or output of a program."""
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}..."


def described(exit_status: ExitStatus) -> str:
    """The end of a process as a verb phrase."""
    if exit_status.signal is not None:
        return f"was killed by {signal_name(exit_status.signal)}"
    if exit_status.code is not None:
        return f"exited with code {exit_status.code}"
    return "ended with an unknown status"


def signal_name(number: int) -> str:
    """A name such as `SIGKILL` for 9; `signal N` for numbers without a common name."""
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
