"""The runner: a child in its own session and cgroup that execs the job's program.

The shim forks it ahead of need. It waits for orders: look up an account, take on the job's user and
folder, become a program. If a directory server or a network folder hangs, it hangs the runner and
not the shim. Steps that may fail are done before the gate opens, so that only the exec is left.

Orders are marshalled packets. The runner answers each but the last with one packet of JSON, a
result or a failure. The shim parses it with care, because the runner may already be the job's user.
The exec closes the channel, which shows that the program runs. If the shim dies, the runner ends.

Before its exec a runner works with cold caches, and each page that it or the shim touches is
copied. So it does little, and little of that in Python.
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import marshal
import os
import resource
import signal
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence

from agent.shim.messages import ShimHosts, ShimPlaces
from agent.shim.programs import private_places
from agent.shim.programs.failure import Failure
from agent.shim.system import syscalls
from agent.shim.system.cgroup import Cgroup
from agent.shim.system.credentials import Credentials, look_up, take_on
from agent.shim.system.event_loop import close_quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Above every number to which a child's descriptors are moved.
_ASIDE = 200
_RIGHTS_BYTES = socket.CMSG_SPACE(32 * array.array("i").itemsize)
PACKET_BYTES_MAX = 65536
_BLOCKED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGXFSZ,
}
# This version of marshal interns no strings, which would touch the page of every string.
_PLAIN = 0
_DONE = b'{"result": true}'
# A larger program is sent in a memory file.
_INLINE_BYTES_MAX = 32768
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127


class Program:
    """The program that a runner execs.

    `candidates` are programs; the first that can be executed wins. A relative path with a slash is
    relative to the current folder; a bare name is looked up in PATH of `env`. `fds`: the child's
    number to ours. `python` is an interpreter or a prefix whose bin folder comes first on PATH; ""
    for none. Only the runner looks it up, because a file system that hangs must not hang the shim.
    """

    __slots__ = ("arguments", "candidates", "env", "fds", "python")

    def __init__(
        self,
        candidates: Sequence[str],
        arguments: Sequence[str],
        env: Mapping[str, str],
        fds: Mapping[int, int],
        python: str = "",
    ) -> None:
        self.candidates = candidates
        self.arguments = arguments
        self.env = env
        self.fds = fds
        self.python = python


class RunnerReport:
    """The answer of a runner."""

    __slots__ = ("failure", "result")

    def __init__(self, failure: Failure | None, result: object) -> None:
        self.failure = failure
        self.result = result

    @classmethod
    def parse(cls, data: bytes) -> RunnerReport:
        if not data:
            return cls(None, None)
        document = json.loads(data)
        if "result" in document:
            return cls(None, document["result"])
        return cls(Failure(**document), None)


class Runner:
    """The shim's end of one runner."""

    __slots__ = ("channel", "pid")

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel

    def look_up(self, name: str) -> None:
        """Request the account of that name; the result is an Identity's fields."""
        self._send({"do": "look_up", "name": name})

    def go_apart(
        self, identity: Credentials, hosts: ShimHosts | None, places: ShimPlaces | None
    ) -> None:
        """Order: make the namespaces of the task, with its hosts file and places."""
        order: dict[str, object] = {
            "identity": _fields(identity),
            "hosts": None if hosts is None else vars(hosts),
            "places": None if places is None else vars(places),
        }
        self._send({"do": "go_apart", **order})

    def enter(
        self,
        identity: Credentials,
        cwd: str,
        no_new_privileges: bool,
        namespaces: Sequence[int] = (),
        programs: Sequence[str] = (),
        path: str = "",
    ) -> None:
        """Order: join the task's namespaces, take on the user and enter the folder. One of
        `programs`, if there are any, has to be executable there; bare names are looked up in
        `path`.
        """
        order: dict[str, object] = {
            "identity": _fields(identity),
            "cwd": cwd,
            "no_new_privileges": no_new_privileges,
            "programs": list(programs),
            "path": path,
        }
        self._send({"do": "enter", **order}, namespaces)

    def become(self, program: Program) -> None:
        """Order: exec `program`."""
        document = marshal.dumps(
            {
                "candidates": list(program.candidates),
                "arguments": list(program.arguments),
                "env": dict(program.env),
                "python": program.python,
            },
            _PLAIN,
        )
        order: dict[str, object] = {"do": "become", "fds": list(program.fds)}
        if len(document) <= _INLINE_BYTES_MAX:
            self._send({**order, "program": document}, list(program.fds.values()))
            return
        # Environments may be larger than packets.
        fd = os.memfd_create("muster-program")
        try:
            os.write(fd, document)
            os.lseek(fd, 0, os.SEEK_SET)
            self._send(order, [fd, *program.fds.values()])
        finally:
            os.close(fd)

    def _send(self, order: dict[str, object], fds: Sequence[int] = ()) -> None:
        """Send an order. If the runner is dead, nothing happens: its end is reported when it is
        reaped.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.channel.sendmsg([marshal.dumps(order, _PLAIN)], rights)
        except OSError:
            return


def _fields(identity: Credentials) -> dict[str, object]:
    return {name: getattr(identity, name) for name in Credentials.__slots__}


def fork_runner(cgroup: Cgroup | None, rehearsed: bool = False) -> Runner:
    """Fork a runner. `rehearsed`: it has time to warm up. Raises OSError (no memory, no process
    number left).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with theirs:
        try:
            pid = os.fork() if cgroup is None else cgroup.fork()
        except OSError:
            ours.close()
            raise
        if pid == 0:
            _run(theirs, rehearsed)
    return Runner(pid, ours)


