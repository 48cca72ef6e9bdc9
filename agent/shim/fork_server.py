"""The fork server: a small process that makes shims by one fork each.

A fork takes a millisecond, which saves the start of an interpreter.

Run as `python -I -S -c "...; from agent.shim.fork_server import main; main(FD)"`, FD being a packet
socket to the agent. A request is {"id", "task_dir", "task", options...}; the answer {"id"} with
"pid" or "error". Once the answer is sent, the shim's socket accepts connections. If a request
carries a connected socket, the shim serves that from the start as well. The fork server ends when
the agent closes its end of the socket. Shims that have a task live on.
"""

from __future__ import annotations

import gc
import json
import os
import pwd  # noqa: F401
import selectors
import signal
import socket

from agent.shim import exit_record
from agent.shim.main import REQUEST_BYTES_MAX, run_shim
from agent.shim.options import Options
from agent.shim.programs.runner import arrange_fds
from agent.shim.system import cgroup, syscalls
from agent.shim.system.credentials import Credentials, own_identity

# The job's processes are set back to 0, so that the OOM killer takes the job before its shim.
OOM_SCORE = -998
# After so long without a request, a shim is forked ahead.
SPARE_PAUSE_S = 0.05
# Idle shims beyond this end after their task, so that a burst does not keep memory for ever.
IDLE_MAX = 2


def main(agent_fd: int) -> None:
    """Serve requests until the agent's end is closed."""
    agent = socket.socket(fileno=agent_fd)
    # Let the kernel reap dead shims.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    syscalls.prctl(syscalls.PR_SET_NAME, b"muster-forksrv")
    os.chdir("/")
    os.umask(0o077)
    _spare_from_oom()
    own = own_identity()
    bootstrap = bootstrap_text()
    gc.collect()
    gc.freeze()
    # If the agent has been killed, there is nobody to report to.
    try:
        agent.send(b'{"ready":true}')
        _Template(agent, own, bootstrap).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass


def bootstrap_text() -> bytes:
    """The programs that the job's interpreter runs: name to text, as JSON."""
    folder = os.path.join(os.path.dirname(__file__), "..", "bootstrap")
    texts = {}
    for name in ("main", "fork_server", "fork_safety", "forked_rank"):
        with open(os.path.join(folder, f"{name}.py"), encoding="utf-8") as file:
            texts[name] = file.read()
    return json.dumps(texts).encode()


class _Template:
    """Answer requests with shims that wait for a task.

    A shim whose task has ended waits again. If no shim waits, one is forked ahead when there is
    time.
    """

    def __init__(self, agent: socket.socket, own: Credentials, bootstrap: bytes) -> None:
        self._agent = agent
        self._own = own
        self._bootstrap = bootstrap
        # The options of the last request: the next request will probably have the same.
        self._options = Options()
        self._idle: list[_Shim] = []
        self._buried: list[int] = []
        # True once the leftovers of an earlier fork server's shims have been removed.
        self._swept = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(agent, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            # Wait before forking ahead: a burst of tasks comes first, and needs the processors
            # itself.
            at_rest = self._idle and not self._buried
            events = self._selector.select(None if at_rest else SPARE_PAUSE_S)
            if not events:
                self._tidy()
            # The agent last: a shim that waits again can serve the agent's next request.
            for key, _ in sorted(events, key=lambda event: event[0].fileobj is self._agent):
                if key.fileobj is not self._agent:
                    self._hear(key.data)
                elif not self._serve_agent():
                    return

    def _serve_agent(self) -> bool:
        """Serve one request. Returns False if the agent has gone; idle shims then end by
        themselves.
        """
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
            return {"error": f"{folder} cannot become a task directory: {error.strerror}"}
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
        """Give the task to a shim; returns its pid. Raises OSError if no shim can be forked."""
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
        """Handle news of a shim: it waits for a task again, or has ended."""
        try:
            waits = bool(shim.channel.recv(1))
        except OSError:
            waits = False
        if not waits:
            self._bury(shim)
        elif len(self._idle) < IDLE_MAX:
            self._idle.append(shim)
        else:
            # The shim ends when it sees its channel closed.
            self._let_go(shim)

    def _bury(self, shim: _Shim) -> None:
        """Drop a shim that has ended.

        If it was killed without a task, it left a cgroup and a runner that ends too. `_tidy`
        removes that cgroup. The agent sweeps the leftovers of shims that had a task.
        """
        self._let_go(shim)
        if shim in self._idle:
            self._idle.remove(shim)
            self._buried.append(shim.pid)

    def _let_go(self, shim: _Shim) -> None:
        self._selector.unregister(shim.channel)
        shim.channel.close()

    def _tidy(self) -> None:
        """Use a pause: remove the cgroups of dead shims, and fork one for the next task."""
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
            # The next request reports the error.
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
            # Keep none of the fork server's descriptors, least of all the lock of the folder of a
            # waiting task.
            channel = socket.socket(fileno=arrange_fds({}, theirs.detach()))
            code = run_shim(channel, self._options, self._own, self._bootstrap, ahead)
        finally:
            os._exit(code)


class _Shim:
    """A shim of this fork server. The channel carries tasks down, and a byte up whenever the shim
    waits.
    """

    __slots__ = ("channel", "pid")

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel


def open_folder(path: str) -> tuple[int, int, socket.socket]:
    """Open the task's folder, its lock and its socket, so that an answer means the shim is
    reachable.
    """
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
        # A socket's path is limited to 107 bytes, a folder's to 4095: bind from inside.
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
