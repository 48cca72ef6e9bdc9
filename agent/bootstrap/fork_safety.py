"""Proof that a process with loaded modules can be forked: nothing is lost, shared or locked.

One stand-alone file for Python 3.9 or newer, run by the bootstrap in the job's interpreter.
"""

from __future__ import annotations

import _imp
import ctypes
import importlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

TRIAL_S = 5.0
ENVIRONMENT, USES_CUDA = "changed the environment", "uses CUDA"
# A wildcard among the variables that were read.
ALL = "*"
# A joined thread stays listed until the kernel has released it.
_THREADS_S = 1.0
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
# Signals 32 and 33: the C library handles them from its first thread on.
_OF_LIBC = 0b11 << 31
# Names in /proc/PID/status begin with these.
_PLACE = ("Cpus_allowed", "Mems_allowed")
_RIGHTS = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp")
# <linux/prctl.h>
_PR_GET_DUMPABLE, _PR_GET_TIMERSLACK = 3, 30
# The C library has no function for this system call.
_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
_IOPRIO_WHO_PROCESS = 1
_STARTED_THREAD = "started a thread"
# Exit codes of the trial. Codes from `_CHANGED` on are positions in the list of checks.
_FAILED, _WRONG, _CANNOT_SHOW, _CHANGED = 1, 2, 3, 10


class Unsafe(Exception):
    """The reason why a process cannot be forked; it follows the name of a module."""


class EnvironmentReads:
    """Records which variables Python code reads from `begin` to `end`.

    `readers`: the name of a variable, or ALL, to that of the module which was being imported.
    """

    def __init__(self) -> None:
        self.readers: dict[str, str] = {}
        self._kind: Any = type(os.environ)
        self._original = self._kind.__getitem__, self._kind.keys

    def begin(self, module: str) -> None:
        readers, (get, keys) = self.readers, self._original

        def read(environ: Any, name: Any) -> Any:
            # os.environb is of the same kind.
            if isinstance(name, (str, bytes)):
                readers.setdefault(os.fsdecode(name), module)
            return get(environ, name)

        def copy_all(environ: Any) -> Any:
            # dict() calls keys(); iteration over the items does not. tqdm iterates to search for a
            # prefix.
            readers.setdefault(ALL, module)
            return keys(environ)

        self._kind.__getitem__, self._kind.keys = read, copy_all

    def end(self) -> None:
        self._kind.__getitem__, self._kind.keys = self._original


def snapshot() -> dict[str, Any]:
    """The state of this process that a module must not change. Keys are the words for a change."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    ignored, caught = (int(status[name], 16) & ~_OF_LIBC for name in ("SigIgn", "SigCgt"))
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    libc = ctypes.CDLL(None)
    return {
        "changed the umask": status.get("Umask"),
        "changed the signal mask": status.get("SigBlk"),
        "changed the handling of a signal": (ignored, caught, handlers),
        ENVIRONMENT: dict(os.environ),
        "changed the working directory": _folder(),
        "changed a limit": _text_of("/proc/self/limits"),
        "changed its processors or priority": (
            [text for name, text in status.items() if name.startswith(_PLACE)],
            os.getpriority(os.PRIO_PROCESS, 0),
            (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
            libc.syscall(_IOPRIO_GET.get(os.uname().machine, -1), _IOPRIO_WHO_PROCESS, 0),
        ),
        "changed its timer slack": libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0),
        "changed its oom_score_adj": _text_of("/proc/self/oom_score_adj"),
        "changed its identity or rights": (
            [text for name, text in status.items() if name.startswith(_RIGHTS)],
            libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0),
        ),
        "set a timer": [any(signal.getitimer(timer)) for timer in _TIMERS],
        "replaced a stream of sys": [id(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        USES_CUDA: _uses_cuda(),
        "left a file, socket or device open": _open_files(),
        "shares memory": _shared_memory(),
        "left a child process": _has_children(),
        "holds the import lock": (_imp.lock_held(), _held_locks()),
    }


def _held_locks() -> list[str]:
    """The modules whose own import locks are held, now that no import is under way."""
    locks = getattr(sys.modules["_frozen_importlib"], "_module_locks", {})
    held = ((name, reference()) for name, reference in list(locks.items()))
    return sorted(name for name, lock in held if getattr(lock, "owner", None) is not None)


def compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise Unsafe if a module changed something. It may add variables to the environment."""
    for words, was in before.items():
        now = after[words]
        if words == ENVIRONMENT:
            now = {name: value for name, value in now.items() if name in was}
        if now != was:
            raise Unsafe(words)


