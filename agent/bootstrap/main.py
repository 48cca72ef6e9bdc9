"""Run torchrun in the job's own interpreter, behind a start gate, and report the end of each rank.

One stand-alone file for Python 3.9 or newer. It imports only the standard library and torch,
because the job's interpreter has nothing of Muster's. The shim runs it from a descriptor and talks
to it over another one. The other end, agent/shim/programs/bootstrap_channel.py, lists the messages.
torch is imported before the gate opens, so the import does not delay the job's start. Under
`start_method: fork` (MUSTER_START_METHOD) the ranks are forked from a process that has imported it.

Under `launcher: accelerate` and `deepspeed` (MUSTER_LAUNCHER) it runs torchrun as well. accelerate
prepares the environment, and DeepSpeed's ranks get what its own launcher would give them.

It changes three things in torchrun, all in this process. Ranks are its children.
  - Ranks write into files that the shim opened. The job's user can write but not replace them.
  - A thread waits for each rank and reports its end. torchrun itself reports no end before all
    sibling ranks are gone.
  - torchrun signals no rank. The shim does it, once, with the job's grace instead of torchrun's
    30 s.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import types
from typing import Any

CHANNEL_FD, SOURCE_FD, FLAG_FD, LOG_FOLDER_FD = 60, 61, 62, 63
LOG_FOLDER = f"/proc/self/fd/{LOG_FOLDER_FD}"
PACKET_BYTES_MAX = 65536
ERROR_CHARS_MAX = 4096
# The shim answers in a millisecond. If it does not answer, it is dead, and its agent is about to
# end this job.
ANSWER_S = 30.0
LAST_WORDS_S = 2.0

Message = dict[str, Any]

# The texts of the other files of this folder, by name. The prelude of the shim sets it.
PARTS: dict[str, str] = globals().get("PARTS", {})


class ShimChannel:
    """The channel to the shim."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def send(self, message: Message) -> bool:
        """Send one message; returns False if the shim is gone."""
        try:
            self._socket.send(json.dumps(message).encode())
        except OSError:
            return False
        return True

    def await_start(self) -> Message:
        """Wait at the gate for the start message. Ends this process if the shim ends."""
        data, fds, _, _ = socket.recv_fds(self._socket, PACKET_BYTES_MAX, 1)
        if not data or not fds:
            sys.exit(0)
        with open(fds[0], "rb") as file:
            start: Message = json.load(file)
        self._socket.settimeout(ANSWER_S)
        return start

    def files_for(self, rank: int, local_rank: int) -> list[int]:
        """The descriptors for a rank's output and error. Returns [] if the shim sends none."""
        if not self.send({"t": "open", "rank": rank, "local_rank": local_rank}):
            return []
        try:
            return list(socket.recv_fds(self._socket, PACKET_BYTES_MAX, 2)[1])
        except OSError:
            return []

    def forget(self) -> None:
        """Leave the descriptor's number to the program that runs in this process."""
        self._socket.detach()

    def stopping(self) -> bool:
        """True if the shim has begun to stop the job. The shim sets the flag before its first
        signal.
        """
        return os.pread(FLAG_FD, 1, 0) == b"1"


def main() -> None:
    for fd in (CHANNEL_FD, FLAG_FD, LOG_FOLDER_FD):
        os.set_inheritable(fd, False)
    shim = ShimChannel(CHANNEL_FD)
    launcher = os.environ.get("MUSTER_LAUNCHER", "torchrun")
    # Imports make almost no garbage, and the search for it takes a sixth of their time.
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    forks = Forks(asked=os.environ.get("MUSTER_START_METHOD") == "fork")
    try:
        torchrun = importlib.import_module("torch.distributed.run")
        launch = _import_launcher(launcher)
        versions = _versions()
    except ImportError as error:
        shim.send({"t": "failed", "code": "no_torch", "text": _no_torch(error)})
        sys.exit(1)
    except Exception as error:
        text = f"Importing torch into {sys.executable} failed: {type(error).__name__}: {error}"
        shim.send({"t": "failed", "code": "bootstrap_failed", "text": text})
        raise
    program = forks.start(launcher)
    _collect_garbage(thresholds)
    if program is not None:
        # This process is a rank.
        shim.forget()
        forks.rank.run(program)
        return
    shim.send({"t": "hello", "versions": versions})
    start = shim.await_start()
    _take_environment(start["env"])
    forks.once = _starts_ranks_once(start["argv"])
    watchers = _watch_ranks(shim, forks, deepspeed=launcher == "deepspeed")
    _leave_signals_to(shim, watchers)
    # torchrun's parser takes the last of two equal options: the job's own arguments win.
    argv = ["--redirects", "3", "--log_dir", LOG_FOLDER, *start["argv"]]
    sys.argv = ["torchrun", *argv]
    shim.send({"t": "running"})
    try:
        if launch is not None:
            _accelerate(torchrun, launch, argv)
        else:
            torchrun.main(argv)
    except Exception as error:
        # Once there are ranks, the address in use is one of theirs.
        if not watchers and _says_in_use(error):
            shim.send({"t": "failed", "code": "port_taken", "text": _port_taken(start["argv"])})
        raise
    finally:
        for watcher in watchers:
            watcher.join(LAST_WORDS_S)
        forks.end("the job has ended")