def _run(channel: socket.socket, rehearsed: bool) -> NoReturn:
    """Run the orders. Never returns, even after an error: otherwise there would be two shims."""
    code = EXIT_CANNOT_RUN
    try:
        _close_all_but([0, 1, 2, channel.fileno()])
        # Everything that does not depend on the job.
        signal.set_wakeup_fd(-1)
        syscalls.unblock_signals()
        os.setsid()
        _no_oom_exception()
        os.umask(0o022)
        if rehearsed:
            _rehearse()
        code = _Orders(channel).obey()
    except BaseException:  # noqa: BLE001  the process boundary
        os._exit(EXIT_CANNOT_RUN)
    os._exit(code)


def _rehearse() -> None:
    """Run the code paths of the orders once: the first use after a fork copies memory, page by
    page.
    """
    document = _read(marshal.dumps({"env": {"PATH": os.defpath}, "candidates": ["true"]}, _PLAIN))
    list(_paths(document["candidates"], document["env"]))


def _read(order: bytes) -> dict[str, Any]:
    """Parse an order. marshal is safe here: the other end of the channel belongs to the
    shim alone.
    """
    document: dict[str, Any] = marshal.loads(order)  # noqa: S302
    return document


class _Orders:
    """Receive and carry out orders. After a failure the runner reports it and ends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._answers = channel.fileno()
        self._stage, self._path = "", ""

    def obey(self) -> int:
        """Carry out orders until the exec. Returns an exit code if the exec does not happen."""
        try:
            while True:
                order, fds = self._next()
                match order.get("do"):
                    case "look_up":
                        self._look_up(str(order["name"]))
                    case "go_apart":
                        self._go_apart(order)
                    case "enter":
                        self._enter(order, fds)
                    case "become":
                        self._become(order, fds)
                    case _:
                        return 0
        except (OSError, LookupError, ValueError) as error:
            number = error.errno or 0 if isinstance(error, OSError) else 0
            text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            failure = {"stage": self._stage, "path": self._path, "code": number, "text": text}
            os.write(self._answers, json.dumps(failure).encode())
            return EXIT_NOT_FOUND if number == errno.ENOENT else EXIT_CANNOT_RUN

    def _next(self) -> tuple[dict[str, Any], list[int]]:
        data, controls, _, _ = self._channel.recvmsg(
            PACKET_BYTES_MAX, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        fds = array.array("i")
        for _, _, rights in controls:
            fds.frombytes(rights)
        return (_read(data) if data else {}), list(fds)

    def _answer(self, result: object) -> None:
        os.write(self._answers, json.dumps({"result": result}).encode())

    def _look_up(self, name: str) -> None:
        self._stage, self._path = "look_up", name
        found = look_up(name)
        self._answer(_fields(found))

    def _go_apart(self, order: dict[str, Any]) -> None:
        identity = Credentials(**order["identity"])
        hosts, places = order["hosts"], order["places"]
        self._stage = "apart"
        for self._path in private_places.make(
            identity,
            None if hosts is None else ShimHosts(**hosts),
            None if places is None else ShimPlaces(**places),
        ):
            pass
        os.write(self._answers, _DONE)

    def _enter(self, order: dict[str, object], fds: list[int]) -> None:
        identity = Credentials(**order["identity"])  # type: ignore[arg-type]
        self._stage, self._path = "apart", "namespaces"
        for namespace in fds:
            syscalls.join(namespace)
        self._stage, self._path = "user", identity.name
        take_on(identity, order["no_new_privileges"] is True)
        os.umask(identity.umask)
        self._stage, self._path = "folder", str(order["cwd"])
        os.chdir(self._path)
        programs: list[str] = order["programs"]  # type: ignore[assignment]
        if programs:
            self._stage, self._path = "program", programs[0]
            _find(programs, {"PATH": str(order["path"])})
        os.write(self._answers, _DONE)

    def _become(self, order: dict[str, object], fds: list[int]) -> None:
        text = order.get("program")
        if not isinstance(text, bytes):
            with open(fds.pop(0), "rb") as file:
                text = file.read()
        document = _read(text)
        candidates: list[str] = document["candidates"]
        self._stage, self._path = "program", candidates[0]
        numbers: list[int] = order["fds"]  # type: ignore[assignment]
        self._answers = arrange_fds(dict(zip(numbers, fds, strict=True)), self._answers)
        env: dict[str, str] = document["env"]
        folder = _bin_folder(document["python"])
        if folder:
            env["PATH"] = os.pathsep.join([folder, env["PATH"]])
        _exec(candidates, document["arguments"], env)


def arrange_fds(wanted: Mapping[int, int], pipe: int) -> int:
    """Arrange the descriptors of `wanted` and the pipe for the child, and close all others.

    Returns the pipe's new number.
    """
    aside = {}
    for target, fd in wanted.items():
        aside[target] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
    pipe = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
    for target in range(3):
        if target not in aside:
            aside[target] = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for target, fd in aside.items():
        os.dup2(fd, target, inheritable=True)
    # Otherwise a descriptor of the agent, or the lock of the shim, would outlive both in a job.
    _close_all_but([*aside, pipe])
    return pipe


def _close_all_but(wanted: Collection[int]) -> None:
    first = 0
    for fd in sorted(wanted):
        if not syscalls.close_range(first, fd - 1):
            break
        first = fd + 1
    else:
        if syscalls.close_range(first, syscalls.FD_MAX):
            return
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in wanted:
            close_quietly(fd)


def ready_for_programs() -> None:
    """Set signals and limits that programs inherit over fork and exec, once for all runners.

    Python ignores SIGPIPE and SIGXFSZ, and an ignored signal stays ignored after an exec. Therefore
    the shim blocks signals instead, and a runner unblocks all at once.
    """
    for number in _BLOCKED:
        signal.signal(number, signal.SIG_DFL)
    # A shell ignores it for programs in the background, such as an agent.
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    # RDMA pins memory: with systemd's default of 8 MiB, ibv_create_cq fails.
    _raise_limit(resource.RLIMIT_MEMLOCK, beyond_hard=True)
    _raise_limit(resource.RLIMIT_NOFILE, beyond_hard=False)


def _no_oom_exception() -> None:
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)
    except OSError:
        pass


def _raise_limit(which: int, beyond_hard: bool) -> None:
    _, hard = resource.getrlimit(which)
    wanted = [(hard, hard)]
    if beyond_hard:
        wanted.insert(0, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for pair in wanted:
        try:
            resource.setrlimit(which, pair)
        except (OSError, ValueError):
            continue
        return


def _exec(candidates: Sequence[str], arguments: Sequence[str], env: dict[str, str]) -> NoReturn:
    first: OSError | None = None
    for path, name in _paths(candidates, env):
        try:
            os.execve(path, [name, *arguments], env)
        except OSError as error:
            if first is None or _informative(error) > _informative(first):
                first = error
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                break
    raise first or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _find(candidates: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise OSError if no candidate is a file that may be executed."""
    code = errno.ENOENT
    for path, _ in _paths(candidates, env):
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return
            code = errno.EACCES
    raise OSError(code, os.strerror(code))


def _bin_folder(python: str) -> str:
    """The bin folder of a prefix, or the folder of an interpreter. Returns "" if neither exists."""
    if not python:
        return ""
    if os.path.isdir(f"{python}/bin"):
        return f"{python}/bin"
    return os.path.dirname(python) if os.path.isfile(python) else ""


def _informative(error: OSError) -> int:
    """Rank an exec error by how informative it is.

    "Not allowed" goes before "not found", and "not found" before a PATH entry that is not a
    folder.
    """
    return {errno.ENOTDIR: 0, errno.ENOENT: 1}.get(error.errno or 0, 2)


def _paths(candidates: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Possible paths of the program, each with the name for its argv[0]."""
    for candidate in candidates:
        if "/" in candidate:
            path = _absolute(candidate)
            yield path, path
        else:
            for folder in env.get("PATH", os.defpath).split(os.pathsep):
                yield _absolute(f"{folder}/{candidate}" if folder else candidate), candidate


def _absolute(path: str) -> str:
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)
