"""What a failure was, and what to do about it: from how a process ended and what it wrote last.

One table, read from the top: the first rule that fits wins. A new kind of failure is a new line in
it, with a piece of real output in the tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from muster.protocol.failures import FailureKind
from muster.protocol.outcome import ExitStatus

LINE_CHARS_MAX: Final = 300
WRITTEN_CHARS_MAX: Final = 8192
LINES_JUDGED: Final = 20
"""Of a process that ended without a traceback, so many of its last lines count."""


CONSEQUENCES: Final = frozenset(
    {
        FailureKind.PEER_LOST,
        FailureKind.NO_CONNECTION,
        FailureKind.COLLECTIVE_TIMEOUT,
        FailureKind.TERMINATED,
    }
)
"""What a rank dies of when something has happened to another one: it is seldom the first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`said` is the line that tells most of what the process wrote, "" if there is none; `advice`
    what to do, "" where only the program's author can know."""

    kind: FailureKind
    said: str
    advice: str


def judge(how: ExitStatus, written: str, *, oom: bool = False, oom_said: str = "") -> Verdict:
    """Class a failure. `written` is the end of what the process wrote, or the traceback that torch
    recorded; `oom`: it was killed for memory, of which the kernel said `oom_said`."""
    said, rest, raised = _last_words(written)
    if oom:
        advice = (
            "the kernel killed it because the memory of its node or its cgroup was used up: "
            "use fewer data loader workers or a smaller batch, or ask for nodes with more memory"
        )
        return Verdict(FailureKind.OOM_KILLED, _cut(oom_said), advice)
    if how.signal in _BY_SIGNAL and how.signal != _SIGABRT:
        return replace(_BY_SIGNAL[how.signal], said=said if raised else "")
    for rule in _RULES:
        if found := rule.pattern.search(rest):
            return Verdict(rule.kind, said, rule.advice.format(*found.groups("?")))
    if how.signal == _SIGABRT:
        return replace(_BY_SIGNAL[_SIGABRT], said=said)
    return Verdict(FailureKind.EXCEPTION if raised else FailureKind.EXITED, said, "")


def says_in_use(written: str, port: int) -> bool:
    """Whether the last words of a process say that this very port was somebody else's."""
    _, rest, _ = _last_words(written)
    this_one = re.compile(rf"(?<!\d){port}(?!\d)")
    return any(_IN_USE.search(line) and this_one.search(line) for line in rest.splitlines())


@dataclass(frozen=True, slots=True)
class _Rule:
    """`advice` may name the groups of `pattern` as {0}, {1}."""

    kind: FailureKind
    pattern: re.Pattern[str]
    advice: str


def _rule(kind: FailureKind, pattern: str, advice: str) -> _Rule:
    return _Rule(kind, re.compile(pattern, re.IGNORECASE), advice)