class Forks:
    """The start of ranks, by fork if `asked`, and the report on it. Errors mean cold starts."""

    def __init__(self, *, asked: bool) -> None:
        # True if torchrun starts each rank of the node once.
        self.once = False
        self._asked = asked
        self._why_cold = self._reported = ""
        self._import_s = 0.0
        self._server: Any = None
        self._pid = os.getpid()
        self._began = time.monotonic()
        if not asked:
            return
        try:
            self._module, self._safety, self.rank = (
                _part(name) for name in ("fork_server", "fork_safety", "forked_rank")
            )
            self._reads = self._safety.EnvironmentReads()
            self._before = self._safety.snapshot()
            self._reads.begin("torch")
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def start(self, launcher: str) -> list[str] | None:
        """Start the server. Returns None, and in each rank the words of its program."""
        self._import_s = time.monotonic() - self._began
        if self._why_cold or not self._asked:
            return None
        imported = "accelerate" if launcher == "accelerate" else "torch"
        preload = os.environ.get("MUSTER_PRELOAD", "").split()
        try:
            self._server, request = self._module.start(
                self._safety, self.rank, self._before, self._reads, imported, preload
            )
        except Exception as error:  # noqa: BLE001
            if os.getpid() != self._pid:
                os._exit(1)
            self._failed(error)
            return None
        return None if request is None else request["argv"]

    def fork(self, shim: ShimChannel, process: Any, words: list[str], options: Message) -> bool:
        """Make `process` a forked rank. Returns False if the rank has to start cold."""
        began = time.monotonic()
        why = self._why_cold
        if self._server is not None and not why:
            self._server.await_proof()
            began = time.monotonic()
            why = self._fork(process, words, options)
        method = "fork" if self._asked and not why else "exec"
        if self._reported != method + why:
            self._reported = method + why
            shim.send(
                {
                    "t": "start_method",
                    "method": method,
                    "why": why,
                    "import_s": self._import_s,
                    "preload_s": self._server.preload_s if self._server else 0.0,
                    "check_s": self._server.check_s if self._server else 0.0,
                    "fork_s": time.monotonic() - began if self._server else 0.0,
                }
            )
        return method == "fork"

    def _fork(self, process: Any, words: list[str], options: Message) -> str:
        """Fork a rank. Returns the reason why it has to start cold, or ""."""
        try:
            pid = self._server.fork(words, options)
        except self._module.Cold as error:
            return str(error)
        except Exception as error:  # noqa: BLE001
            self._failed(error)
            return self._why_cold
        process.__class__ = self._module.ForkedProcess
        process.become(pid, words)
        return ""

    def started(self, env: dict[str, str]) -> None:
        """Let the rank begin. After the last rank that torchrun will start, end the server."""
        if self._server is None:
            return
        self._server.release()
        if self.once and int(env["LOCAL_RANK"]) + 1 == int(env["LOCAL_WORLD_SIZE"]):
            self.end("every rank of the node has been started")

    def end(self, why: str) -> None:
        """End the server. Ranks that follow start cold."""
        self._why_cold = self._why_cold or why
        if self._server is not None:
            self._server.end(why)

    def _failed(self, error: Exception) -> None:
        self.end(f"the fork server failed: {type(error).__name__}: {error}")


