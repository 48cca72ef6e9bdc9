"""The namespaces of a task: its own hosts file, /tmp, /var/tmp, /dev/shm, IPC, and view of /proc.

With processes of others, the system bus is hidden: systemd reads their command lines for everybody.

Root makes them before any program of the job runs. All processes of the task share them, so ranks
share /dev/shm and shared memory of System V. They end with the task.
"""

from __future__ import annotations

import os

from agent.shim.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.shim.messages import ShimHosts, ShimPlaces
    from agent.shim.system.credentials import Credentials

_ON_DISK = ("/tmp", "/var/tmp")  # noqa: S108  mount points
_IN_MEMORY = "/dev/shm"  # noqa: S108  a mount point
_QUEUES = "/dev/mqueue"
# Mount over the folder, because a replaced socket would uncover a mount on the socket.
_BUSES = ("/run/dbus", "/var/run/dbus")
# The kernel's defaults for the machine's own /dev/shm.
_SHM = "mode=1777,size=50%"
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def make(
    identity: Credentials, hosts: ShimHosts | None, places: ShimPlaces | None
) -> Iterator[str]:
    """Give this process its own mount namespace, and with private places its own IPC namespace.
    Yields each path before it is mounted over. Raises OSError.
    """
    yield "mount namespace"
    syscalls.own_mounts()
    if hosts is not None:
        yield hosts.target
        syscalls.bind(hosts.source, hosts.target)
    if places is None:
        return
    if places.hide:
        # First, so that a link of the job to /proc leads to this one.
        yield "/proc"
        syscalls.mount_new("proc", "/proc", syscalls.HIDDEN, runs_programs=False)
        for bus in {os.path.realpath(it) for it in _BUSES if os.path.isdir(it)}:
            yield bus
            syscalls.mount_new("tmpfs", bus, "mode=755,size=64k", runs_programs=False)
    if places.folder:
        yield from _make_temporary(identity, places)
        yield "IPC namespace"
        syscalls.own_ipc()
        if os.path.isdir(_QUEUES):
            # The mount of the machine shows the queues of the machine.
            yield _QUEUES
            syscalls.mount_new("mqueue", _QUEUES, "", runs_programs=False)


def _make_temporary(identity: Credentials, places: ShimPlaces) -> Iterator[str]:
    shown = _open_as(identity, (*places.shown, identity.home), places.made)
    own = os.open(places.folder, _FOLDER | os.O_NOFOLLOW)
    for target in _ON_DISK:
        yield target
        syscalls.bind(own, target)
    yield _IN_MEMORY
    syscalls.mount_new("tmpfs", _IN_MEMORY, _SHM, runs_programs=True)
    done: list[str] = []
    for path in sorted(shown):
        if any(is_below(path, above) for above in done):
            continue
        yield path
        # No user can have put a link there: these folders are new, and nobody else sees them.
        os.makedirs(path, 0o755, exist_ok=True)
        syscalls.bind(shown[path], path)
        done.append(path)
    for fd in {own, *shown.values()}:
        os.close(fd)


def is_below(path: str, above: str) -> bool:
    """True if `path` is `above` or below it."""
    return path == above or path.startswith(f"{above}/")


def _open_as(identity: Credentials, shown: Sequence[str], made: Sequence[str]) -> dict[str, int]:
    """Open the folders that would be hidden, by path, with the rights of the user alone. Missing
    ones of `made` are made. What the user cannot reach is left out, and so is a link to a folder
    elsewhere: root must not mount /proc or / again because a link of a job leads there.
    """
    found: dict[str, int] = {}
    groups, umask = os.getgroups(), os.umask(identity.umask)
    if identity.become:
        os.setgroups(identity.groups)
        os.setegid(identity.gid)
        os.seteuid(identity.uid)
    try:
        for path in (*shown, *made):
            if os.path.isabs(path):
                _open(os.path.normpath(path), path in made, found)
    finally:
        os.umask(umask)
        if identity.become:
            os.seteuid(os.getuid())
            os.setegid(os.getgid())
            os.setgroups(groups)
    return found


def _open(path: str, make: bool, found: dict[str, int]) -> None:
    if not (_is_hidden(path) or _is_hidden(os.path.realpath(path))):
        return
    try:
        if make:
            os.makedirs(path, exist_ok=True)
        fd = os.open(path, _FOLDER)
    except OSError:
        return  # the step that needs it reports it
    # Read the path of the open folder, because the user may have replaced a link since.
    real = os.readlink(f"/proc/self/fd/{fd}")
    if not _is_hidden(real):
        os.close(fd)
        return
    for it in (path, real):
        if _is_hidden(it):
            found.setdefault(it, fd)


def _is_hidden(path: str) -> bool:
    """True if a path is below a place that the job has for itself."""
    places = (*_ON_DISK, _IN_MEMORY)
    # On some machines one of them is a link.
    real = (os.path.realpath(place) for place in places)
    return any(is_below(path, place) and path != place for place in (*places, *real))
