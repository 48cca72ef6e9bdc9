"""The main function of a shim process, which runs one task after the other until its channel
closes.

Reusing a shim saves a fork. No state of a task stays in its shim: all objects that know a task are
created for it and closed with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable

from agent.shim import commands, exit_record
from agent.shim.control_socket import Control
from agent.shim.messages import StoppedBy
from agent.shim.options import Options
from agent.shim.programs.runner import Runner, fork_runner, ready_for_programs
from agent.shim.status import encoded
from agent.shim.system import syscalls
from agent.shim.system.cgroup import Cgroup, prefix_of
from agent.shim.system.credentials import Credentials
from agent.shim.system.event_loop import Loop, now
from agent.shim.task import BEFORE_GATE, ENDED, ShimTask

_ALONE = "alone"
_COURSE: tuple[dict[str, object], ...] = (
    {"cmd": "lease", "ttl_s": 1.0},
    {"cmd": "prepare", "launcher": "none", "cwd": "/", "env": {}, "user": {"name": "nobody"}},
    {"cmd": "start", "argv": ["true"], "env": {"PATH": "/bin"}},
)
# Interval between two checks whether an abandoned task is clean.
ABANDONED_S = 0.05


REQUEST_BYTES_MAX = 65536
LOG = "shim.log"
# After so long without a task, the shim prepares what the next one needs.
READY_PAUSE_S = 0.05


def run_shim(
    channel: socket.socket, options: Options, own: Credentials, bootstrap: bytes, ahead: bool
) -> int:
    """Serve the tasks from the channel until its other end is closed; returns the exit code.

    `ahead`: no task is on its way, so there is time to prepare. `options` are a guess then.
    """
    _become_shim()
    ready = None
    if ahead:
        ready = _get_ready(options, ahead=True)
        warm_up(options, own)
    while True:
        channel.settimeout(READY_PAUSE_S if ready is None else None)
        try:
            data, fds, _, _ = socket.recv_fds(
                channel, REQUEST_BYTES_MAX, 4, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            ready = _get_ready(options, ahead=True)
            continue
        if not data:
            if ready is not None:
                ready.undo()
            return 0
        wish = json.loads(data)
        options = Options.of(wish)
        if ready is not None and ready.made_for != (options.cgroup, options.cgroup_parent):
            ready.undo()
            ready = None
        if ready is None:
            ready = _get_ready(options, ahead=False)
        if ready.cgroup is not None:
            ready.cgroup.limit(options.limits)
        code = _run(str(wish["task"]), fds, options, own, bootstrap, ready, channel)
        if code:
            return code
        ready = None


class Ready:
    """The parts of a task that can exist before the task is known.

    `made_for`: cgroup and cgroup_parent of the options.
    """

    __slots__ = ("cgroup", "made_for", "runner")

    def __init__(
        self, cgroup: Cgroup | None, runner: Runner | None, made_for: tuple[bool, str | None]
    ) -> None:
        self.cgroup = cgroup
        self.runner = runner
        self.made_for = made_for

    def undo(self) -> None:
        """Discard both: no task with these options will come."""
        if self.runner is not None:
            self.runner.channel.close()
            os.waitpid(self.runner.pid, 0)
        if self.cgroup is not None:
            self.cgroup.remove()
            self.cgroup.close()


def _become_shim() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    syscalls.prctl(syscalls.PR_SET_NAME, b"muster-shim")
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    ready_for_programs()
    _let_go_of_the_agents()


def _get_ready(options: Options, ahead: bool) -> Ready:
    """Prepare for the next task. `ahead`: there is time for the runner to warm up."""
    cgroup = None
    if options.cgroup:
        # The task may be unknown yet, so the name does not contain it.
        name = f"{prefix_of(os.getpid())}{time.monotonic_ns()}"
        cgroup = Cgroup.make(options.cgroup_parent, name)
    try:
        runner = fork_runner(cgroup, rehearsed=ahead)
    except OSError:
        # The task's preparation tries again, and can report what is wrong.
        runner = None
    return Ready(cgroup, runner, (options.cgroup, options.cgroup_parent))


def _let_go_of_the_agents() -> None:
    """Detach from the agent's terminal, journal and pipes, for the shim and its runners."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for target in range(3):
        os.dup2(null, target)
    os.close(null)


