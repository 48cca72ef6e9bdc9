"""Linux calls that the os module lacks: prctl, fork into a cgroup, mounts, and readers of /proc."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import time
from collections.abc import Iterable, Iterator

from agent.shim.system.libc import libc

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_PF_EXITING = 0x4
_SYS_CLONE3 = 435
_SYS_CLOSE_RANGE = 436
SYS_KEYCTL = {
    "x86_64": 250,
    "i686": 288,
    "aarch64": 219,
    "armv7l": 311,
    "ppc64le": 271,
    "s390x": 280,
    "riscv64": 219,
    "loongarch64": 219,
}
_KEYCTL_JOIN_SESSION_KEYRING = 1
# The highest possible descriptor.
FD_MAX = 2**31 - 1
_CLONE_INTO_CGROUP = 0x200000000

_CLONE_NEWNS = 0x20000
_CLONE_NEWIPC = 0x8000000
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MS_SLAVE = 1 << 19
_MNT_DETACH = 2

# Processes of others are not listed. Members of group 0 still see them.
HIDDEN = "hidepid=2"

# The kernel allows 6 MiB for arguments and environment together.
ENVIRONMENT_BYTES_MAX = 8 << 20
_READ_BYTES = 1 << 16
_STATE_FIELDS = (b"State:", b"PPid:", b"Threads:", b"VmSize:")
_TICKS = os.sysconf("SC_CLK_TCK")
_VALUES_MAX = 64

_SIG_SETMASK = 2
# A sigset_t.
_NO_SIGNALS = ctypes.create_string_buffer(128)

# PyDLL keeps the GIL during the call, so that the child does not wait for it.
_libc_locked = ctypes.PyDLL(None, use_errno=True)
# Look these up once: a lookup in each child would copy about fifty pages.
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
_sigprocmask = libc.sigprocmask
_close_range = libc["syscall"]
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
    """Like os.fork, but create the child in the cgroup whose folder is `cgroup_fd`.

    Moving a running child takes the kernel 10 to 20 ms on an idle machine, because it waits for an
    RCU grace period. This takes less than 1 ms. For single-threaded processes only. Raises OSError
    (kernels before 5.7).
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
    """Close descriptors `first` to `last`, both included. Returns False on kernels before 5.9."""
    return first > last or _close_range(_SYS_CLOSE_RANGE, first, last, 0) == 0


def own_keyring() -> None:
    """Give the calling process an empty session keyring. Raises OSError.

    Does nothing where the kernel has no keys (ENOSYS) or a container's filter forbids the call
    (EPERM): its processes cannot use keys either. Nor on machines without a known number of the
    call, which the agent reports.
    """
    number = SYS_KEYCTL.get(os.uname().machine)
    if number is None:
        return
    command, name = ctypes.c_long(_KEYCTL_JOIN_SESSION_KEYRING), ctypes.c_void_p(None)
    if libc.syscall(ctypes.c_long(number), command, name) < 0:
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EPERM):
            raise OSError(code, os.strerror(code))


def unblock_signals() -> None:
    """Unblock all signals. signal.pthread_sigmask would also make enums of the blocked ones."""
    _sigprocmask(_SIG_SETMASK, _NO_SIGNALS, None)


def own_mounts() -> None:
    """Give the calling thread a mount namespace of its own. Raises OSError.

    Later mounts of the machine appear in it too, such as home folders that an automounter mounts.
    Its own mounts appear nowhere else.
    """
    _check(libc.unshare(ctypes.c_int(_CLONE_NEWNS)))
    _mount(None, "/", _MS_REC | _MS_SLAVE)


def own_ipc() -> None:
    """Give the calling process an IPC namespace of its own: System V memory, semaphores and
    queues, and POSIX message queues. All of them end with its last process. Raises OSError.
    """
    _check(libc.unshare(ctypes.c_int(_CLONE_NEWIPC)))


def join(namespace: int) -> None:
    """Move the calling process to a namespace; to a mount namespace with its root. Raises
    OSError.
    """
    _check(libc.setns(ctypes.c_int(namespace), ctypes.c_int(0)))


