"""Everything before the gate: the user, the folder, the setup, the bootstrap.

Each refusal is one sentence.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence

from agent.shim.exit_record import TORCHRUN_LOGS, Logs
from agent.shim.messages import PROCESSES, TORCHRUN, ShimExit, ShimPrepare
from agent.shim.programs.bootstrap_channel import EXIT_TOO_OLD, LAST_PACKETS, PRELUDE, Gate
from agent.shim.programs.failure import Failure, describe
from agent.shim.programs.runner import Program, RunnerReport
from agent.shim.programs.runners import OnReport, RunnerProcess, Runners
from agent.shim.system.credentials import Credentials, base_environment
from agent.shim.system.event_loop import Loop, now
from muster.protocol.refusal_codes import RefusalCode

SETUP_LOG = "setup.log"
LAUNCHER_LOG = "launcher.log"
_DEADLINE = "prepare"
_ANSWER = "answer"
# A directory server or file system that takes longer is considered hung. The limit leaves time for
# an automounter.
ANSWER_S = 120.0
TAIL_BYTES = 4096
_PATH_MAX = 8192


class PreparationListener:
    """Callbacks for the progress of the preparation. The task implements them."""

    def prepared(self) -> None: ...
    def refused(self, code: RefusalCode, text: str) -> None: ...
    def stream(self, stream: str, rank: int | None, name: str) -> None: ...
    def launcher_reported(self, message: dict[str, object]) -> None: ...
    def launcher_ended(self, ended: ShimExit) -> None: ...
    def fingerprint(self, versions: dict[str, object], boot_s: float) -> None: ...


class Preparation:
    """A task's preparation up to the gate. After `abandon` it reports only the launcher's end."""

    def __init__(
        self,
        marks: dict[str, str],
        command: ShimPrepare,
        own: Credentials,
        loop: Loop,
        children: Runners,
        logs: Logs,
        bootstrap: bytes,
        listener: PreparationListener,
    ) -> None:
        self._marks = marks
        self._command = command
        self._loop = loop
        self._children = children
        self._logs = logs
        self._bootstrap = bootstrap
        self._listener = listener
        self._own = own
        self.identity = own
        self.gate: Gate | None = None
        # The process behind the gate: it will become the program, or has become the bootstrap.
        self.child: RunnerProcess | None = None
        self._boot_began = 0.0
        self._over = False

    def begin(self) -> None:
        child = self._take()
        user = self._command.user
        if child is None:
            return
        if user is None or (user.name == self._own.name and user.uid in (None, self._own.uid)):
            self._as_user(self._own, child)
            return
        name, uid = user.name, user.uid

        def looked_up(report: RunnerReport) -> None:
            found = report.result
            if isinstance(found, dict) and uid not in (None, found["uid"]):
                self._refuse(
                    RefusalCode.USER_UNKNOWN,
                    f"User {name} had uid {uid} when the folders of the task were made, and has"
                    f" {found['uid']} now; if the account has changed, restart the agent.",
                )
            elif isinstance(found, dict):
                self._as_user(Credentials(**found), child)
            else:
                self._refuse(
                    RefusalCode.USER_UNKNOWN,
                    f"User {name} does not exist on this node; add the account or change `run_as`.",
                )

        # A child looks it up, because a directory server that hangs must not hang the shim.
        child.look_up(
            name,
            self._in_time(
                f"Looking up user {name} had no answer",
                "check that the directory services of this node answer (getent passwd)",
                looked_up,
            ),
        )

    def abandon(self) -> None:
        """Stop reporting: the task is being ended."""
        self._over = True
        self._loop.cancel(_DEADLINE)
        self._loop.cancel(_ANSWER)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """The job's environment: a small base, the job's own variables, `more`, and the marks that
        identify its processes.
        """
        env = base_environment(self.identity)
        return {**env, **(self._command.env or {}), **more, **self._marks}

    def program(
        self,
        candidates: Sequence[str],
        arguments: Sequence[str],
        env: Mapping[str, str],
        fds: Mapping[int, int],
    ) -> Program:
        """A program of the job.

        The tools of its Python (ninja) come first on PATH, as in a venv, unless the job sets PATH
        itself.
        """
        python = self._command.python or ""
        own_path = env["PATH"] != base_environment(self.identity)["PATH"]
        tools = python if os.path.isabs(python) and not own_path else ""
        return Program(candidates, arguments, env, fds, tools)

    def additional_child(self, on_failure: OnReport) -> RunnerProcess:
        """A child behind the gate: first the one that waits there, then new ones like it.

        `on_failure` receives the report of a new child that could not get there. Raises OSError.
        """
        child, self.child = self.child, None
        if child is None:
            child = self._children.take()

            def entered(report: RunnerReport) -> None:
                if report.failure is not None:
                    on_failure(report)

            self._enter(child, entered)
        return child

    def interpreter_candidates(self) -> list[str]:
        """The possible paths of the job's Python; the first that can be executed is used."""
        return _interpreters(self._command.python)

    def why_not(self, failure: Failure, *, interpreter: bool) -> str:
        """Explain in a sentence why something could not be started. `interpreter`: it is the job's
        Python.
        """
        if not (interpreter and failure.stage == "program"):
            return describe(failure, self.identity.name)
        python = self._command.python
        wanted = f"The interpreter {python}" if python else "An interpreter (python3, python)"
        why = "was not found" if failure.code == errno.ENOENT else f"cannot run: {failure.text}"
        return (
            f"{wanted} {why} for user {self.identity.name} on this node;"
            " set `python` to an interpreter, venv or conda prefix that exists there."
        )

    def _take(self) -> RunnerProcess | None:
        """A child whose end we observe. If none can be forked, refuse the task and return None."""
        try:
            child = self._children.take()
        except OSError as error:
            text = f"{error.strerror}: this node has run out of memory or process numbers."
            self._refuse(RefusalCode.SPAWN_FAILED, text)
            return None
        child.ended = self._child_ended
        return child

    def _child_ended(self, how: ShimExit) -> None:
        if not self._over:
            text = f"The process that was to become the job {how.words()}; was it killed?"
            self._refuse(RefusalCode.SPAWN_FAILED, text)
        self._listener.launcher_ended(how)

    def _enter(
        self,
        child: RunnerProcess,
        on_report: OnReport,
        programs: Sequence[str] = (),
        path: str = "",
    ) -> None:
        cwd = self._command.cwd or self.identity.home
        answered = self._in_time(
            f"User {self.identity.name} could not enter the folder {cwd}: no answer",
            "its file system hangs on this node; check its mount, or name another `workdir`.",
            on_report,
        )
        child.enter(
            self.identity,
            cwd,
            self._command.no_new_privileges,
            self._children.namespaces,
            answered,
            programs,
            path,
        )

    def _in_time(self, what: str, hint: str, on_report: OnReport) -> OnReport:
        """Wrap `on_report` with a time limit: refuse the task if the child does not answer in time.

        A file system or directory server may hang the child for ever.
        """
        limit = min(ANSWER_S, self._command.setup_timeout_s)

        def late() -> None:
            self._refuse(RefusalCode.SPAWN_FAILED, f"{what} within {limit:g} s; {hint}")

        def answered(report: RunnerReport) -> None:
            self._loop.cancel(_ANSWER)
            on_report(report)

        if not self._over:
            self._loop.at(_ANSWER, now() + limit, late)
        return answered

    def _as_user(self, identity: Credentials, child: RunnerProcess) -> None:
        if identity.uid == 0 and not self._command.allow_root:
            self._refuse(
                RefusalCode.ROOT_REFUSED,
                f"The job would run as {identity.name}, which is root on this node;"
                " set `run_as: USER` in the agent's configuration, or `allow_root_jobs: true`.",
            )
            return
        if identity.become and os.geteuid() != 0:
            self._refuse(
                RefusalCode.USER_UNKNOWN,
                f"The agent runs as {self._own.name} and cannot start a job as {identity.name};"
                " run the agent as root or submit as its user.",
            )
            return
        self.identity = identity
        self._logs.own(identity.uid, identity.gid)
        hosts, places = self._command.hosts, self._command.places
        if hosts is None and places is None:
            self._in_place(child)
            return

        def apart(report: RunnerReport) -> None:
            if self._over or self._refused_early(report, RefusalCode.SPAWN_FAILED):
                return
            try:
                # No program of the job runs yet that could have put another in its place.
                self._children.share(child, ipc=places is not None and bool(places.folder))
            except OSError as error:
                text = f"The namespaces of the task cannot be kept: {error.strerror}."
                self._refuse(RefusalCode.SPAWN_FAILED, text)
                return
            self._in_place(child)

        child.go_apart(
            identity,
            hosts,
            places,
            self._in_time(
                "The job got no places of its own: no answer",
                "a file system hangs on this node; check its mounts",
                apart,
            ),
        )

    def _in_place(self, child: RunnerProcess) -> None:
        fetch = self._command.fetch
        if fetch is None:
            self._set_up(child)
            return
        env = {**base_environment(self.identity), **fetch.env, **self._marks}
        self._run_first(
            Program(fetch.argv[:1], fetch.argv[1:], env, {}),
            child,
            fetch.what,
            "is the repository large, or its host slow?",
            RefusalCode.FETCH_FAILED,
            self._set_up,
        )

    def _set_up(self, child: RunnerProcess | None) -> None:
        setup = self._command.setup
        if child is None or not setup:
            self._to_the_gate(child)
            return
        self._run_first(
            self.program(setup[:1], setup[1:], self.environment({}), {}),
            child,
            "`setup`",
            "make it faster or raise its time limit.",
            RefusalCode.SETUP_FAILED,
            self._to_the_gate,
        )

    def _to_the_gate(self, child: RunnerProcess | None) -> None:
        if child is None:
            return
        self.child = child
        if self._command.launcher == TORCHRUN:
            self._start_bootstrap(child)
            return

        def entered(report: RunnerReport) -> None:
            self._interpreter_reported(report)
            self._done()

        path = self.environment({})["PATH"]
        wanted = self._command.launcher == PROCESSES and self._command.python is not None
        # A longer PATH has no room in an order. Then the start finds out.
        known = self.interpreter_candidates() if wanted and len(path) <= _PATH_MAX else []
        self._enter(child, entered, known, path if known else "")

    def _open_log(self, name: str) -> int | None:
        """A descriptor. If the file cannot be made, refuse the task and return None."""
        try:
            return self._logs.open(name)
        except OSError as error:
            self._no_file(error, name)
            return None

    def _no_file(self, error: OSError, name: str) -> None:
        failure = Failure.of(error, "log", name)
        self._refuse(failure.refusal, describe(failure, self.identity.name))

    def _run_first(
        self,
        program: Program,
        child: RunnerProcess,
        what: str,
        hint: str,
        code: RefusalCode,
        then: Callable[[RunnerProcess | None], None],
    ) -> None:
        """Run a program to its end in the job's folder, then go on with another child. If it fails
        or is not done in time, refuse the task.
        """
        log = self._open_log(SETUP_LOG)
        if log is None:
            return
        self._listener.stream("setup", None, SETUP_LOG)
        program.fds = {1: log, 2: log}
        limit = self._command.setup_timeout_s

        def reported(report: RunnerReport) -> None:
            self._refused_early(report, code)

        def ended(how: ShimExit) -> None:
            self._loop.cancel(_DEADLINE)
            if self._over:
                return
            if how.failed:
                self._refuse(code, self._with_tail(f"{what} {how.words()}", SETUP_LOG))
            else:
                then(self._take())

        def late() -> None:
            text = f"{what} was not done after {limit:g} s; {hint}"
            self._refuse(code, self._with_tail(text, SETUP_LOG))

        self._loop.at(_DEADLINE, now() + limit, late)
        child.ended = ended
        self._enter(child, reported)
        child.become(program, reported)
        os.close(log)

    def _start_bootstrap(self, child: RunnerProcess) -> None:
        log = self._open_log(LAUNCHER_LOG)
        if log is None:
            return
        self._listener.stream("launcher", None, LAUNCHER_LOG)
        try:
            folder = self._logs.open_folder(TORCHRUN_LOGS)
        except OSError as error:
            os.close(log)
            self._no_file(error, TORCHRUN_LOGS)
            return
        gate = self.gate = Gate(self._loop, self._bootstrap, folder)
        gate.on_message = self._bootstrap_reported
        env = self.environment({})
        fds = {1: log, 2: log, **gate.descriptors()}
        self._boot_began = now()
        child.ended = self._bootstrap_ended
        self._enter(child, self._interpreter_reported)
        child.become(
            self.program(self.interpreter_candidates(), ["-u", "-c", PRELUDE], env, fds),
            self._interpreter_reported,
        )
        gate.opened()
        os.close(log)
        limit = self._command.bootstrap_timeout_s

        def late() -> None:
            text = (
                f"Importing torch took more than {limit:g} s on this node;"
                " is its file system slow, or hung?"
            )
            self._refuse(RefusalCode.BOOTSTRAP_FAILED, self._with_tail(text, LAUNCHER_LOG))

        if not self._over:
            self._loop.at(_DEADLINE, now() + limit, late)

    def _interpreter_reported(self, report: RunnerReport) -> None:
        failure = report.failure
        if failure is not None and failure.stage == "program":
            self._refuse(RefusalCode.NO_PYTHON, self.why_not(failure, interpreter=True))
            return
        self._refused_early(report, RefusalCode.SPAWN_FAILED)

    def _bootstrap_reported(self, message: dict[str, object]) -> None:
        versions = message.get("versions")
        if self._over or message.get("t") not in ("hello", "failed"):
            self._listener.launcher_reported(message)
        elif message["t"] == "hello":
            if isinstance(versions, dict):
                self._listener.fingerprint(versions, now() - self._boot_began)
            self._done()
        else:
            text = str(message.get("text"))[:TAIL_BYTES]
            known = {"no_torch": RefusalCode.NO_TORCH, "no_python": RefusalCode.NO_PYTHON}
            self._refuse(known.get(str(message.get("code")), RefusalCode.BOOTSTRAP_FAILED), text)

    def _bootstrap_ended(self, how: ShimExit) -> None:
        if self.gate is not None:
            self.gate.receive(LAST_PACKETS)
        if how.code == EXIT_TOO_OLD:
            self._refuse(
                RefusalCode.NO_PYTHON,
                f"The interpreter {self._command.python or 'python3'} is older than Python 3.9;"
                " set `python` to a newer one.",
            )
        elif not self._over:
            text = f"The interpreter {how.words()} while it imported torch"
            self._refuse(RefusalCode.BOOTSTRAP_FAILED, self._with_tail(text, LAUNCHER_LOG))
        self._listener.launcher_ended(how)

    def _refused_early(self, report: RunnerReport, code: RefusalCode) -> bool:
        """True if the child never became its program. If so, refuse the task with the reason."""
        if report.failure is None:
            return False
        by_stage = {"folder": RefusalCode.NO_FOLDER, "user": RefusalCode.USER_UNKNOWN}
        text = describe(report.failure, self.identity.name)
        self._refuse(by_stage.get(report.failure.stage, code), text)
        return True

    def _with_tail(self, text: str, log: str) -> str:
        tail = self._logs.tail(log, TAIL_BYTES)
        lines = "\n".join(tail.splitlines()[-10:])
        return f"{text}; its last lines:\n{lines}" if lines else f"{text}; it wrote nothing."

    def _done(self) -> None:
        if not self._over:
            self._over = True
            self._loop.cancel(_DEADLINE)
            self._listener.prepared()

    def _refuse(self, code: RefusalCode, text: str) -> None:
        if not self._over:
            self.abandon()
            self._listener.refused(code, text)


def _interpreters(python: str | None) -> list[str]:
    """Possible paths of the interpreter.

    A folder cannot be executed, so exec itself distinguishes an interpreter from a prefix.
    """
    if python is None:
        return ["python3", "python"]
    if "/" not in python:
        return [python, f"{python}/bin/python3", f"{python}/bin/python"]
    return [python, os.path.join(python, "bin/python3"), os.path.join(python, "bin/python")]