def _collect_garbage(thresholds: tuple[int, int, int]) -> None:
    """Collect garbage, but never search the loaded modules: ranks share their memory."""
    if gc.get_threshold()[0] == 0:
        gc.set_threshold(*thresholds)
    gc.freeze()


def _part(name: str) -> Any:
    """Load another file of this folder, which no program can import."""
    module = types.ModuleType(name)
    exec(compile(PARTS[name], f"muster-{name}", "exec"), module.__dict__)  # noqa: S102
    return module


def _starts_ranks_once(argv: list[str]) -> bool:
    """True if torchrun never starts a rank again: it would for a gang whose size changes."""
    return "--rdzv-backend" in argv and _option(argv, "--rdzv-backend") == "static"


def _take_environment(env: dict[str, str]) -> None:
    """Replace the environment by the job's, but keep the bin folder of its Python first on PATH."""
    path = os.environ.get("PATH", "")
    if path.endswith(f"{os.pathsep}{env['PATH']}"):
        env = {**env, "PATH": path}
    os.environ.clear()
    os.environ.update(env)


def _import_launcher(launcher: str) -> Any:
    """Import accelerate's launch module. Returns None for other launchers. Raises ImportError if
    missing.
    """
    if launcher == "accelerate":
        return importlib.import_module("accelerate.commands.launch")
    if launcher == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise ImportError("there is no deepspeed", name="deepspeed")
    return None


def _accelerate(torchrun: Any, launch: Any, argv: list[str]) -> None:
    """Do what `accelerate launch` does, with this torchrun as its last step."""
    at = argv.index("--")
    options, words = argv[:at], argv[at + 1 :]
    machines = int(_option(options, "--nnodes").rpartition(":")[2])
    world = machines * int(_option(options, "--nproc-per-node"))
    asked = [
        *("--num_machines", str(machines)),
        *("--num_processes", str(world)),
        *("--machine_rank", os.environ.get("NODE_RANK", "0")),
        *("--main_process_ip", os.environ.get("MASTER_ADDR", "")),
        *("--main_process_port", os.environ.get("MASTER_PORT", "")),
        *("--deepspeed_multinode_launcher", "standard"),
    ]
    original = torchrun.run

    def run(found: Any) -> None:
        torchrun.run = original
        module = ["-m"] if found.module else []
        torchrun.main([*options, *module, found.training_script, *found.training_script_args])

    def run_simply(found: Any) -> None:
        os.environ.update(launch.prepare_simple_launcher_cmd_env(found)[1])
        run(found)

    torchrun.run, launch.simple_launcher = run, run_simply
    parser = launch.launch_command_parser()
    cuda = importlib.import_module("torch").cuda
    several = ["--multi_gpu"] if world > 1 and cuda.is_available() else []
    launch.launch_command(parser.parse_args([*asked, *several, *words]))


def _option(options: list[str], name: str) -> str:
    return options[options.index(name) + 1]


def _versions() -> Message:
    torch = importlib.import_module("torch")
    nccl = None
    if torch.version.cuda:
        try:
            nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        except Exception:  # noqa: BLE001
            # A build without NCCL. The versions are only compared, so a missing one does no harm.
            nccl = None
    return {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "nccl": nccl,
    }


def _no_torch(error: ImportError) -> str:
    name = getattr(error, "name", None)
    if name in ("torch", "accelerate", "deepspeed"):
        return (
            f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]}) has no {name};"
            " install it there or set `python` to the environment that has it."
        )
    return f"torch cannot be imported by {sys.executable}: {error}"


def _says_in_use(error: BaseException | None) -> bool:
    """True if an exception in the chain reports EADDRINUSE. For a dynamic rendezvous, only an inner
    one does.
    """
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if "EADDRINUSE" in str(error):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _port_taken(argv: list[str]) -> str:
    """Describe a port that a program took after the agent had released it."""
    port = "of the rendezvous"
    for option in ("--master-port", "--rdzv-endpoint"):
        if option in argv:
            port = argv[argv.index(option) + 1].rpartition(":")[2]
    return f"port {port} was free, but another program has taken it since"


