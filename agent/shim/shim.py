"""The shim process: what a forked child does to become one, and to end as one."""

from __future__ import annotations

import json
import os
import signal
import socket
import traceback

from agent.shim import commands, linux, record
from agent.shim.cgroup import Cgroup
from agent.shim.control import Control
from agent.shim.identity import Identity
from agent.shim.loop import Loop, now
from agent.shim.options import Options
from agent.shim.spawn import Runner, fork_runner
from agent.shim.status import StoppedBy
from agent.shim.task import BEFORE_GATE, ENDED, Task

_ALONE = "alone"
_COURSE: tuple[dict[str, object], ...] = (
    {"cmd": "lease", "ttl_s": 1.0},
    {"cmd": "prepare", "launcher": "none", "cwd": "/", "env": {}, "user": {"name": "nobody"}},
    {"cmd": "start", "argv": ["true"], "env": {"PATH": "/bin"}},
)
# Between two looks whether an abandoned task is clean.
ABANDONED_S = 0.05


class Ready:
    """What of a shim can be there before its task is known."""

    __slots__ = ("cgroup", "loop", "runner")

    def __init__(self, cgroup: Cgroup | None, runner: Runner | None, loop: Loop) -> None:
        self.cgroup = cgroup
        self.runner = runner
        self.loop = loop

    def undo(self) -> None:
        """There will be no task."""
        if self.runner is not None:
            self.runner.channel.close()
            os.waitpid(self.runner.pid, 0)
        if self.cgroup is not None:
            self.cgroup.remove()


def get_ready(cgroup: Cgroup | None) -> Ready:
    """Become a shim that has no task yet; its processes are to live in `cgroup`. Raises OSError."""
    # First of all: every page that is touched before a fork is paid for again after it.
    try:
        runner = fork_runner(cgroup)
    except OSError:
        # The task's preparation tries again, and can say what is wrong.
        runner = None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    linux.prctl(linux.PR_SET_NAME, b"muster-shim")
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    return Ready(cgroup, runner, Loop())


def rehearse(options: Options, own: Identity) -> None:
    """Use once what a task will use: the first use after a fork copies memory, page by page."""
    loop = Loop()
    task = Task("0.0.0", -1, options, own, b"", loop, None, None)
    signal.set_wakeup_fd(-1)
    linux.stat_of(os.getpid())
    linux.boot_id()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        control = Control(loop, ours, task.handle, lambda: task.status.document(now()))
        _watch_company(loop, control, task, options)
        control.flush()
    for document in _COURSE:
        commands.parse(json.loads(json.dumps(document)))
    task.handle(_COURSE[0])
    task.ranks.stream("stdout", 0, "rank-0.stdout")
    json.dumps(task.status.document(now()))


def run(
    name: str,
    folder_fd: int,
    listener: socket.socket,
    options: Options,
    own: Identity,
    bootstrap: bytes,
    ready: Ready,
) -> int:
    """Be the shim of task `name` until it is released; returns the exit code.

    The caller holds the folder's lock.
    """
    try:
        loop = ready.loop
        task = Task(name, folder_fd, options, own, bootstrap, loop, ready.cgroup, ready.runner)
        record.write_identity(folder_fd, name, task.mark, task.cgroup_path)
        control = Control(loop, listener, task.handle, lambda: task.status.document(now()))
        task.changed, task.flush = control.changed, control.flush
        _watch_company(loop, control, task, options)
        loop.run()
        os.unlink(record.SOCKET, dir_fd=folder_fd)
        control.close()
    except Exception:  # noqa: BLE001  the process boundary
        # Nobody else can say it: standard error is the task's shim.log, and the agent finds a dead
        # shim.
        traceback.print_exc()
        return 1
    return 0


def _watch_company(loop: Loop, control: Control, task: Task, options: Options) -> None:
    """A shim without an agent keeps a running job, and nothing else."""

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
