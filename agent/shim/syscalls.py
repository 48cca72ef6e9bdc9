"""What Linux offers and the os module does not: prctl, a fork into a cgroup, and the facts of
/proc.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_PF_EXITING = 0x4
_SYS_CLONE3 = 435
_SYS_CLOSE_RANGE = 436
# The greatest that there may be.
FD_MAX = 2**31 - 1
_CLONE_INTO_CGROUP = 0x200000000

_CLONE_NEWNS = 0x20000
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MS_SLAVE = 1 << 19
_MNT_DETACH = 2

# The kernel allows 6 MiB for arguments and environment together.
ENVIRONMENT_BYTES_MAX = 8 << 20
_READ_BYTES = 1 << 16

_SIG_SETMASK = 2
# A sigset_t.
_NO_SIGNALS = ctypes.create_string_buffer(128)

_libc = ctypes.CDLL(None, use_errno=True)
# Keeps the interpreter's lock over the call: the child must not wait for it.
_libc_locked = ctypes.PyDLL(None, use_errno=True)
# Looked up once: a child that did it would do it for itself alone, and copy fifty pages for it.
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
_sigprocmask = _libc.sigprocmask
_close_range = _libc["syscall"]
_close_range.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)


class _CloneArguments(ctypes.Structure):
    """struct clone_args of linux/sched.h."""

    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("pidfd", ctypes.c_uint64),
        ("child_tid", ctypes.c_uint64),
        ("parent_tid", ctypes.c_uint64),
        ("exit_signal", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("stack_size", ctypes.c_uint64),
        ("tls", ctypes.c_uint64),
        ("set_tid", ctypes.c_uint64),
        ("set_tid_size", ctypes.c_uint64),
        ("cgroup", ctypes.c_uint64),
    ]


def fork_into(cgroup_fd: int) -> int:
    """os.fork, the child born in the cgroup whose folder is `cgroup_fd`. Raises OSError (kernels
    before 5.7).

    Moving a child that lives already takes the kernel 10 to 20 ms on an idle machine (it waits for
    an RCU grace period), this takes less than one. For single-threaded processes only.
    """
    arguments = _CloneArguments(
        flags=_CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=cgroup_fd
    )
    _before_fork()
    pid: int = _libc_locked.syscall(
        ctypes.c_long(_SYS_CLONE3),
        ctypes.byref(arguments),
        ctypes.c_size_t(ctypes.sizeof(arguments)),
    )
    if pid == 0:
        _after_fork_child()
        return 0
    code = ctypes.get_errno()
    _after_fork_parent()
    if pid < 0:
        raise OSError(code, os.strerror(code))
    return pid


def close_range(first: int, last: int) -> bool:
    """Close all descriptors from `first` to `last`, both included; False where nothing was closed
    (kernels before 5.9).
    """
    return first > last or _close_range(_SYS_CLOSE_RANGE, first, last, 0) == 0


def unblock_signals() -> None:
    """All of them: signal.pthread_sigmask makes enums of those that were blocked."""
    _sigprocmask(_SIG_SETMASK, _NO_SIGNALS, None)


def bind_privately(source: str, target: str) -> None:
    """Give the calling thread a mount namespace in which `target` is `source`. Raises OSError.

    What the machine mounts later appears there, too (home folders that are mounted when somebody
    enters them); what is mounted there appears nowhere else.
    """
    _check(_libc.unshare(ctypes.c_int(_CLONE_NEWNS)))
    _mount(None, "/", _MS_REC | _MS_SLAVE)
    _mount(source, target, _MS_BIND)


def unmount(fd: int) -> None:
    """Take away what is mounted where `fd` was opened, used or not. Raises OSError.

    Made private first: what is mounted in it may be shared with the place that it was taken from,
    and would go from there, too.
    """
    target = f"/proc/self/fd/{fd}"
    _mount(None, target, _MS_REC | _MS_PRIVATE)
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(_MNT_DETACH)))


def _mount(source: str | None, target: str, flags: int) -> None:
    said = None if source is None else os.fsencode(source)
    _check(_libc.mount(said, os.fsencode(target), None, ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def prctl(option: int, value: int | bytes) -> None:
    """Raises OSError."""
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    unused = ctypes.c_ulong(0)
    if _libc.prctl(option, argument, unused, unused, unused) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@functools.cache
def boot_id() -> str:
    """One life of this kernel."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent and start time (clock ticks since boot) of a process; None where it is
    gone. One whose first thread has ended looks like a zombie as long as others of it live: it
    is none, and its letter is L.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets too.
    fields = line[line.rfind(b")") + 2 :].split()
    letter = fields[0].decode()
    if letter == "Z" and int(fields[17]) > 1:
        letter = "L"
    return letter, int(fields[1]), int(fields[19])


def exiting(pid: int, start: int) -> bool:
    """True when that process is gone or on its way: it runs no more of its program."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return True
    fields = line[line.rfind(b")") + 2 :].split()
    return (
        int(fields[19]) != start or fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)
    )


def doomed(pid: int) -> bool:
    """Whether no thread of a process will ever run its program again: it is gone, on its way, or
    will see a SIGKILL as soon as the kernel lets go of it.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(_is_doomed(f"/proc/{pid}/task/{thread}") for thread in threads)


def _is_doomed(thread: str) -> bool:
    try:
        with open(f"{thread}/status", "rb") as file:
            status = dict(line.split(b":", 1) for line in file if b":" in line)
        with open(f"{thread}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return True
    pending = int(status[b"SigPnd"], 16) | int(status[b"ShdPnd"], 16)
    fields = line[line.rfind(b")") + 2 :].split()
    killed = bool(pending >> (signal.SIGKILL - 1) & 1)
    return killed or fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def environment_of(pid: int) -> list[bytes]:
    """What a process was started with, as NAME=VALUE; empty where it is gone or another user's.

    A process can make the kernel show any part of its memory instead, so no more is read than an
    environment can have.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            found = bytearray()
            while len(found) < ENVIRONMENT_BYTES_MAX and (part := file.read(_READ_BYTES)):
                found += part
            return bytes(found).split(b"\0")
    except OSError:
        return []


def uids_of(pid: int) -> tuple[int, ...]:
    """The real, effective, saved and file system user of a process; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return tuple(int(field) for field in line.split()[1:])
    except OSError:
        pass
    return ()


def heeds(pid: int, number: int) -> bool:
    """Whether a process does anything else about a signal than to die of it."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if line.startswith(b"Sig"))
    except OSError:
        return False
    masks = [int(lines[name], 16) for name in (b"SigBlk", b"SigIgn", b"SigCgt") if name in lines]
    return any(mask >> (number - 1) & 1 for mask in masks)


def processes() -> dict[int, tuple[str, int, int]]:
    """Every process that can be seen: pid to state letter, parent, start time."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            stat = stat_of(int(name))
            if stat is not None:
                found[int(name)] = stat
    return found


def descendants(root: int) -> dict[int, int]:
    """Living processes below `root`: pid to start time.

    Zombies are left out, what is below them is not.
    """
    everyone = processes()
    children: dict[int, list[int]] = {}
    for pid, (_, parent, _) in everyone.items():
        children.setdefault(parent, []).append(pid)
    below: dict[int, int] = {}
    todo = list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        state, _, start = everyone[pid]
        if state not in "ZX":
            below[pid] = start
        todo += children.get(pid, ())
    return below