def _note_failure(folder_fd: int) -> None:
    """Write the traceback of this shim's failure into the task's folder.

    No other process can report it: the agent finds only a dead shim.
    """
    import traceback

    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(LOG, flags, 0o600, dir_fd=folder_fd), "w") as log:
            traceback.print_exc(file=log)
    except OSError:
        # The shim may be failing for the same reason.
        return


def warm_up(options: Options, own: Credentials) -> None:
    """Run the code paths of a task once: the first use after a fork copies memory, page by page."""
    loop = Loop()
    task = ShimTask("0.0.0", -1, options, own, b"", loop, None, None)
    syscalls.stat_of(os.getpid())
    syscalls.boot_id()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        control = Control(loop, ours, task.handle, lambda: task.status.document(now()))
        _watch_company(loop, control, task, options)
        control.flush()
    for document in _COURSE:
        commands.parse(json.loads(json.dumps(document)))
    task.handle(_COURSE[0])
    task.ranks.stream("stdout", 0, "rank-0.stdout")
    encoded(task.status.document(now()))
    loop.close()


def _run(
    name: str,
    fds: list[int],
    options: Options,
    own: Credentials,
    bootstrap: bytes,
    ready: Ready,
    channel: socket.socket,
) -> int:
    """Be the shim of task `name` until it is released; returns 0 when nothing of it is left.

    `fds`: the task's folder, its lock, its listening socket and, if given, the socket of the agent
    that requested the task. The fork server is notified of the end through `channel`.
    """
    folder_fd, lock, listening, *given = fds
    # Family and type are given so that Python does not ask the kernel.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=listening)
    listener.setblocking(False)
    try:
        with Loop() as loop:
            task = ShimTask(
                name, folder_fd, options, own, bootstrap, loop, ready.cgroup, ready.runner
            )
            exit_record.write_identity(folder_fd, name, task.mark, task.cgroup_path)
            exit_record.reserve_exit(folder_fd)
            control = Control(loop, listener, task.handle, lambda: task.status.document(now()))
            task.changed, task.flush = control.changed, control.flush
            alone = _watch_company(loop, control, task, options)
            if options.sigterm:
                loop.on_signal(signal.SIGTERM, lambda: _end(task, options, control, alone))
            for fd in given:
                control.take(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd))
            loop.run()
            os.unlink(exit_record.SOCKET, dir_fd=folder_fd)
            os.close(lock)
            _signal_ready(channel)
            # Closed last: when an agent sees its connection end, the folder has no owner and this
            # shim is ready for its next task.
            control.close()
            task.close()
        os.close(folder_fd)
    except Exception:  # noqa: BLE001  the process boundary
        _note_failure(folder_fd)
        return 1
    return 0


def _signal_ready(channel: socket.socket) -> None:
    try:
        channel.send(b"1")
    except OSError:
        # The fork server has ended. The next read of the channel shows it.
        return


def _end(task: ShimTask, options: Options, control: Control, alone: Callable[[], None]) -> None:
    """End the job with its own stop signal and grace, because the service manager ends this shim.

    If an agent is connected, it gets the status. If not, the shim waits for none.
    """
    options.linger_s = ABANDONED_S
    task.stop_as_asked(StoppedBy.STOP)
    if control.alone:
        alone()


def _watch_company(
    loop: Loop, control: Control, task: ShimTask, options: Options
) -> Callable[[], None]:
    """End the task if the shim is without an agent too long. A running job goes on.

    Returns a function that sets the timer anew after `options` have changed.
    """

    def look() -> None:
        if not control.alone:
            return
        phase = task.status.phase
        if phase in BEFORE_GATE:
            task.stop(StoppedBy.ABANDONED, signal.SIGKILL, 0.0)
            phase = task.status.phase
        if phase in ENDED:
            loop.stop()
        else:
            alone()

    def alone() -> None:
        if task.status.phase in BEFORE_GATE:
            wait_s = options.orphan_s
        elif task.status.stopped_by is StoppedBy.ABANDONED:
            wait_s = ABANDONED_S
        else:
            wait_s = options.linger_s
        loop.at(_ALONE, now() + wait_s, look)

    control.on_alone = alone
    control.on_company = lambda: loop.cancel(_ALONE)
    alone()
    return alone