_IN_USE: Final = re.compile(r"EADDRINUSE|address already in use|\[Errno 98\]", re.IGNORECASE)
_RULES: Final = (
    _rule(
        FailureKind.CUDA_OUT_OF_MEMORY,
        r"CUDA out of memory|HIP out of memory|OutOfMemoryError|CUDA error: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
        "the memory of its GPU is used up: make the batch or the model's part smaller, or see with "
        "nvidia-smi on that node whether another process holds it",
    ),
    _rule(
        FailureKind.SHARED_MEMORY,
        r"insufficient shared memory|out of shared memory|unable to (?:open|write to|mmap).{0,80}"
        r"shared memory|torch_shm_manager|No space left on device.{0,40}/dev/shm"
        r"|/dev/shm.{0,80}No space left on device",
        "shared memory (/dev/shm) of the node is used up: use fewer data loader workers, or make "
        "/dev/shm larger there",
    ),
    _rule(
        FailureKind.HOST_OUT_OF_MEMORY,
        r"DefaultCPUAllocator: (?:can't|not enough)|^MemoryError\b|Cannot allocate memory"
        r"|DataLoader worker .{0,40}killed by signal: Killed|std::bad_alloc",
        "the main memory of the node is used up: use fewer data loader workers or a smaller batch, "
        "and see what else runs there",
    ),
    _rule(
        FailureKind.DISK_FULL,
        r"No space left on device|Disk quota exceeded|\[Errno 28\]|\[Errno 122\]",
        "a disk or quota is full: make room where the program writes",
    ),
    _rule(
        FailureKind.NO_PROGRAM,
        r"(?<![^\s:])([^\s:]{1,200}): command not found",
        "there is no command {0} in the PATH of the job on that node: install it, or name its path",
    ),
    _rule(
        FailureKind.NO_SCRIPT,
        r"can't open file '([^']+)': \[Errno (?:2|20)\]",
        "there is no {0} on that node: see that `run` and `workdir` name it, and that every node "
        "has the folder",
    ),
    _rule(
        FailureKind.NO_SCRIPT,
        r"can't find '__main__' module in '([^']+)'",
        "{0} is a folder and no script: name a file in `run`, or use `-m`",
    ),
    _rule(
        FailureKind.PERMISSION_DENIED,
        r"can't open file '([^']+)': \[Errno 13\]",
        "the user of the job may not read {0} on that node: change its mode or owner",
    ),
    _rule(
        FailureKind.NO_MODULE,
        r"No module named '?([\w.]+)'?",
        "the job's Python has no module {0}: install it in the environment that `python` names, or "
        "in `setup`",
    ),
    _rule(
        FailureKind.IMPORT_FAILED,
        r"ImportError: ([\w.+-]+\.so[\w.]*): cannot open shared object",
        "the library {0} is missing on that node: install it there, or name an environment that "
        "has it in `python`",
    ),
    _rule(
        FailureKind.IMPORT_FAILED,
        r"ImportError: cannot import name '(\w+)' from '([\w.]+)'",
        "{1} of the job's Python has no {0}, most often because it is of another version: install "
        "the right one in the environment that `python` names, or in `setup`",
    ),
    _rule(
        FailureKind.IMPORT_FAILED,
        r"\bImportError\b",
        "something cannot be imported: see the environment that `python` names, and `setup`",
    ),
    _rule(
        FailureKind.DRIVER_TOO_OLD,
        r"driver on your system is too old|driver version is insufficient"
        r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|Driver/library version mismatch",
        "the NVIDIA driver of that node does not fit this build of torch: update the driver, or "
        "use a torch built for an older CUDA",
    ),
    _rule(
        FailureKind.NO_CUDA,
        r"Torch not compiled with CUDA enabled|Distributed package doesn't have NCCL"
        r"|module 'torch\._C' has no attribute '_cuda",
        "this torch is a build for CPUs: name an environment with a CUDA build in `python`, or use "
        "gloo and no GPU",
    ),
    _rule(
        FailureKind.NO_CUDA,
        r"No CUDA GPUs are available|Found no NVIDIA driver|no GPUs found"
        r"|torch\.cuda\.is_available\(\) is False|no CUDA-capable device|CUDA unknown error",
        "the process sees no GPU: try nvidia-smi on that node, and see that the job asks for its "
        "GPUs and that CUDA_VISIBLE_DEVICES does not hide them",
    ),
    _rule(
        FailureKind.NO_CUDA,
        r"invalid device ordinal",
        "the process asks for a GPU that is not there: `nproc_per_node` may be more than the GPUs "
        "of that node, or the program ignores LOCAL_RANK",
    ),
    _rule(
        FailureKind.GPU_FAILED,
        r"uncorrectable (?:ECC|NVLink) error|GPU has fallen off the bus|CUDA error: unspecified "
        r"launch failure|CUDA error: hardware",
        "the GPU reports an error of its own: see nvidia-smi -q on that node, and its kernel's log "
        "for an Xid",
    ),
    _rule(
        FailureKind.CUDA_ERROR,
        r"no kernel image is available",
        "this torch has no code for the GPU of that node: use a build for its compute capability",
    ),
    _rule(
        FailureKind.CUDA_ERROR,
        r"CUDA error: |CUDA kernel errors might be",
        "run it once with env CUDA_LAUNCH_BLOCKING=1: then the traceback shows which call failed",
    ),
    _rule(
        FailureKind.PORT_IN_USE,
        _IN_USE.pattern,
        "another process listens on that port: take MASTER_PORT as it is given, and ports that the "
        "program opens itself from outside the cluster's range",
    ),
    _rule(
        FailureKind.COLLECTIVE_TIMEOUT,
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)"
        r"|monitoredBarrier|wait timeout after \d+ms",
        "a collective did not end in its time, as another rank did not take part: look for a rank "
        "that is stuck, slower, or on another branch of the program",
    ),
    _rule(
        FailureKind.NO_CONNECTION,
        r"timed out after \d+ms while trying to connect|connectFullMesh failed|No route to host"
        r"|Network is unreachable|Connection refused|Gloo connect.{0,20} failed|ncclSystemError"
        r"|ibv_\w+ failed|Call to connect .{0,60}failed|gaierror|Name or service not known",
        "it could not connect to another rank: see that the nodes reach each other on every port "
        "(firewall), and that NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name the right network",
    ),
    _rule(
        FailureKind.PEER_LOST,
        r"Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe"
        r"|ncclRemoteError|remote process exited|socket (?:was )?closed|NCCL communicator was "
        r"aborted|Failed to recv, got 0 bytes|Connection was likely closed",
        "it lost the connection to another rank, and none has said why: look for one that ended "
        "early, or for a node or a network that failed",
    ),
    _rule(
        FailureKind.EXEC_FORMAT,
        r"Exec format error|is no program: |\[Errno 8\]|cannot execute binary file",
        "the program is not of this machine's kind, or has no first line such as #!/bin/sh",
    ),
    _rule(
        FailureKind.PERMISSION_DENIED,
        r"PermissionError: \[Errno 13\] Permission denied: '?([^'\n]+)'?",
        "the user of the job may not use {0}: change its mode or owner on that node",
    ),
    _rule(
        FailureKind.PERMISSION_DENIED,
        r"Permission denied",
        "the user of the job may not do that on that node: change the mode or owner of the file",
    ),
)

