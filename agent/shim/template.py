"""The template: a small process that becomes a shim by one fork, in a millisecond instead of an
interpreter's start.

Run as `python -I -S -c "...; from agent.shim.template import main; main(FD)"`, FD being a packet
socket to the agent. A request is {"id", "task_dir", "task", options...}; the answer {"id"} with
"pid" or "error". With the answer the shim's socket can be connected to. The template ends when the
agent's end of the socket is closed; its shims live on.
"""

from __future__ import annotations

import gc
import json
import os
import pwd  # noqa: F401
import signal
import socket
import time

from agent.shim import linux, record, shim
from agent.shim.cgroup import Cgroup
from agent.shim.identity import Identity, own_identity
from agent.shim.options import Options

REQUEST_BYTES_MAX = 65536
# The job's processes are set back to 0: memory must be taken from the job before its shim.
OOM_SCORE = -998
# Without a request for so long, and the next shim is forked ahead.
SPARE_PAUSE_S = 0.05
LOG = "shim.log"


def main(agent_fd: int) -> None:
    """Serve requests until the agent's end is closed."""
    agent = socket.socket(fileno=agent_fd)
    # A dead shim is nobody's zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    linux.prctl(linux.PR_SET_NAME, b"muster-template")
    os.chdir("/")
    os.umask(0o077)
    _spare_from_oom()
    own = own_identity()
    with open(os.path.join(os.path.dirname(__file__), "..", "bootstrap.py"), "rb") as file:
        bootstrap = file.read()
    gc.collect()
    gc.freeze()
    agent.send(b'{"ready":true}')
    _Template(agent, own, bootstrap).serve()


class _Template:
    """Answers requests. Between them it keeps one shim ready, whose forks then cost nobody time."""

    def __init__(self, agent: socket.socket, own: Identity, bootstrap: bytes) -> None:
        self._agent = agent
        self._own = own
        self._bootstrap = bootstrap
        self._options = Options()
        self._spare: Spare | None = None
        # Of spares that were killed; nobody else will remove them.
        self._left: list[Cgroup] = []

    def serve(self) -> None:
        while True:
            # Not at once: a burst of tasks comes first, and needs the processors itself.
            self._agent.settimeout(SPARE_PAUSE_S if self._spare is None else None)
            try:
                request = self._agent.recv(REQUEST_BYTES_MAX)
            except TimeoutError:
                self._left = [cgroup for cgroup in self._left if not cgroup.remove()]
                self._spare = self._fork_spare()
                continue
            if not request:
                return
            wish = json.loads(request)
            answer = self._answer(wish)
            self._agent.send(json.dumps({**answer, "id": wish["id"]}).encode())

    def _answer(self, wish: dict[str, object]) -> dict[str, object]:
        folder = str(wish["task_dir"])
        options = Options(**{name: wish[name] for name in Options.__slots__ if name in wish})  # type: ignore[arg-type]
        try:
            folder_fd, lock, listener = _open_folder(folder)
        except BlockingIOError:
            return {"error": f"{folder} belongs to a shim that is still alive"}
        except OSError as error:
            return {"error": f"{folder} cannot be made a task's folder: {error.strerror}"}
        with listener:
            try:
                pid = self._hand_over(wish, options, (folder_fd, lock, listener.fileno()))
                if pid is None:
                    pid = self._fork(str(wish["task"]), options, folder_fd, listener)
            except OSError as error:
                return {"error": f"this node can start no process: {error.strerror}"}
            finally:
                os.close(folder_fd)
                os.close(lock)
        return {"pid": pid}

    def _fork(self, task: str, options: Options, folder_fd: int, listener: socket.socket) -> int:
        cgroup = _cgroup(options)
        pid = os.fork()
        if pid:
            if cgroup is not None:
                cgroup.close()
            return pid
        code = 1
        try:
            os.setsid()
            self._agent.close()
            ready = shim.get_ready(cgroup)
            _redirect(folder_fd)
            code = shim.run(task, folder_fd, listener, options, self._own, self._bootstrap, ready)
        finally:
            os._exit(code)

    def _hand_over(
        self, wish: dict[str, object], options: Options, fds: tuple[int, int, int]
    ) -> int | None:
        """Give the task to the spare; None where there is none that would do, or it has died."""
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        with spare.channel:
            if (options.cgroup, options.cgroup_parent) != spare.made_for:
                # It ends by itself, and the next one will be of the right kind.
                self._options = options
                return None
            try:
                socket.send_fds(spare.channel, [json.dumps(wish).encode()], fds)
            except OSError:
                # It was killed. Its runner goes with it, but may not have gone yet.
                if spare.cgroup is not None:
                    self._left.append(spare.cgroup)
                return None
        return spare.pid

    def _fork_spare(self) -> Spare | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cgroup = _cgroup(self._options)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            return None
        if pid:
            theirs.close()
            if cgroup is not None:
                cgroup.close()
            made_for = (self._options.cgroup, self._options.cgroup_parent)
            return Spare(pid, ours, cgroup, made_for)
        code = 1
        try:
            os.setsid()
            self._agent.close()
            ours.close()
            code = self._wait_for_task(theirs, cgroup)
        finally:
            os._exit(code)

    def _wait_for_task(self, channel: socket.socket, cgroup: Cgroup | None) -> int:
        """The spare's life. It ends with its template, as long as it has no task."""
        ready = shim.get_ready(cgroup)
        shim.rehearse(self._options, self._own)
        data, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3, socket.MSG_CMSG_CLOEXEC)
        channel.close()
        if not data:
            ready.undo()
            return 0
        # The lock's descriptor stays open for as long as this process lives.
        folder_fd, _, listening = fds
        _redirect(folder_fd)
        listener = socket.socket(fileno=listening)
        listener.setblocking(False)
        wish = json.loads(data)
        options = Options(**{name: wish[name] for name in Options.__slots__ if name in wish})
        task = str(wish["task"])
        return shim.run(task, folder_fd, listener, options, self._own, self._bootstrap, ready)


