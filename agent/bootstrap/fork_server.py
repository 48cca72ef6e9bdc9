"""A fork server that gives torchrun its ranks: single-threaded, made before the gate opens.

One stand-alone file for Python 3.9 or newer, run by the bootstrap in the job's interpreter. The
ranks are re-parented to the bootstrap, so that it waits for them as for its own children.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

Message = dict[str, Any]

PACKET_BYTES_MAX = 65536
CHANNEL_FD, FLAG_FD = 60, 62
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TRIAL_FAILED = 3
_OUTPUTS = (("stdout", 1), ("stderr", 2))
_KNOWN = {"args", "env", "stdout", "stderr", "start_new_session", "pass_fds"}
# The importing of a module may hang. Slow file systems need a minute for a large one.
_PRELOAD_S = 120.0
# The search for the module that made a trial fail.
_SEARCH_S = 10.0
# Limit for all other answers. They normally take a second; the trial has its own limit.
_ANSWER_S = 30.0
# Libraries read these when they are loaded, and Python when it starts. What Python code reads is
# recorded instead.
_READ_EARLY = re.compile(
    r"PYTHON|LD_|LC_|LANG|GLIBC_|MALLOC_|ACC_|ATEN_|BLIS_|C10_|DNNL_|GFORTRAN_|GOMP_|GOTO_|INTEL_"
    r"|I_MPI_|KINETO_|KMP_|MKL_|MKLDNN_|MPI_LOCALNRANKS|NPY_|NUMPY_|OMP_|OMPI_|ONEDNN_|OPENBLAS_"
    r"|OPENSSL_|PYTORCH_"
    r"|TORCH_(ALLOW|BLAS|CPP|CUSTOM|DEVICE|DISTRIBUTED_DEBUG|LINALG|LOGS|ROCM|SHOW|TRACE)"
)
# Intel's and LLVM's OpenMP read KMP_*. GNU's, which torch's own builds have, does not.
_READS_KMP = re.compile(r"/lib(i?omp|kmp)")
# Somebody copied all variables.
_ALL = "*"
_DIED = "the fork server has died"


class Cold(Exception):
    """The reason why a rank cannot be forked."""


class RankForkServer:
    """The bootstrap's end. `why_not`: the reason for cold starts, "" if ranks can be forked."""

    def __init__(self, env: dict[str, str], why_not: str = "") -> None:
        self.why_not = why_not
        self.preload_s = self.check_s = 0.0
        self._pid = 0
        self._proved = False
        self._preloaded: list[str] = []
        self._held: int | None = None
        self._channel: socket.socket | None = None
        # The environment in which the modules load, and the module that read each variable.
        self._env = env
        self._read: dict[str, str] = {}
        self._kmp_is_read = True

    def connect(self, channel: socket.socket, pid: int) -> None:
        self._channel, self._pid = channel, pid

    def await_loaded(self) -> None:
        """Wait until the modules of `preload` are loaded."""
        report = self._receive(_PRELOAD_S)
        while "loading" in report:
            self._preloaded.append(report["loading"])
            report = self._receive(_PRELOAD_S, f" while it imported {report['loading']}")
        self.preload_s = report.get("seconds", 0.0) if self._preloaded else 0.0
        self._read = report.get("read", {})
        self._kmp_is_read = report.get("kmp_is_read", True)

    def await_proof(self) -> None:
        """Wait for the end of the trial, once."""
        if not self._proved:
            self._proved = True
            names = ", ".join(self._preloaded)
            report = self._receive(doing=f" in the trial of {names}" if names else "")
            if "trial_failed" in report:
                report = self._receive(_SEARCH_S, instead=report["trial_failed"])
            self.check_s = report.get("seconds", 0.0)

    def end(self, why: str) -> None:
        """Start ranks cold from now on."""
        self.why_not = why
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            try:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            except (ProcessLookupError, ChildProcessError):
                # Somebody waited for all children.
                return

    def why_cold(self, words: list[str], options: Message) -> str:
        """The reason why this rank cannot be forked. Returns "" if it can."""
        if self.why_not:
            return self.why_not
        if not options.keys() <= _KNOWN:
            return "this version of torch starts ranks with other options"
        if len(words) < 3 or words[:2] != [sys.executable, "-u"]:
            return f"ranks run {words[0] if words else 'nothing'}, not a Python program"
        module = words[2] == "-m"
        if not module and not (words[2].endswith(".py") and os.path.isfile(words[2])):
            return f"{words[2]} is not a Python file"
        return self._changed(options["env"])

    def _changed(self, env: dict[str, str]) -> str:
        for name in sorted({*env, *self._env}):
            value = env.get(name)
            if value == self._env.get(name):
                continue
            is_count = value and value.isdecimal() and int(value)
            if name == "OMP_NUM_THREADS" and is_count and name not in self._read:
                continue
            module = self._read.get(name) or self._read.get(_ALL)
            is_read = self._kmp_is_read or not name.startswith("KMP_")
            if module or (is_read and _READ_EARLY.match(name)):
                module = module or "torch"
                return f"{name} had another value when {module} was imported"
        return ""

    def fork(self, words: list[str], options: Message) -> int:
        """Start a rank and return its pid. It waits for `release`. Raises Cold or OSError."""
        why = self.why_cold(words, options)
        if why or self._channel is None:
            raise Cold(why)
        request = {
            "argv": words,
            "env": options["env"],
            "session": bool(options.get("start_new_session")),
            "known": sorted(self._env),
        }
        memory = os.memfd_create("muster-rank")
        go = -1
        try:
            with open(memory, "w", encoding="ascii", closefd=False) as file:
                json.dump(request, file)
            outputs = [_descriptor(options.get(name), own) for name, own in _OUTPUTS]
            go, self._held = os.pipe()
            # Only while a rank changes its parent: other orphans belong to the shim.
            _adopt_orphans(True)
            socket.send_fds(self._channel, [b"rank"], [memory, go, *outputs])
            report = self._receive()
            if "pid" not in report:
                raise Cold(report.get("why_cold") or self.why_not)
            # Fails if a preload adopts orphans, so that the rank is not a child of this process.
            os.waitid(os.P_PID, report["pid"], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return int(report["pid"])
        except ConnectionError:
            self.end(_DIED)
            raise Cold(_DIED) from None
        except BaseException:
            # A rank that exists by now ends, because no message lets it begin.
            self._drop()
            raise
        finally:
            _adopt_orphans(False)
            os.close(memory)
            if go >= 0:
                os.close(go)

    def release(self) -> None:
        """Let the last rank begin. The shim knows its pid by then, as that of a cold rank."""
        try:
            if self._held is not None:
                os.write(self._held, b"1")
        except BrokenPipeError:
            # The rank was killed before it began.
            return
        finally:
            self._drop()

    def _drop(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _receive(self, limit: float = _ANSWER_S, doing: str = "", instead: str = "") -> Message:
        """The next report. If it is a refusal, the server is ended.

        `doing` completes the reason why there is none, and `instead` replaces it.
        """
        died = instead or _DIED + doing
        if self._channel is None:
            return {}
        self._channel.settimeout(limit)
        try:
            data = self._channel.recv(PACKET_BYTES_MAX)
            report: Message = json.loads(data) if data else {"why_not": died}
        except TimeoutError:
            late = f"the fork server did not answer within {limit:g} s{doing}"
            report = {"why_not": instead or late}
        except OSError:
            report = {"why_not": died}
        if "why_not" in report:
            self.end(report["why_not"])
        return report


def _descriptor(given: Any, own: int) -> int:
    if given is None:
        return own
    return given if isinstance(given, int) else int(given.fileno())


def _adopt_orphans(on: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(on), 0, 0, 0)


class ForkedProcess(subprocess.Popen):  # type: ignore[type-arg]
    """A Popen of a process that the fork server started."""

    _child_created = False

    def become(self, pid: int, words: list[str]) -> None:
        self.pid, self.args = pid, words
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._collecting = threading.Lock()

    def poll(self) -> int | None:
        with self._collecting:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:
                    # Another thread waited for all children. Popen returns 0 in this case as well.
                    pid, status = self.pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + timeout if timeout is not None else float("inf")
        while True:
            code = self.poll()
            if code is not None:
                return code
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.01)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def start(
    safety: Any, rank: Any, before: Message, reads: Any, imported: str, preload: list[str]
) -> tuple[RankForkServer, Message | None]:
    """Start the fork server. Returns also in each rank, with its request. Raises OSError.

    `before` is the snapshot before the modules `imported` were loaded, `reads` recorded since.
    """
    reads.end()
    env = before[safety.ENVIRONMENT]
    try:
        safety.compare(before, safety.snapshot())
        safety.check_customised()
    except safety.Unsafe as error:
        return RankForkServer(env, f"{imported} {error}"), None
    server = RankForkServer(env)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        for fd in (CHANNEL_FD, FLAG_FD):
            os.close(fd)
        return server, _serve(theirs, safety, rank, reads, imported, preload)
    theirs.close()
    server.connect(ours, pid)
    try:
        safety.check_single()
    except safety.Unsafe as error:
        server.end(f"{imported} {error}")
    server.await_loaded()
    return server, None


def _serve(
    channel: socket.socket, safety: Any, rank: Any, reads: Any, imported: str, preload: list[str]
) -> Message:
    """Load modules, prove that forks are safe, and fork ranks. Returns in each rank."""
    try:
        if preload:
            _stand_by(safety, rank, reads, imported, preload)
        began = time.monotonic()
        before = safety.snapshot()
        for name in preload:
            _send(channel, {"loading": name})
            _load(safety, before, reads, name)
        took = time.monotonic() - began
        _send(channel, {"seconds": took, "read": reads.readers, "kmp_is_read": _kmp_is_read()})
        began = time.monotonic()
        try:
            several = f"one of {', '.join([imported, *preload])}"
            _prove(safety, rank, several if preload else imported)
        except safety.Unsafe as error:
            if not preload:
                raise
            _send(channel, {"trial_failed": str(error)})
            os._exit(_TRIAL_FAILED)
        _send(channel, {"seconds": time.monotonic() - began})
        while True:
            request = _next(channel, rank)
            if request is not None:
                return request
    except safety.Unsafe as error:
        _send(channel, {"why_not": str(error)})
    except BaseException as error:  # noqa: BLE001
        _send(channel, {"why_not": f"the fork server failed: {type(error).__name__}: {error}"})
    os._exit(0)


def _stand_by(safety: Any, rank: Any, reads: Any, imported: str, preload: list[str]) -> None:
    """Return in a new process. If its trial fails, repeat it here after each import, which names
    the module. Trials of all modules would delay every start.
    """
    server = os.fork()
    if server == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return
    status = os.waitpid(server, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _TRIAL_FAILED:
        before = safety.snapshot()
        _prove(safety, rank, imported)
        for name in preload:
            _load(safety, before, reads, name)
            _prove(safety, rank, name)
    os._exit(0)


def _prove(safety: Any, rank: Any, name: str) -> None:
    try:
        safety.check_trial(rank.rehearse)
    except safety.Unsafe as error:
        raise safety.Unsafe(f"{name} {error}") from None


def _load(safety: Any, before: Message, reads: Any, name: str) -> None:
    reads.begin(name)
    try:
        importlib.import_module(name)
    except BaseException as error:
        why = f"cannot be imported: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            why += "; name the folder of a module that travels with the job: `env: {PYTHONPATH: .}`"
        raise safety.Unsafe(f"{name} {why}") from error
    finally:
        reads.end()
    try:
        safety.check_threads()
        safety.compare(before, safety.snapshot())
    except safety.Unsafe as error:
        raise safety.Unsafe(f"{name} {error}") from None
    except OSError as error:
        # A process that cannot be dumped may not read all of its own /proc.
        raise safety.Unsafe(f"{name} left a process that cannot be checked: {error}") from None


def _next(channel: socket.socket, rank: Any) -> Message | None:
    """Fork the next rank. Returns its request in the rank, and None in the server."""
    data, fds, _, _ = socket.recv_fds(channel, PACKET_BYTES_MAX, 4)
    if not data:
        os._exit(0)
    try:
        with open(fds[0], encoding="ascii", closefd=False) as file:
            file.seek(0)
            request: Message = json.load(file)
        hidden = _hidden(request["argv"])
        if hidden:
            _send(channel, {"why_cold": hidden})
            return None
        reading, writing = os.pipe()
        middle = os.fork()
        if not middle:
            given, fds = fds[1:], []
            return _become(channel, rank, request, given, writing)
        os.close(writing)
        os.waitpid(middle, 0)
        with open(reading, "rb") as file:
            answer = file.read().decode()
        if answer.isdecimal():
            _send(channel, {"pid": int(answer)})
        else:
            _send(channel, {"why_cold": f"a forked process could not become a rank: {answer}"})
        return None
    finally:
        for fd in fds:
            os.close(fd)


def _become(
    channel: socket.socket, rank: Any, request: Message, given: list[int], tell: int
) -> Message:
    """Fork the rank and end, so that it gets another parent. Returns in the rank."""
    try:
        threads = request["env"].get("OMP_NUM_THREADS")
        if threads is not None and threads != os.environ.get("OMP_NUM_THREADS"):
            rank.set_threads(int(threads))
        if os.fork():
            os._exit(0)
        channel.detach()
        go, stdout, stderr = given
        rank.arrange(request, go, tell, stdout, stderr)
    except BaseException as error:  # noqa: BLE001
        os.write(tell, f"{type(error).__name__}: {error}".encode(errors="replace"))
        os._exit(1)
    rank.await_start(go, tell)
    return request


def _hidden(argv: list[str]) -> str:
    """The first module beside the program that a cold rank would import instead of a loaded one."""
    folder = os.path.realpath(
        "." if argv[2] == "-m" else os.path.dirname(os.path.realpath(argv[2]))
    )
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    for name in names:
        module = sys.modules.get(name.partition(".")[0])
        loaded = getattr(module, "__file__", None)
        loaded = loaded and os.path.realpath(loaded)
        path = os.path.join(folder, name)
        package = os.path.join(path, "__init__.py")
        if not loaded or loaded in map(os.path.realpath, (path, package)):
            continue
        if name.endswith((".py", ".so")) or os.path.isfile(package):
            return f"{path} has the name of a loaded module"
    return ""


def _kmp_is_read() -> bool:
    """True if a library is loaded that has read variables which begin with KMP_."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return any(_READS_KMP.search(line) for line in file)


def _send(channel: socket.socket, message: Message) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except OSError:
        # The bootstrap has ended, and so does this process.
        os._exit(0)
