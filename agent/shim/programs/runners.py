"""The processes that a shim forks, and the reaping of all its children, orphans included."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Sequence

from agent.shim.messages import ShimExit, ShimHosts, ShimPlaces
from agent.shim.programs.runner import PACKET_BYTES_MAX, Program, Runner, RunnerReport, fork_runner
from agent.shim.status import exit_of
from agent.shim.system.cgroup import Cgroup
from agent.shim.system.credentials import Credentials
from agent.shim.system.event_loop import Loop

OnReport = Callable[[RunnerReport], None]
OnEnd = Callable[[ShimExit], None]
REAPED_MAX = 256


class RunnerProcess:
    """A runner or the program it has become. Reports the result of each order once.

    `become` reports success and failure of the exec. `ended` is called last, and may be changed. If
    the process dies before an order is answered, only `ended` is called.
    """

    def __init__(self, runner: Runner, loop: Loop) -> None:
        self.pid = runner.pid
        self.ended: OnEnd = lambda _: None
        self._runner = runner
        self._loop = loop
        self._waiting: deque[OnReport] = deque()
        self._becomes: OnReport | None = None
        self._open = True
        loop.watch(runner.channel.fileno(), self.receive)

    def look_up(self, name: str, on_report: OnReport) -> None:
        """The same as Runner.look_up."""
        self._waiting.append(on_report)
        self._runner.look_up(name)

    def go_apart(
        self,
        identity: Credentials,
        hosts: ShimHosts | None,
        places: ShimPlaces | None,
        on_report: OnReport,
    ) -> None:
        """The same as Runner.go_apart."""
        self._waiting.append(on_report)
        self._runner.go_apart(identity, hosts, places)

    def enter(
        self,
        identity: Credentials,
        cwd: str,
        no_new_privileges: bool,
        namespaces: Sequence[int],
        on_report: OnReport,
        programs: Sequence[str] = (),
        path: str = "",
    ) -> None:
        """The same as Runner.enter."""
        self._waiting.append(on_report)
        self._runner.enter(identity, cwd, no_new_privileges, namespaces, programs, path)

    def become(self, program: Program, on_report: OnReport) -> None:
        """The same as Runner.become."""
        self._becomes = on_report
        self._runner.become(program)

    def receive(self) -> None:
        """Receive all pending answers. Called again for the last ones after its death."""
        while self._open:
            try:
                data = self._runner.channel.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # It ended with an order unread; earlier answers can still be read.
                continue
            except OSError:
                data = b""
            if not data:
                self.close()
            self._report(RunnerReport.parse(data), last=not data)

    def _report(self, report: RunnerReport, last: bool) -> None:
        becomes = self._becomes
        if report.failure is not None or last:
            # It carries out no further order.
            self._becomes = None
        if self._waiting and not last:
            self._waiting.popleft()(report)
        elif becomes is not None and not self._waiting:
            becomes(report)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.forget(self._runner.channel.fileno())
        self._runner.channel.close()


class Runners:
    """Keeps children, and reaps them and every orphan of the tree."""

    def __init__(
        self,
        loop: Loop,
        cgroup: Cgroup | None,
        runner: Runner | None,
        orphan_ended: Callable[[int, ShimExit], None],
    ) -> None:
        """`runner`: one that was forked ahead, or None."""
        self._loop = loop
        self._cgroup = cgroup
        self._orphan_ended = orphan_ended
        self._children: dict[int, RunnerProcess] = {}
        # The mount namespace of the task, and its IPC namespace, if it has them.
        self.namespaces: list[int] = []
        self._spare = None if runner is None else self._keep(runner)

    def take(self) -> RunnerProcess:
        """A child that waits for orders: the spare one, else a new one. Raises OSError."""
        spare, self._spare = self._spare, None
        return spare or self._keep(fork_runner(self._cgroup))

    def reap(self) -> bool:
        """Reap dead children. Returns True if no child is left, living or dead.

        A job may make orphans faster than they are reaped, so this ends after `REAPED_MAX` of them,
        and the next turn of the loop, which has timers and orders before, goes on.
        """
        for _ in range(REAPED_MAX):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            ended = exit_of(status)
            child = self._children.pop(pid, None)
            if child is None:
                self._orphan_ended(pid, ended)
                continue
            if child is self._spare:
                self._spare = None
            child.receive()
            child.ended(ended)
        os.kill(os.getpid(), signal.SIGCHLD)
        return False

    def close(self) -> None:
        """Close all channels. All processes have ended, and their answers are of no use
        any more.
        """
        for child in (*self._children.values(), *filter(None, [self._spare])):
            child.close()
        for namespace in self.namespaces:
            os.close(namespace)

    def share(self, child: RunnerProcess, ipc: bool) -> None:
        """Keep the namespaces of a runner for later ones. Raises OSError."""
        for name in ("mnt", "ipc") if ipc else ("mnt",):
            path = f"/proc/{child.pid}/ns/{name}"
            self.namespaces.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def _keep(self, runner: Runner) -> RunnerProcess:
        child = self._children[runner.pid] = RunnerProcess(runner, self._loop)
        return child
