"""The template: a small process that becomes a shim by one fork, in a millisecond instead of an
interpreter's start.

Run as `python -I -S -c "...; from agent.shim.fork_server import main; main(FD)"`, FD being a packet
socket to the agent. A request is {"id", "task_dir", "task", options...}; the answer {"id"} with
"pid" or "error". With the answer the shim's socket can be connected to; a connected one that comes
with the request is served by the shim as well, from the start. The template ends when the agent's
end of the socket is closed; shims that have a task live on.
"""

from __future__ import annotations

import gc
import json
import os
import pwd  # noqa: F401
import selectors
import signal
import socket

from agent.shim import cgroup, exit_record, syscalls
from agent.shim.credentials import Identity, own_identity
from agent.shim.main import REQUEST_BYTES_MAX, run_shim
from agent.shim.options import Options
from agent.shim.runner import arrange_fds

# The job's processes are set back to 0: memory must be taken from the job before its shim.
OOM_SCORE = -998
# Without a request for so long, and a shim is forked ahead.
SPARE_PAUSE_S = 0.05
# More of them end when their task has: what a burst needed is not kept for ever.
IDLE_MAX = 2


def main(agent_fd: int) -> None:
    """Serve requests until the agent's end is closed."""
    agent = socket.socket(fileno=agent_fd)
    # A dead shim is nobody's zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    syscalls.prctl(syscalls.PR_SET_NAME, b"muster-template")
    os.chdir("/")
    os.umask(0o077)
    _spare_from_oom()
    own = own_identity()
    bootstrap = bootstrap_text()
    gc.collect()
    gc.freeze()
    # An agent that is killed has nobody to be told of it.
    try:
        agent.send(b'{"ready":true}')
        _Template(agent, own, bootstrap).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass


def bootstrap_text() -> bytes:
    """What the job's interpreter runs."""
    with open(os.path.join(os.path.dirname(__file__), "..", "bootstrap.py"), "rb") as file:
        return file.read()


class _Template:
    """Answers requests with shims that wait for a task. One that has ended its task waits again;
    where none waits, one is forked, ahead of need as soon as there is time.
    """

    def __init__(self, agent: socket.socket, own: Identity, bootstrap: bytes) -> None:
        self._agent = agent
        self._own = own
        self._bootstrap = bootstrap
        # Of the last request: the next will be like it.
        self._options = Options()
        self._idle: list[_Shim] = []
        self._buried: list[int] = []
        # True once what an earlier template's shims left has been removed.
        self._swept = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(agent, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            # Not at once: a burst of tasks comes first, and needs the processors itself.
            at_rest = self._idle and not self._buried
            events = self._selector.select(None if at_rest else SPARE_PAUSE_S)
            if not events:
                self._tidy()
            # The agent last: a shim that waits again can serve what it asks for.
            for key, _ in sorted(events, key=lambda event: event[0].fileobj is self._agent):
                if key.fileobj is not self._agent:
                    self._hear(key.data)
                elif not self._serve_agent():
                    return

    def _serve_agent(self) -> bool:
        """False when the agent has gone; its shims that wait go when they notice that we have."""
        request, given, _, _ = socket.recv_fds(
            self._agent, REQUEST_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC
        )
        if not request:
            return False
        wish = json.loads(request)
        answer = self._answer(wish, given)
        for fd in given:
            os.close(fd)
        self._agent.send(json.dumps({**answer, "id": wish["id"]}).encode())
        return True

    def _answer(self, wish: dict[str, object], given: list[int]) -> dict[str, object]:
        folder = str(wish["task_dir"])
        self._options = Options.of(wish)
        try:
            folder_fd, lock, listener = open_folder(folder)
        except BlockingIOError:
            return {"error": f"{folder} belongs to a shim that is still alive"}
        except OSError as error:
            return {"error": f"{folder} cannot be made a task's folder: {error.strerror}"}
        with listener:
            try:
                pid = self._hand_over(wish, (folder_fd, lock, listener.fileno(), *given))
            except OSError as error:
                return {"error": f"this node can start no process: {error.strerror}"}
            finally:
                os.close(folder_fd)
                os.close(lock)
        return {"pid": pid}

    def _hand_over(self, wish: dict[str, object], fds: tuple[int, ...]) -> int:
        """Give the task to a shim; returns its pid. Raises OSError where there can be none."""
        task = [json.dumps(wish).encode()]
        while self._idle:
            chosen = self._idle[-1]
            try:
                socket.send_fds(chosen.channel, task, fds)
            except OSError:
                self._bury(chosen)
                continue
            self._idle.pop()
            return chosen.pid
        chosen = self._fork(ahead=False)
        socket.send_fds(chosen.channel, task, fds)
        return chosen.pid

    def _hear(self, shim: _Shim) -> None:
        """It waits for a task again, or has ended."""
        try:
            waits = bool(shim.channel.recv(1))
        except OSError:
            waits = False
        if not waits:
            self._bury(shim)
        elif len(self._idle) < IDLE_MAX:
            self._idle.append(shim)
        else:
            # It ends when it sees that.
            self._let_go(shim)

    def _bury(self, shim: _Shim) -> None:
        """It has ended. One that was killed without a task has left a cgroup, with a runner that
        ends too; what one leaves that had a task is for the agent to sweep.
        """
        self._let_go(shim)
        if shim in self._idle:
            self._idle.remove(shim)
            self._buried.append(shim.pid)

    def _let_go(self, shim: _Shim) -> None:
        self._selector.unregister(shim.channel)
        shim.channel.close()

    def _tidy(self) -> None:
        """There is time: what the dead left, and a shim for the next task."""
        parent = self._options.cgroup_parent
        if not self._swept:
            self._swept = True
            cgroup.remove_dead(parent)
        self._buried = [pid for pid in self._buried if not cgroup.remove_all(parent, pid)]
        if self._idle:
            return
        try:
            self._idle.append(self._fork(ahead=True))
        except OSError:
            # The next request says so.
            return

    def _fork(self, ahead: bool) -> _Shim:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid:
            theirs.close()
            shim = _Shim(pid, ours)
            self._selector.register(ours, selectors.EVENT_READ, shim)
            return shim
        code = 1
        try:
            os.setsid()
            # Nothing of ours, least of all the lock of the folder that waits for it.
            channel = socket.socket(fileno=arrange_fds({}, theirs.detach()))
            code = run_shim(channel, self._options, self._own, self._bootstrap, ahead)
        finally:
            os._exit(code)


class _Shim:
    """One of this template. The channel carries tasks down, and up a byte whenever it waits."""

    __slots__ = ("channel", "pid")

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel


def open_folder(path: str) -> tuple[int, int, socket.socket]:
    """The folder, its lock and its socket, so that an answer means that the shim can be reached."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    lock = -1
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock = exit_record.take_lock(folder_fd)
        try:
            os.mkdir(exit_record.LOGS, 0o700, dir_fd=folder_fd)
        except FileExistsError:
            pass
        try:
            os.unlink(exit_record.SOCKET, dir_fd=folder_fd)
        except FileNotFoundError:
            pass
        # A socket's path has 107 bytes at the most, a folder's 4095: bind from inside.
        os.fchdir(folder_fd)
        try:
            listener.bind(exit_record.SOCKET)
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


def _spare_from_oom() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE))
    except OSError:
        # Only root may lower it.
        pass