def check_customised() -> None:
    """Raise Unsafe if Python's start did something that each rank has to do for itself."""
    monitoring = getattr(sys, "monitoring", None)
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    if sys.gettrace() or sys.getprofile() or any(tools):
        raise Unsafe("is loaded under a tracer or profiler")
    for name in ("sitecustomize", "usercustomize"):
        path = getattr(sys.modules.get(name), "__file__", None)
        if path is None:
            continue
        with open(path, "rb") as file:
            if b"RANK" in file.read():
                raise Unsafe(f"is loaded after {path}, which reads RANK")


def check_threads() -> None:
    """Raise Unsafe if a thread outlives a fork.

    OpenBLAS ends its pool before a fork and starts it again when needed. No other pool does.
    """
    if _threads() > 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    check_single()


def check_single() -> None:
    """Raise Unsafe if this process, which has just forked, has more than one thread."""
    until = time.monotonic() + _THREADS_S
    while _threads() > 1:
        if time.monotonic() > until:
            raise Unsafe(_STARTED_THREAD)
        time.sleep(0.001)


def check_trial(rehearse: Callable[[], None]) -> None:
    """Raise Unsafe if a forked child cannot `rehearse`, import, multiply and allocate, or if a fork
    itself changes this process or the child: modules can register functions for that.
    """
    # In this process itself, which is a child, torch may refuse CUDA already.
    before = {**snapshot(), USES_CUDA: False}
    pid = os.fork()
    if pid == 0:
        os._exit(_trial(before, rehearse))
    until = time.monotonic() + TRIAL_S
    status = None
    while status is None:
        ended, how = os.waitpid(pid, os.WNOHANG)
        if ended:
            status = how
        elif time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise Unsafe(f"makes a forked process hang for {TRIAL_S:g} s")
        else:
            time.sleep(0.002)
    if status == _CANNOT_SHOW << 8:
        raise Unsafe("cannot be forked here: this kernel lets no process change its /proc/environ")
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
    checked = [_STARTED_THREAD, *before]
    if 0 <= code - _CHANGED < len(checked):
        raise Unsafe(f"{checked[code - _CHANGED]} at a fork")
    if status:
        raise Unsafe(f"makes a forked process fail (wait status {status})")
    try:
        _check_unchanged(before)
    except Unsafe as error:
        raise Unsafe(f"{error} at a fork") from None


def _check_unchanged(before: dict[str, Any]) -> None:
    check_single()
    compare(before, snapshot())


def _trial(before: dict[str, Any], rehearse: Callable[[], None]) -> int:
    try:
        _check_unchanged(before)
    except Unsafe as error:
        return _CHANGED + [_STARTED_THREAD, *before].index(str(error))
    except BaseException:  # noqa: BLE001
        return _FAILED
    try:
        rehearse()
    except OSError:
        return _CANNOT_SHOW
    try:
        torch = sys.modules["torch"]
        sys.modules.pop("colorsys", None)
        importlib.import_module("colorsys")
        # Large enough for a parallel region of OpenMP.
        sums = torch.ones(1 << 17) + 1
        product = torch.ones(64, 64) @ torch.ones(64, 64)
        bytearray(1 << 22)
        return 0 if sums.sum() == 1 << 18 and product[0, 0] == 64 else _WRONG
    except BaseException:  # noqa: BLE001
        return _FAILED


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _text_of(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _open_files() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            # The descriptor of the listing itself.
            continue
    return found


def _shared_memory() -> list[str]:
    """The mappings that a rank could write to, and another rank read."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return [line for line in file if re.match(r"\S+ .w.s ", line)]


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _uses_cuda() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    # In a child, torch refuses CUDA if its driver was asked before the fork.
    refused = getattr(cuda, "_is_in_bad_fork", None)
    return cuda is not None and bool(cuda.is_initialized() or (refused and refused()))