def bind(source: str | int, target: str) -> None:
    """Mount `source`, a path or a descriptor, over `target`, with all mounts below. Raises
    OSError.
    """
    path = source if isinstance(source, str) else f"/proc/self/fd/{source}"
    _mount(path, target, _MS_BIND | _MS_REC)


def mount_new(kind: str, target: str, options: str, runs_programs: bool) -> None:
    """Mount a new file system of a kind (tmpfs, proc) over `target`. Raises OSError."""
    flags = _MS_NOSUID | _MS_NODEV | (0 if runs_programs else _MS_NOEXEC)
    _mount(kind, target, flags, kind, options)


def bind_privately(source: str, target: str) -> None:
    """Give the calling thread a mount namespace in which `target` is `source`. Raises OSError."""
    own_mounts()
    bind(source, target)


def unmount(fd: int) -> None:
    """Lazily unmount the mount in which `fd` was opened, even if in use. Raises OSError.

    Made private first: mounts below it may be shared with their origin, and would be unmounted
    there as well.
    """
    target = f"/proc/self/fd/{fd}"
    _mount(None, target, _MS_REC | _MS_PRIVATE)
    _check(libc.umount2(os.fsencode(target), ctypes.c_int(_MNT_DETACH)))


def _mount(
    source: str | None, target: str, flags: int, kind: str | None = None, options: str = ""
) -> None:
    said = None if source is None else os.fsencode(source)
    of_kind = None if kind is None else kind.encode()
    more = options.encode() or None
    _check(libc.mount(said, os.fsencode(target), of_kind, ctypes.c_ulong(flags), more))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def prctl(option: int, value: int | bytes) -> None:
    """Call prctl. Raises OSError."""
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    unused = ctypes.c_ulong(0)
    if libc.prctl(option, argument, unused, unused, unused) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@functools.cache
def boot_id() -> str:
    """The kernel's boot id, which changes with each boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def state_of(pid: int, proc: str = "/proc") -> tuple[str, int, bool] | None:
    """State letter and parent of a process, and whether more about it can be read.

    Returns None if it is gone. A process whose first thread has ended looks like a zombie while
    other threads live. It is not one, and its letter is L.

    While a process is in `exec`, readers of its `stat`, `environ`, `io`, `wchan` and `ns` wait for
    it in the kernel. A program can make that last for ever: the end of its old memory waits for a
    request to a FUSE file system that nobody answers. `status` never waits. In `exec` a process has
    one thread, it waits in state D, and it has memory, which one that exits has not.
    """
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if line.startswith(_STATE_FIELDS))
        letter, threads = lines[b"State"].split()[0].decode(), int(lines[b"Threads"])
    except (OSError, KeyError):
        return None
    if letter == "Z" and threads > 1:
        letter = "L"
    return letter, int(lines[b"PPid"]), not _may_be_in_exec(lines)


def _may_be_in_exec(status: dict[bytes, bytes]) -> bool:
    waits = status[b"State"].split()[0] == b"D"
    return waits and int(status[b"Threads"]) == 1 and b"VmSize" in status


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent and start time (clock ticks since boot) of a process.

    Returns None if it is gone. If a read of its start time could last for ever (`state_of`), this
    is the time now, negative: it started before.
    """
    state = state_of(pid)
    if state is None:
        return None
    letter, parent, readable = state
    if not readable:
        return letter, parent, -int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
    fields = _stat_fields(pid)
    return None if fields is None else (letter, parent, int(fields[19]))


def same_start(listed: int, now: int) -> bool:
    """True if start times that `stat_of` returned for a pid, one after the other, may be of one
    process. Two that could not be read count as one.
    """
    if listed >= 0:
        return now == listed or now < 0
    return now <= -listed


