"""A task: its phases, and the effect of each command and each process end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from agent.shim import exit_record
from agent.shim import messages as m
from agent.shim.commands import Malformed, parse, planned, signal_number
from agent.shim.exit_record import Logs
from agent.shim.options import Options
from agent.shim.programs.bootstrap_channel import LOG_FOLDER
from agent.shim.programs.deadlines import Lease, TimeLimit
from agent.shim.programs.launch import ProgramListener, Programs
from agent.shim.programs.preparation import (
    LAUNCHER_LOG,
    TAIL_BYTES,
    Preparation,
    PreparationListener,
)
from agent.shim.programs.rank_signals import RankSignals
from agent.shim.programs.ranks import Ranks
from agent.shim.programs.runner import EXIT_CANNOT_RUN, Runner
from agent.shim.programs.runners import Runners
from agent.shim.programs.termination import LAUNCHER_GRACE_S, LEFTOVER_GRACE_S, Termination
from agent.shim.status import Status
from agent.shim.system import port_probe
from agent.shim.system.cgroup import Cgroup
from agent.shim.system.credentials import Credentials
from agent.shim.system.event_loop import Loop, now
from agent.shim.system.kernel_log import KernelLog
from agent.shim.system.process_tree import ProcessTree
from muster.protocol.refusal_codes import RefusalCode

_LISTEN = "listen"
_CLOSING = "closing"
_LAST_WORDS = "last-words"
_LAUNCHER = "launcher"
LAST_WORDS_S = 0.5
TEXT_CHARS_MAX = 1024
RECORD_RETRY_S = 1.0
BEFORE_GATE = (m.ShimPhase.NEW, m.ShimPhase.PREPARING, m.ShimPhase.PREPARED)
ENDED = (m.ShimPhase.CLEANED, m.ShimPhase.REFUSED)


class ShimTask(PreparationListener, ProgramListener):
    """The task of one shim. `changed` is called when the status document changes."""

    def __init__(
        self,
        name: str,
        folder_fd: int,
        options: Options,
        own: Credentials,
        bootstrap: bytes,
        loop: Loop,
        cgroup: Cgroup | None,
        runner: Runner | None,
    ) -> None:
        """`cgroup` is the task's own; `runner` was forked into it."""
        self._folder_fd = folder_fd
        self._options = options
        self._own = own
        self._bootstrap = bootstrap
        self._loop = loop
        self.status = Status(name, LOG_FOLDER)
        self.changed: Callable[[], None] = lambda: None
        self.flush: Callable[[], None] = lambda: None
        # The name is unique in one coordinator only, and two may share this machine.
        self.mark = f"{name}:{os.getpid()}:{time.monotonic_ns()}"
        self._cgroup = cgroup
        self._tree = ProcessTree(cgroup)
        self._children = Runners(loop, cgroup, runner, self._orphan_ended)
        self._logs = Logs(folder_fd, None)
        counts = () if cgroup is None else (cgroup.oom_kills, cgroup.memory_limit_reached)
        self.ranks = Ranks(self.status, self._logs, KernelLog(self.cgroup_path).about, *counts)
        self._ending = Termination(loop, self._tree, options.unkillable_s, self._sweep, self._stuck)
        told = loop, self._tree, self.status, self.ranks, self._group
        self._signals = RankSignals(*told, self._signalled)
        warnings = RankSignals(*told, lambda _: self.changed(), "warning")
        self._limit = TimeLimit(loop, self.status, warnings, self.stop_as_asked)
        self._lease = Lease(loop, lambda s: self.stop(m.StoppedBy.LEASE, self._stop_signal, s))
        self._preparation: Preparation | None = None
        self._main_pid: int | None = None
        self._grace_s = m.GRACE_S
        self._stop_signal: int = signal.SIGTERM
        self._start_seen = False
        # The signal of a stop that came while the program ran.
        self._stopped_with: int | None = None
        # True once the whole tree is being ended, for any reason.
        self._ends = False
        self._leftovers = self._last_words = False
        self._unwritten_since: float | None = None  # the exit record
        loop.on_child(self._sweep)

    @property
    def cgroup_path(self) -> str | None:
        return None if self._cgroup is None else self._cgroup.path

    def close(self) -> None:
        """Free the resources. Called when no process is left and no agent is connected."""
        self._children.close()
        if self._cgroup is not None:
            self._cgroup.close()

    # --- commands -----------------------------------------------------------------------------

    def handle(self, document: dict[str, object]) -> None:
        """Carry out an agent's command. Malformed ones are reported in `complaint`."""
        try:
            command = parse(document)
        except Malformed as error:
            self._complain(str(error))
            return
        match command:
            case m.ShimPrepare():
                self._prepare(command)
            case m.ShimHostfile():
                self._write_hostfile(command.text)
            case m.ShimStart():
                self._start(command)
            case m.ShimStop():
                self.stop(m.StoppedBy.STOP, signal_number(command.signal), command.grace_s)
            case m.ShimSignal():
                self._signals.give(command)
            case m.ShimKill():
                self.stop(m.StoppedBy.KILL, signal.SIGKILL, 0.0)
            case m.ShimLease():
                if self.status.phase not in ENDED:
                    self._lease.renew(command)
            case m.ShimLimit():
                self._limit.change(command)
            case m.ShimRelease():
                if self.status.phase in ENDED:
                    self._loop.stop()
                else:
                    self._complain(
                        f"release came in phase {self.status.phase}; the task has not ended"
                    )

    def _complain(self, text: str) -> None:
        self.status.complaint = text
        self.changed()

    def _signalled(self, number: int) -> None:
        self.status.signalled = max(self.status.signalled, number)
        self.changed()

    def _prepare(self, command: m.ShimPrepare) -> None:
        if self.status.phase is not m.ShimPhase.NEW:
            return
        # Not sent at once: without `setup`, the task is prepared before anybody could read this.
        self.status.phase = m.ShimPhase.PREPARING
        self._preparation = Preparation(
            {"MUSTER_TASK": self.status.task, "MUSTER_SHIM": self.mark},
            command,
            self._own,
            self._loop,
            self._children,
            self._logs,
            self._bootstrap,
            self,
        )
        self._preparation.begin()

    def _write_hostfile(self, text: str) -> None:
        """Write the host file. If that fails, refuse the task: it must not start without."""
        try:
            exit_record.write_hostfile(self._folder_fd, text)
        except OSError as error:
            if self.status.phase is m.ShimPhase.PREPARED and not self._start_seen:
                why = f"The host file of the task cannot be written: {error.strerror}."
                self.refused(RefusalCode.SPAWN_FAILED, why)
                self._watch_end()

    def _start(self, command: m.ShimStart) -> None:
        if self.status.phase is not m.ShimPhase.PREPARED or self._start_seen or self._ends:
            return
        preparation = self._preparation
        assert preparation is not None
        self._start_seen = True
        self._grace_s, self._stop_signal = command.grace_s, signal_number(command.stop_signal)
        self.ranks.plan(*planned(command.argv))
        env = preparation.environment(command.env or {})
        if (gate := preparation.gate) is not None:
            self._main_pid = None if preparation.child is None else preparation.child.pid
            gate.start(command.argv, env, command.grace_s)
        else:
            self._run(preparation, command, env)
        if command.listen_port is not None:
            port, user = command.listen_port, preparation.identity
            port_probe.await_listener(self._loop, _LISTEN, port, user, self._listening)

    def _listening(self) -> None:
        self.status.listening = True
        self.changed()

    def _run(self, preparation: Preparation, command: m.ShimStart, env: dict[str, str]) -> None:
        if command.argv:
            programs = Programs(preparation, self.ranks, self.status, self)
            self._main_pid = programs.start(command, env)
            if self._ends:
                # No program could be started, so no process end may come to trigger the sweep.
                self._watch_end()
            return
        why = "The job has no command to run."
        self.status.refusal = m.ShimRefusal(RefusalCode.SPAWN_FAILED, why)
        self._main_ended(m.ShimExit(EXIT_CANNOT_RUN))
        self._watch_end()

    # --- reports of the preparation -------------------------------------------------------------

    def prepared(self) -> None:
        self._phase(m.ShimPhase.PREPARED)

    def fingerprint(self, versions: dict[str, object], boot_s: float) -> None:
        """Keep only versions that are texts, because readers would refuse the document."""
        names = m.ShimFingerprint.__annotations__
        texts = {name: text for name in names if isinstance(text := versions.get(name), str)}
        said = {name: text[:TEXT_CHARS_MAX] for name, text in texts.items()}
        known = {"python", "torch"} <= said.keys()
        self.status.fingerprint = m.ShimFingerprint(**said) if known else None
        self.status.boot_s = round(boot_s, 6)

    def stream(self, stream: str, rank: int | None, name: str) -> None:
        self.ranks.stream(stream, rank, name)
        self.changed()

    def refused(self, code: RefusalCode, text: str) -> None:
        self.status.refusal = m.ShimRefusal(code, text)
        self._ends = True
        self._ending.kill()

    def launcher_reported(self, message: dict[str, object]) -> None:
        match message.get("t"):
            case "running":
                self._started()
            case "open":
                self._give_files(message)
            case "rank":
                pid = message.get("pid")
                self.ranks.began(message.get("rank"), pid, ours=self._tree.has(pid))
                self._signals.poll_soon()
                self._limit.poll_soon()
                self._stop_late(pid)
            case "exit" | "start_method":
                self.ranks.reported(message)
            case "closing":
                self._close_ranks()
            case "failed" if message.get("code") == RefusalCode.PORT_TAKEN:
                text = str(message.get("text"))[:TEXT_CHARS_MAX]
                taken = m.ShimRefusal(RefusalCode.PORT_TAKEN, text)
                self.status.refusal = self.status.refusal or taken
            case _:
                pass  # sent by a newer bootstrap
        self.changed()
        if self._ends:
            self._watch_end()

    def launcher_ended(self, ended: m.ShimExit) -> None:
        self._main_ended(ended)

    # --- reports of the programs -----------------------------------------------------------------

    def program_runs(self) -> None:
        self._started()

    def rank_failed(self) -> None:
        self._close_ranks()

    def rank_ended(self) -> None:
        self.changed()

    def programs_ended(self, how: m.ShimExit) -> None:
        self._main_ended(how)

    # --- the run --------------------------------------------------------------------------------

    def _started(self) -> None:
        # A launcher that lies may report this before its start.
        if self.status.phase is m.ShimPhase.PREPARED and self._start_seen:
            self.status.started_at = now()
            self._phase(m.ShimPhase.RUNNING)
            self._limit.follow()

    def _give_files(self, message: dict[str, object]) -> None:
        gate = self._preparation.gate if self._preparation else None
        if gate is None or not self._start_seen:
            return
        fds: tuple[int, ...] = ()
        asked = self.ranks.asked(message)
        try:
            fds = () if asked is None else self.ranks.open(*asked)
        except OSError as error:
            # torchrun's own files are better than none.
            self._complain(f"The log of a rank cannot be made: {error.strerror}.")
        if asked is None:
            self._complain("The launcher asks for the logs of more ranks than the job has here.")
        else:
            # A pending kill was meant for the ranks of the previous round.
            self._loop.cancel(_CLOSING)
        gate.give_files(fds)
        for fd in fds:
            os.close(fd)

    def _close_ranks(self) -> None:
        """End the ranks after one failed: one signal and the job's own grace, also
        under torchrun.
        """
        if self._ends or self.ranks.signalled:
            return
        self.ranks.signalled = True
        self._ending.signal(self.ranks.pids(), self._stop_signal)

        def late() -> None:
            self._tree.signal(self.ranks.pids(), signal.SIGKILL)

        self._loop.at(_CLOSING, now() + self._grace_s, late)

    def _main_ended(self, how: m.ShimExit) -> None:
        """Note the end of the program or torchrun. Its leftovers get a short grace."""
        self._main_pid = None
        status = self.status
        if how.failed:
            # A launcher that was killed may not have reported which process is which rank.
            self.ranks.recognise(self._tree.members())
            if self._torchrun:
                status.launcher_said = self._logs.tail(LAUNCHER_LOG, TAIL_BYTES) or None
        if self._start_seen and status.exit is None:
            status.exit = how
        status.ended_at = status.ended_at or now()
        self.changed()
        if self._ends:
            return
        if status.started_at is None and status.refusal is None:
            text = f"The launcher {how.words()} before the job could start; was it killed?"
            status.refusal = m.ShimRefusal(RefusalCode.BOOTSTRAP_FAILED, text)
        self._ends = self._leftovers = True
        self._phase(m.ShimPhase.EXITED)
        if how.failed:
            # After a failure, the gang is stopped before the record is on disk. After a success,
            # everyone waits for the record only.
            self.flush()

    def _orphan_ended(self, pid: int, how: m.ShimExit) -> None:
        """Note the end of a rank whose launcher died first, which made it a child of the shim."""
        rank = self.ranks.of_pid(pid)
        if rank is not None:
            self.ranks.ended(rank, how, None)
            self.changed()

    # --- the end --------------------------------------------------------------------------------

    def stop(self, why: m.StoppedBy, number: int, grace_s: float) -> None:
        """Begin or shorten the stop of the task. Does nothing once the task has ended."""
        if self.status.phase in ENDED:
            return
        if self.status.phase in (*BEFORE_GATE, m.ShimPhase.RUNNING):
            self.status.stopped_by = self.status.stopped_by or why
            self._begin_stop(number)
        if grace_s == 0 or number == signal.SIGKILL or self.status.started_at is None:
            self._kill()
        else:
            self._ending.within(grace_s, self._kill)
        self._watch_end()

    def stop_as_asked(self, why: m.StoppedBy) -> None:
        """Stop with the signal and the grace that the job asked for."""
        self.stop(why, self._stop_signal, self._grace_s)

    def _begin_stop(self, number: int) -> None:
        if self._preparation is not None:
            self._preparation.abandon()
            if self._preparation.gate is not None:
                self._preparation.gate.stopping()
        self._ends = True
        self._phase(m.ShimPhase.STOPPING)
        if self.status.started_at is None or number == signal.SIGKILL:
            return
        self._stopped_with = number
        pids = self.ranks.pids()
        if not self._torchrun and self._main_pid is not None:
            self._ending.signal(self._tree.group(self._main_pid), number)
        elif not pids and self._main_pid is not None:
            self._ending.signal([self._main_pid], number)
        elif not (self.ranks.signalled and number == self._stop_signal):
            self._ending.signal(pids, number)

    def _stop_late(self, pid: object) -> None:
        """Stop a rank that starts during the stop: torchrun starts ranks one by one."""
        if self._stopped_with is not None and type(pid) is int and pid in self.ranks.pids():
            self._ending.signal([pid], self._stopped_with)

    def _group(self) -> list[int] | None:
        """The processes of a program that has no ranks."""
        alone = not self._torchrun and self._main_pid is not None
        return self._tree.group(self._main_pid or 0) if alone else None

    @property
    def _torchrun(self) -> bool:
        return self._preparation is not None and self._preparation.gate is not None

    def _kill(self) -> None:
        """SIGKILL the tree. The ranks die before their launcher, so that it can report it."""
        if self._loop.pending(_LAST_WORDS) is not None:
            return
        pids = self.ranks.pids()
        if self._main_pid in pids or not pids or self._main_pid is None:
            self._ending.kill()
            return
        self._last_words = True
        self._tree.signal(pids, signal.SIGKILL)
        self._loop.at(_LAST_WORDS, now() + LAST_WORDS_S, self._ending.kill)

    def _stuck(self, survivors: list[int], doomed: bool) -> None:
        status = self.status
        before = status.phase, status.survivors, status.doomed
        status.survivors, status.doomed = tuple(survivors), doomed
        if before != (m.ShimPhase.STUCK, status.survivors, doomed):
            self._phase(m.ShimPhase.STUCK)

    def _sweep(self) -> None:
        """Reap processes. If none is left, write the exit record."""
        childless = self._children.reap()
        if not self._ends or self.status.phase in ENDED:
            return
        if self._tree.empty(childless):
            self._write_exit_record()
        elif self._leftovers:
            self._leftovers = False
            self._end_leftovers()
        elif self.ranks.all_ended() and self._main_pid is not None:
            if self._last_words:
                self._ending.within(0.0, self._ending.kill)
            elif self._loop.pending(_LAUNCHER) is None:
                self._loop.at(_LAUNCHER, now() + LAUNCHER_GRACE_S, self._kill_launcher)

    def _kill_launcher(self) -> None:
        """Kill the launcher alone: leftovers of the ranks have the rest of the job's grace."""
        if self._main_pid is not None:
            self._tree.signal([self._main_pid], signal.SIGKILL)

    def _end_leftovers(self) -> None:
        pids = self.ranks.pids()
        if pids:
            # Their launcher has died, so the ranks have the full grace of the job.
            self.ranks.signalled = True
            self._ending.signal(pids, self._stop_signal)
            self._ending.within(self._grace_s, self._kill)
        else:
            self._ending.signal_all(signal.SIGTERM)
            self._ending.within(LEFTOVER_GRACE_S, self._ending.kill)

    def _watch_end(self) -> None:
        """Schedule a sweep, because no process end may come to trigger one."""
        self._loop.at("end", now(), self._sweep)

    def _write_exit_record(self) -> None:
        """Write the exit record, and only then report the end."""
        for part in (self._ending, self._signals, self._limit, self._lease):
            part.over()
        for timer in (_LISTEN, _CLOSING, _LAST_WORDS, _LAUNCHER):
            self._loop.cancel(timer)
        status = self.status
        status.survivors, status.doomed = (), False
        status.ended_at = status.ended_at or now()
        if self._cgroup is not None:
            status.oom_kills = self._cgroup.oom_kills()
            self._cgroup.remove()
        if self._preparation is not None and self._preparation.gate is not None:
            self._preparation.gate.close()
            self._preparation.gate = None
        before = status.phase
        refused = status.refusal is not None and not self._start_seen
        status.phase = m.ShimPhase.REFUSED if refused else m.ShimPhase.CLEANED
        try:
            exit_record.write_exit(self._folder_fd, status.document(now()))
        except OSError as error:
            if os.fstat(self._folder_fd).st_nlink == 0:
                # The folder has been removed: report to the agents that are connected now.
                self.changed()
                self.flush()
                self._loop.stop()
                return
            status.phase = before
            # No process is left, so nobody has to wait for the disk.
            self._unwritten_since = self._unwritten_since or now()
            status.doomed = now() - self._unwritten_since >= self._options.unkillable_s
            self._complain(f"The exit record cannot be written ({error.strerror}): see its disk.")
            self._loop.at("record", now() + RECORD_RETRY_S, self._sweep)
            return
        self.changed()

    def _phase(self, phase: m.ShimPhase) -> None:
        self.status.phase = phase
        self.changed()