_SIGABRT: Final = 6
_BY_SIGNAL: Final = {
    4: Verdict(
        FailureKind.ILLEGAL_INSTRUCTION,
        "",
        "a library was built for another kind of processor than that node has",
    ),
    _SIGABRT: Verdict(
        FailureKind.ABORTED,
        "",
        "a library gave up; NCCL's own words come with env NCCL_DEBUG=INFO",
    ),
    7: Verdict(
        FailureKind.SHARED_MEMORY,
        "",
        "most often /dev/shm of the node is full: use fewer data loader workers, or make it larger",
    ),
    9: Verdict(
        FailureKind.KILLED,
        "",
        "signal 9 came from outside, most often from the kernel's out-of-memory killer: check the "
        "memory of that node (dmesg -T says what was killed)",
    ),
    11: Verdict(
        FailureKind.SEGFAULT,
        "",
        "a library crashed: env PYTHONFAULTHANDLER=1 shows where; suspect an extension that was "
        "built against another torch",
    ),
    15: Verdict(
        FailureKind.TERMINATED, "", "somebody on that node ended it; it was not stopped by Muster"
    ),
}

_OF_RANK: Final = re.compile(r"^\[rank\d+\]: ?")
_WARNING: Final = re.compile(r"^(?:\[rank\d+\]:)?\[W|^[\w./-]*:\d+: \w*Warning: |Warning: ")


def _last_words(written: str) -> tuple[str, str, bool]:
    """The line to quote, the text to judge by, and whether an exception ended the process.

    Where there is a traceback, what was logged before it does not count: a connection that was lost
    and made again is not why the program ended.
    """
    written = written[-WRITTEN_CHARS_MAX:]
    lines = [_OF_RANK.sub("", line.rstrip()) for line in written.splitlines()]
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    for at in range(frames[-1] + 1 if frames else len(lines), len(lines)):
        if lines[at] and not lines[at][0].isspace():
            rest = [line for line in lines[at:] if not _WARNING.search(line)]
            return _cut(lines[at]), "\n".join(rest), True
    told = [line.strip() for line in lines if line.strip() and not _WARNING.search(line)]
    told = told[-LINES_JUDGED:]
    return (_cut(told[-1]) if told else ""), "\n".join(told), False


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}..."