def exiting(pid: int, start: int) -> bool:
    """True if that process is gone or exiting, and so runs no more of its program."""
    state = state_of(pid)
    if state is None:
        return True
    if not state[2]:
        return False
    fields = _stat_fields(pid)
    return (
        fields is None
        or int(fields[19]) != start
        or fields[0] in (b"Z", b"X")
        or bool(int(fields[6]) & _PF_EXITING)
    )


def _stat_fields(process: int | str) -> list[bytes] | None:
    """The fields of `stat` after the name. Returns None if the process or thread is gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The name stands in brackets and may contain anything, brackets too.
    return line[line.rfind(b")") + 2 :].split()


def doomed(pid: int) -> bool:
    """True if no thread of the process will ever run its program again.

    Each thread is gone, exiting, or has a SIGKILL pending.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(_is_doomed(f"{pid}/task/{thread}") for thread in threads)


def _is_doomed(thread: str) -> bool:
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            status = dict(line.split(b":", 1) for line in file if b":" in line)
    except OSError:
        return True
    pending = int(status[b"SigPnd"], 16) | int(status[b"ShdPnd"], 16)
    if pending >> (signal.SIGKILL - 1) & 1:
        return True
    if _may_be_in_exec(status):
        return False
    fields = _stat_fields(thread)
    return fields is None or fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def environment_of(pid: int, bytes_max: int = ENVIRONMENT_BYTES_MAX) -> bytes:
    """The environment with which a process was started: `\\0NAME=VALUE\\0NAME=VALUE\\0`.

    Returns b"\\0" if the process is gone, another user's or, for now, in `exec` (`state_of`). A
    process can make the kernel show any part of its memory instead, so the read is bounded by the
    size of an environment.
    """
    found = bytearray(b"\0")
    state = state_of(pid)
    if state is None or not state[2]:
        return b"\0"
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            while len(found) <= bytes_max and (part := file.read(_READ_BYTES)):
                found += part
    except OSError:
        return b"\0"
    return bytes(found)


def values_of(environment: bytes, name: str) -> Iterator[bytes]:
    """The values of a variable in what `environment_of` returns, `_VALUES_MAX` at most.

    It is searched and not split: a job's environment may have millions of variables.
    """
    wanted = b"\0%b=" % name.encode()
    at = -1
    for _ in range(_VALUES_MAX):
        at = environment.find(wanted, at + 1)
        if at < 0:
            return
        begin = at + len(wanted)
        end = environment.find(b"\0", begin)
        if end < 0:
            return  # cut by the bound
        yield environment[begin:end]


def uids_of(pid: int) -> tuple[int, ...]:
    """The real, effective, saved and file system uid of a process. Returns () if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return tuple(int(field) for field in line.split()[1:])
    except OSError:
        pass
    return ()


def heeds(pid: int, number: int) -> bool:
    """True if a process blocks, ignores or catches a signal instead of dying of it at once."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if line.startswith(b"Sig"))
    except OSError:
        return False
    masks = [int(lines[name], 16) for name in (b"SigBlk", b"SigIgn", b"SigCgt") if name in lines]
    return any(mask >> (number - 1) & 1 for mask in masks)


def processes() -> dict[int, tuple[str, int]]:
    """Every visible process: pid to state letter and parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            state = state_of(int(name))
            if state is not None:
                found[int(name)] = state[:2]
    return found


def descendants(root: int) -> dict[int, int]:
    """Living processes below `root`: pid to start time, as `stat_of` returns it.

    Zombies are left out; their descendants are not.
    """
    everyone = processes()
    children: dict[int, list[int]] = {}
    for pid, (_, parent) in everyone.items():
        children.setdefault(parent, []).append(pid)
    below: list[int] = []
    todo = list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        below.append(pid)
        todo += children.get(pid, ())
    return living(below)


def living(pids: Iterable[int]) -> dict[int, int]:
    """Return the living of `pids`, without zombies: pid to start time, as `stat_of` returns it."""
    found = {}
    for pid in pids:
        stat = stat_of(pid)
        if stat is not None and stat[0] not in "ZX":
            found[pid] = stat[2]
    return found