def _watch_ranks(shim: ShimChannel, forks: Forks, *, deepspeed: bool) -> list[Watcher]:
    """Patch Popen so that torchrun's ranks write into the shim's files and their ends are reported.

    Returns the list of watchers, which grows with each rank.
    """
    watchers: list[Watcher] = []
    original = subprocess.Popen.__init__

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        env: dict[str, str] = kwargs.get("env") or {}
        if not {"RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"} <= env.keys():
            original(self, *args, **kwargs)
            return
        rank = int(env["RANK"])
        fds = shim.files_for(rank, int(env["LOCAL_RANK"]))
        if len(fds) == 2:
            kwargs["stdout"], kwargs["stderr"] = fds
        if deepspeed:
            args = _as_deepspeed(args, kwargs, env)
        # The path of the rank's error file leads through this descriptor.
        kwargs["pass_fds"] = (*(kwargs.get("pass_fds") or ()), LOG_FOLDER_FD)
        words = list(kwargs.get("args", args[0] if args else ()))
        try:
            if not forks.fork(shim, self, words, kwargs):
                original(self, *args, **kwargs)
        finally:
            for fd in fds:
                os.close(fd)
        shim.send({"t": "rank", "rank": rank, "pid": self.pid})
        forks.started(env)
        error_file = env.get("TORCHELASTIC_ERROR_FILE") or ""
        watcher = Watcher(shim, self, rank, error_file)
        watcher.start()
        watchers.append(watcher)

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]
    return watchers


def _as_deepspeed(args: Any, kwargs: Any, env: dict[str, str]) -> Any:
    """Start a rank as `deepspeed` does: `--local_rank=N` after the script, and DeepSpeed's names
    for torchrun's variables.
    """
    own = {
        "CROSS_RANK": "GROUP_RANK",
        "CROSS_SIZE": "GROUP_WORLD_SIZE",
        "LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    }
    kwargs["env"] = {**env, **{name: env[of] for name, of in own.items() if of in env}}
    words = list(kwargs.pop("args") if "args" in kwargs else args[0])
    at = 1  # Skip the interpreter, then -u and -m.
    while at < len(words) and words[at] in ("-u", "-m"):
        at += 1
    words.insert(at + 1, f"--local_rank={env['LOCAL_RANK']}")
    return (words, *args[1:])


class Watcher(threading.Thread):
    """A thread that waits for one rank and reports its end."""

    def __init__(self, shim: ShimChannel, process: Any, rank: int, error_file: str) -> None:
        super().__init__(name=f"rank-{rank}", daemon=True)
        self.process = process
        self._end_arguments = (shim, process, rank, error_file)

    def run(self) -> None:
        _await_end(*self._end_arguments)


def _await_end(shim: ShimChannel, process: Any, rank: int, error_file: str) -> None:
    """Wait for a rank without taking its exit status from torchrun, which polls for it too."""
    try:
        info = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status  # type: ignore[union-attr]
    except ChildProcessError:
        # torchrun was first and has the status.
        code = process.wait()
    shim.send(
        {
            "t": "exit",
            "rank": rank,
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "error": _recorded_error(error_file) if code else None,
        }
    )


def _recorded_error(path: str) -> str | None:
    """The error that torch's @record wrote: the end of the traceback, or the message."""
    try:
        with open(path, "rb") as file:
            message = json.loads(file.read(1 << 20))["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        message = stack or message.get("message")
    return message.strip()[-ERROR_CHARS_MAX:] if isinstance(message, str) else None


def _leave_signals_to(shim: ShimChannel, watchers: list[Watcher]) -> None:
    """Keep torchrun from signalling its ranks and killing them after its own timeout.

    Instead, ask the shim to stop them, and wait. Failures are reported before that request, because
    ranks that end after it were stopped by the shim.
    """
    api = importlib.import_module("torch.distributed.elastic.multiprocessing.api")
    context = getattr(api, "SubprocessContext", None)
    original = getattr(context, "_close", None)
    if context is None or original is None:
        return

    def close(self: Any, *args: Any, **kwargs: Any) -> None:
        processes = [handler.proc for handler in self.subprocess_handlers.values()]
        alive = [process for process in processes if process.poll() is None]
        for watcher in watchers:
            if watcher.process not in alive:
                watcher.join(ANSWER_S)
        if alive and (shim.stopping() or shim.send({"t": "closing"})):
            for process in alive:
                process.wait()
        original(self, *args, **kwargs)

    context._close = close


if __name__ == "__main__":
    main()