class Spare:
    """A shim that waits for its task. `made_for`: what cannot be changed in it any more."""

    __slots__ = ("cgroup", "channel", "made_for", "pid")

    def __init__(
        self,
        pid: int,
        channel: socket.socket,
        cgroup: Cgroup | None,
        made_for: tuple[bool, str | None],
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.cgroup = cgroup
        self.made_for = made_for


def _cgroup(options: Options) -> Cgroup | None:
    """Of its own for a shim's processes. The task may be unknown yet, so the name tells none."""
    if not options.cgroup:
        return None
    return Cgroup.make(options.cgroup_parent, f"shim-{os.getpid()}-{time.monotonic_ns()}")


def _open_folder(path: str) -> tuple[int, int, socket.socket]:
    """The folder, its lock and its socket, so that an answer means that the shim can be reached."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    lock = -1
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock = record.take_lock(folder_fd)
        try:
            os.mkdir(record.LOGS, 0o700, dir_fd=folder_fd)
        except FileExistsError:
            pass
        try:
            os.unlink(record.SOCKET, dir_fd=folder_fd)
        except FileNotFoundError:
            pass
        # A socket's path has 107 bytes at the most, a folder's 4095: bind from inside.
        os.fchdir(folder_fd)
        try:
            listener.bind(record.SOCKET)
        finally:
            os.chdir("/")
        listener.listen(16)
        listener.setblocking(False)
    except OSError:
        listener.close()
        for fd in (lock, folder_fd):
            if fd >= 0:
                os.close(fd)
        raise
    return folder_fd, lock, listener


def _redirect(folder_fd: int) -> None:
    """Hold on to nothing of the agent's: its terminal, its journal, its pipes."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(LOG, flags, 0o600, dir_fd=folder_fd)
    for target, fd in ((0, null), (1, log), (2, log)):
        os.dup2(fd, target)
    os.close(null)
    os.close(log)


def _spare_from_oom() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE))
    except OSError:
        # Only root may lower it.
        pass
