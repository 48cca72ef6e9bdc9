"""Classification of failures: kind and advice, from a process's exit and its last output.

The table of rules is orchestrator/core/failures/taxonomy.py. The kernel's log takes precedence: it
records the event itself, not the program's view of it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec.structs import replace

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.outcome import ExitStatus
from muster.spec.units import size_text
from orchestrator.core.failures.kernel_log import OutOfMemory, Xid, read
from orchestrator.core.failures.taxonomy import IN_USE, RULES

LINE_CHARS_MAX: Final = 300
WRITTEN_CHARS_MAX: Final = 8192
JUDGED_CHARS_MAX: Final = 2048
"""Length of the beginning of a line that rules see, as their time may grow with its square."""
LINES_JUDGED: Final = 20
"""Number of last lines that count for a process that ended without a traceback."""


CONSEQUENCES: Final = frozenset(
    {
        FailureKind.PEER_LOST,
        FailureKind.RDMA_FAILED,
        FailureKind.NO_CONNECTION,
        FailureKind.COLLECTIVE_TIMEOUT,
        FailureKind.TERMINATED,
    }
)
"""Kinds of failure that usually follow from another rank's failure."""


class FailureVerdict(msgspec.Struct, frozen=True):
    """The class of a failure.

    `said` is the most informative line of the process's output, or empty. `advice` is empty if only
    the program's author can know what to do. `infra`: the machine failed.
    """

    kind: FailureKind
    said: str
    advice: str
    infra: bool = False


def judge(
    how: ExitStatus,
    written: str,
    *,
    oom: bool = False,
    kernel: str = "",
    oom_said: str = "",
    memory_max: int = 0,
) -> FailureVerdict:
    """Classify a failure.

    `written` is the end of the process's output, or the traceback that torch recorded. `oom`: the
    rank's cgroup counted an out-of-memory kill. `kernel` has the node's kernel log lines about the
    rank; `oom_said` is the agent's summary of those about memory. `memory_max`: the memory limit of
    the rank's task, if processes were killed because of it.
    """
    seen = read(kernel)
    if isinstance(seen, Xid):
        return FailureVerdict(FailureKind.GPU_FAILED, seen.text, seen.advice, seen.infra)
    said, rest, raised = _last_words(written)
    if oom or (isinstance(seen, OutOfMemory) and how.signal == _SIGKILL):
        what = _cut(oom_said) if seen is None else seen.text
        return FailureVerdict(FailureKind.OOM_KILLED, what, _advice(memory_max))
    if isinstance(seen, OutOfMemory):
        # The kernel killed a child process, usually a data loader worker.
        return FailureVerdict(FailureKind.HOST_OUT_OF_MEMORY, seen.text, _advice(memory_max))
    if how.signal in BY_SIGNAL and how.signal != _SIGABRT:
        return replace(BY_SIGNAL[how.signal], said=said if raised else "")
    for rule in RULES:
        if found := rule.search(rest):
            advice = rule.advice.format(*found.groups("?"))
            if memory_max and rule.kind is FailureKind.HOST_OUT_OF_MEMORY:
                advice = _advice(memory_max)
            return FailureVerdict(rule.kind, said, advice, rule.infra)
    if how.signal == _SIGABRT:
        return replace(BY_SIGNAL[_SIGABRT], said=said)
    return FailureVerdict(FailureKind.EXCEPTION if raised else FailureKind.EXITED, said, "")


def _advice(memory_max: int) -> str:
    return AT_ITS_LIMIT.format(size_text(memory_max)) if memory_max else OUT_OF_MEMORY


def says_in_use(written: str, port: int) -> bool:
    """True if a process's last output says that another process uses this port."""
    _, rest, _ = _last_words(written)
    this_one = re.compile(rf"(?<!\d){port}(?!\d)")
    return any(IN_USE.search(line) and this_one.search(line) for line in rest.splitlines())


OUT_OF_MEMORY: Final = (
    "the kernel killed it because the memory of its node or its cgroup was exhausted: use fewer "
    "data loader workers or a smaller batch, or ask for nodes with more memory"
)
AT_ITS_LIMIT: Final = (
    "the job reached its memory limit on that node, {}: raise `resources.memory`, or use fewer "
    "data loader workers or a smaller batch"
)
_SIGKILL: Final = 9
_SIGABRT: Final = 6
BY_SIGNAL: Final = {
    4: FailureVerdict(
        FailureKind.ILLEGAL_INSTRUCTION,
        "",
        "a library was built for another kind of processor than that node has",
    ),
    _SIGABRT: FailureVerdict(
        FailureKind.ABORTED,
        "",
        "a library gave up; NCCL's own words come with env NCCL_DEBUG=INFO",
    ),
    7: FailureVerdict(
        FailureKind.SHARED_MEMORY,
        "",
        "most often /dev/shm of the node is full: use fewer data loader workers, or make it larger",
    ),
    9: FailureVerdict(
        FailureKind.KILLED,
        "",
        "signal 9 came from outside, most often from the kernel's out-of-memory killer: check the "
        "memory of that node (dmesg -T says what was killed)",
    ),
    11: FailureVerdict(
        FailureKind.SEGFAULT,
        "",
        "a library crashed: env PYTHONFAULTHANDLER=1 shows where; suspect an extension that was "
        "built against another torch",
    ),
    15: FailureVerdict(
        FailureKind.TERMINATED, "", "somebody on that node ended it; it was not stopped by Muster"
    ),
}

_OF_RANK: Final = re.compile(r"^\[rank\d+\]: ?")
_WARNING: Final = re.compile(r"^(?:\[rank\d+\]:)?\[W|^[\w./-]*:\d+: \w*Warning: |Warning: ")


def _last_words(written: str) -> tuple[str, str, bool]:
    """The line to quote, the text to judge by, and whether an exception ended the process.

    If there is a traceback, earlier output does not count: a connection that was lost and restored
    did not end the program.
    """
    written = written[-WRITTEN_CHARS_MAX:]
    lines = [_OF_RANK.sub("", line.rstrip())[:JUDGED_CHARS_MAX] for line in written.splitlines()]
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    for at in range(frames[-1] + 1 if frames else len(lines), len(lines)):
        if lines[at] and not lines[at][0].isspace():
            rest = [line for line in lines[at:] if not _WARNING.search(line)]
            return _cut(lines[at]), "\n".join(rest), True
    kept = [line.strip() for line in lines if line.strip() and not _WARNING.search(line)]
    kept = kept[-LINES_JUDGED:]
    return (_cut(kept[-1]) if kept else ""), "\n".join(kept), False


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}..."
