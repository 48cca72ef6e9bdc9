"""Ranks that are forked: a program cannot distinguish them from executed ranks."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from agent.core.shim_protocol import ShimExit, ShimStart, ShimStatus
from examples.local_cluster import free_port
from tests.agent.shims.conftest import Node, Spoken, Stage
from tests.agent.shims.test_prepared_ahead import children_of
from tests.agent.shims.test_termination import carriers
from tests.agent.shims.test_torchrun import ENV, behind_gate, rank_exit, torchrun

pytestmark = pytest.mark.torch


async def run(
    node: Node,
    folder: Path,
    method: str,
    *script: str,
    env: dict[str, str] | None = None,
    before: dict[str, str] | None = None,
    processes: int = 1,
) -> tuple[ShimStatus, Spoken]:
    """Run a program to its end. `env` is known when it starts, `before` already at the gate."""
    given = {**ENV, "MUSTER_START_METHOD": method, **(before or {})}
    task = await behind_gate(node, folder, f"{len(node.dialogues) + 1}.1.0", env=given)
    start = torchrun(free_port(), *script, processes=processes)
    await task.send(ShimStart(argv=start.argv, env={**given, **(env or {})}, grace_s=60))
    return await task.ended(), task


def assert_forked(status: ShimStatus) -> None:
    assert status.start_method is not None
    assert (status.start_method.method, status.start_method.why) == ("fork", "")


PROBE = '''"""The doc of the program."""
import ctypes, json, os, random, resource, signal, sys, threading, warnings

def lines(path):
    with open(path) as file:
        return file.read().splitlines()

class InMain:
    pass

STATUS = "Umask Uid Gid Groups NoNewPrivs Cpus_allowed Mems_allowed Threads Seccomp NSpid".split()
status = dict(line.split(":", 1) for line in lines("/proc/self/status"))
found = {name: status[name].split() for name in STATUS if name != "NSpid"}
found |= {name: text.split() for name, text in status.items() if name.startswith("Cap")}
# The C library handles signals 32 and 33 once it has started a thread.
for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd"):
    found[name] = int(status[name], 16) & ~(0b11 << 31)
found["limits"] = lines("/proc/self/limits")
# The number of signals that wait is that of all processes of the user.
found["SigQ"] = status["SigQ"].split("/")[1]
found["cgroup"] = [line.rpartition("/")[0] for line in lines("/proc/self/cgroup")]
# The last part is the name of the task's own.
found["of its task"] = lines("/proc/self/cgroup") == lines(f"/proc/{os.getppid()}/cgroup")
found["oom"] = lines("/proc/self/oom_score_adj")
found["comm"] = lines("/proc/self/comm")
found["cmdline"] = lines("/proc/self/cmdline")
with open("/proc/self/environ", "rb") as file:
    shown = file.read().decode()
found["shown environ is the environ"] = dict(
    entry.split("=", 1) for entry in shown.split("\\0") if entry
) == dict(os.environ)
found["environ"] = dict(os.environ)
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
found["getenv"] = libc.getenv(b"RANK").decode()
found["fds"] = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        found["fds"][fd] = [os.readlink(f"/proc/self/fd/{fd}"), os.get_inheritable(int(fd))]
    except OSError:
        pass
found["cwd"] = os.getcwd()
found["session"] = [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()]
found["nice"] = os.nice(0)
found["dumpable"] = libc.prctl(3, 0, 0, 0, 0)
found["death signal"] = [libc.prctl(2, ctypes.byref(number := ctypes.c_int(7))), number.value]
with open(f"/proc/{os.getppid()}/cmdline") as file:
    found["parent"] = "PARTS" in file.read()
found["argv"] = sys.argv
found["orig_argv"] = getattr(sys, "orig_argv", None)
found["path"] = sys.path
found["flags"] = str(sys.flags)
found["executable"] = [sys.executable, sys.prefix, sys.exec_prefix, sys.base_prefix]
main = sys.modules["__main__"]
KEYS = "__name__ __doc__ __package__ __file__ __cached__ __annotations__".split()
found["main"] = {key: repr(main.__dict__.get(key, "missing")) for key in KEYS}
found["main loader"] = type(main.__loader__).__name__
found["main spec"] = main.__spec__ and [main.__spec__.name, main.__spec__.origin]
found["main builtins"] = type(main.__builtins__).__name__
found["main is main"] = main.__dict__ is globals()
found["class"] = InMain.__module__
for name in ("stdin", "stdout", "stderr"):
    stream = getattr(sys, name)
    found[name] = [
        stream is getattr(sys, f"__{name}__"), stream.fileno(), stream.name, stream.mode,
        stream.encoding, stream.errors, stream.line_buffering, stream.write_through,
        type(stream.buffer).__name__,
    ]
found["hooks"] = [
    sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
    threading.excepthook is threading.__excepthook__, sys.gettrace(), sys.getprofile(),
]
found["limits of python"] = [sys.getrecursionlimit(), sys.getswitchinterval()]
found["handlers"] = {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()}
found["timers"] = signal.getitimer(signal.ITIMER_REAL)
found["threads of python"] = [thread.name for thread in threading.enumerate()]
found["main thread"] = threading.current_thread() is threading.main_thread()
found["ident"] = [threading.get_native_id() == os.getpid()]
found["ident"].append(threading.main_thread().native_id == os.getpid())
found["rlimits"] = resource.getrlimit(resource.RLIMIT_NOFILE)
import gc, locale, logging, multiprocessing
found["gc"] = [gc.isenabled(), gc.get_threshold(), gc.garbage]
found["locale"] = locale.setlocale(locale.LC_ALL, None)
found["log handlers"] = [logging.root.handlers, logging.root.level]
found["start method"] = multiprocessing.get_start_method(allow_none=True)
found["process"] = [multiprocessing.current_process().name, multiprocessing.parent_process()]
unique = [random.random(), multiprocessing.current_process().authkey.hex()]
import torch
import numpy
unique.append(float(numpy.random.random()))
found["warnings"] = [str(filter) for filter in warnings.filters]
found["seeds for GPUs"] = len(torch.cuda._lazy_seed_tracker.call_order)
unique += [torch.initial_seed(), torch.rand(3).tolist()]
found["torch threads"] = [torch.get_num_threads(), torch.get_num_interop_threads()]
found["torch defaults"] = [
    str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.distributed.is_initialized(),
    torch.are_deterministic_algorithms_enabled(), torch.cuda.is_initialized(),
]
found["pools"] = torch.__config__.parallel_info().splitlines()
found["threads"] = [len(os.listdir("/proc/self/task"))]
value = torch.ones(300, 300)
found["sums"] = [float((value @ value).sum()), float(numpy.ones((300, 300)).dot(value)[0, 0])]
found["threads"].append(len(os.listdir("/proc/self/task")))
sums = []
threading.Thread(target=lambda: sums.append(torch.get_num_threads())).start()
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
found["torch threads of a thread"] = sums
with open(sys.argv[-1] + os.environ["RANK"], "w") as file:
    json.dump({"found": found, "unique": unique}, file, default=str)
'''
OF_THE_METHOD = {"MUSTER_START_METHOD", "MUSTER_PRELOAD"}
# Each rank has them, with values of its own run.
OF_A_RUN = {"MUSTER_SHIM", "MUSTER_TASK", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"}


def without_run(found: dict[str, Any]) -> dict[str, Any]:
    """The report without the values that differ between any two runs."""
    environ = found.pop("environ")
    assert set(environ) >= OF_A_RUN
    found["environ"] = {
        name: "" if name in OF_A_RUN else value
        for name, value in environ.items()
        if name not in OF_THE_METHOD
    }
    found["fds"] = {
        fd: [re.sub(r"\[\d+\]|/\d+\.1\.0/", "N", link), inherited]
        for fd, (link, inherited) in found["fds"].items()
    }
    assert found["of its task"]
    text = json.dumps(found, sort_keys=True)
    changed: dict[str, Any] = json.loads(re.sub(r"(report-)(exec|fork)", r"\1", text))
    return changed


@pytest.mark.parametrize(
    ("script", "threads"),
    [(("probe.py",), "1"), (("./probe.py",), "2"), (("-m", "probe"), "1")],
    ids=str,
)
def test_a_probe_finds_no_difference(
    any_stage: Stage, tmp_path: Path, script: tuple[str], threads: str
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    # torch imports it if it is there, and it reads all variables, so that none may change.
    (tmp_path / "tqdm.py").write_text("raise ImportError\n")
    (tmp_path / "random_states.py").write_text(
        "import random, numpy, torch\nrandom.seed(1)\nnumpy.random.seed(1)\ntorch.manual_seed(1)\n"
    )
    # At the gate the other number of threads.
    before = {
        "OMP_NUM_THREADS": "1" if threads == "2" else "2",
        "PYTHONPATH": str(tmp_path),
        "MUSTER_PRELOAD": "random_states",
    }

    async def story(node: Node) -> None:
        reports: dict[str, list[dict[str, Any]]] = {}
        unique: list[str] = []
        for method in ("exec", "fork"):
            words = (*script, "a word", str(tmp_path / f"report-{method}-"))
            more = {"OMP_NUM_THREADS": threads}
            status, task = await run(
                node, tmp_path, method, *words, env=more, before=before, processes=2
            )
            assert status.exit == ShimExit(0), [task.read(rank.stderr) for rank in status.ranks]
            if method == "fork":
                assert_forked(status)
            files = sorted(tmp_path.glob(f"report-{method}-*"))
            made = [json.loads(file.read_text()) for file in files]
            reports[method] = [without_run(one["found"]) for one in made]
            for one in made:
                unique += map(str, one["unique"])
        assert len(reports["fork"]) == 2
        for cold, forked in zip(reports["exec"], reports["fork"], strict=True):
            # The pool of OpenBLAS, which a cold rank starts at its import, is there already.
            if len(os.sched_getaffinity(0)) > 1:
                assert forked.pop("Threads") == [threads]
                assert cold.pop("Threads") == ["1"]
            assert forked == cold
        assert len(set(unique)) == len(unique)

    any_stage.play(story)


WORKERS = """
import multiprocessing, os, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((2,), float(index)) @ torch.ones(2)

class Carried:
    value = 3

def of_a_process(index, queue):
    queue.put((index, Carried().value))

def carry(carried):
    return type(carried).__module__, carried.value

if __name__ == "__main__":
    for context in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=context)
        print(context, sum(float(batch.sum()) for batch in loader))
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(of_a_process, (queue,), nprocs=2)
    print(sorted(queue.get() for _ in range(2)))
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(pool.apply(carry, (Carried(),)))
"""


def test_worker_processes_of_every_kind(any_stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)

    async def story(node: Node) -> None:
        status, task = await run(node, tmp_path, "fork", "workers.py")
        assert status.exit == ShimExit(0), task.read(status.ranks[0].stderr)
        assert_forked(status)
        assert task.read(status.ranks[0].stdout).decode().splitlines() == [
            *("fork 56.0", "spawn 56.0", "forkserver 56.0"),
            "[(0, 3), (1, 3)]",
            "('__mp_main__', 3)",
        ]

    any_stage.play(story)


@pytest.mark.parametrize(
    ("env", "script", "why"),
    [
        ({}, ("--no-python", "/bin/true"), "ranks run /bin/true, not a Python program"),
        ({"MKL_CBWR": "AVX2"}, ("train.py",), "MKL_CBWR had another value when torch was imported"),
        ({"OMP_NUM_THREADS": "2,1"}, ("train.py",), "OMP_NUM_THREADS had another value"),
        ({}, ("hidden/train.py",), "hidden/numpy.py has the name of a loaded module"),
        ({}, ("train",), "train is not a Python file"),
    ],
    ids=str,
)
def test_ranks_that_cannot_be_forked_are_executed(
    any_stage: Stage, tmp_path: Path, env: dict[str, str], script: tuple[str], why: str
) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "numpy.py").write_text("")
    for name in ("train.py", "hidden/train.py", "train"):
        (tmp_path / name).write_text("print('ran')\n")

    async def story(node: Node) -> None:
        status, task = await run(node, tmp_path, "fork", *script, env=env)
        assert rank_exit(status, 0) is not None
        assert status.exit == ShimExit(0), task.read(status.ranks[0].stderr)
        assert status.start_method is not None
        assert status.start_method.method == "exec"
        assert why in status.start_method.why

    any_stage.play(story)


def test_a_module_that_starts_a_thread_is_named(any_stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    (tmp_path / "planted_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[9], daemon=True).start()"
    )
    before = {"PYTHONPATH": str(tmp_path), "MUSTER_PRELOAD": "planted_thread"}

    async def story(node: Node) -> None:
        status, _ = await run(node, tmp_path, "fork", "train.py", before=before)
        assert status.exit == ShimExit(0)
        assert status.start_method is not None
        assert status.start_method.method == "exec"
        assert status.start_method.why == "planted_thread started a thread"

    any_stage.play(story)


@pytest.mark.parametrize("method", ["exec", "fork"])
def test_the_start_is_reported_with_the_time_of_each_part(
    any_stage: Stage, tmp_path: Path, method: str
) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")

    async def story(node: Node) -> None:
        status, _ = await run(node, tmp_path, method, "train.py")
        start = status.start_method
        assert start is not None
        assert (start.method, start.why, start.preload_s) == (method, "", 0.0)
        assert start.import_s > 0
        assert (start.check_s > 0) == (start.fork_s > 0) == (method == "fork")

    any_stage.play(story)


def test_the_garbage_collector_skips_imports_before_the_gate(
    any_stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "planted_counts.py").write_text("import gc\nTHRESHOLD = gc.get_threshold()[0]\n")
    (tmp_path / "train.py").write_text(
        "import gc, planted_counts\n"
        "print(planted_counts.THRESHOLD, gc.get_threshold()[0] > 0)\n"
        "print(gc.get_freeze_count() > 100_000, planted_counts in gc.get_objects())\n"
    )
    before = {"PYTHONPATH": str(tmp_path), "MUSTER_PRELOAD": "planted_counts"}

    async def story(node: Node) -> None:
        status, task = await run(node, tmp_path, "fork", "train.py", before=before)
        assert_forked(status)
        assert task.read(status.ranks[0].stdout) == b"0 True\nTrue False\n"

    any_stage.play(story)


# Changes that a module of `preload` makes in the interpreter, and a program that imports it.
CHANGES = """
import atexit, sys
sys.path.insert(0, "/planted")
atexit.register(print, "its handler")
"""
SHOWS = """
import os, sys
before = "/planted" in sys.path
import atexit, planted_changes
atexit.register(print, "the handler of the program")
folder = os.path.dirname(os.path.realpath(__file__))
print(before, sys.path.index("/planted") - sys.path.index(folder), type(os.putenv).__name__)
"""


def test_a_program_sees_what_a_preloaded_module_has_changed(
    any_stage: Stage, tmp_path: Path
) -> None:
    """The page on start methods describes these differences."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "planted_changes.py").write_text(CHANGES)
    (tmp_path / "train.py").write_text(SHOWS)
    before = {"PYTHONPATH": str(tmp_path / "lib"), "MUSTER_PRELOAD": "planted_changes"}

    async def story(node: Node) -> None:
        said = {}
        for method in ("exec", "fork"):
            status, task = await run(node, tmp_path, method, "train.py", before=before)
            assert status.exit == ShimExit(0), task.read(status.ranks[0].stderr)
            said[method] = task.read(status.ranks[0].stdout).decode().splitlines()
            assert status.start_method is not None
            assert (status.start_method.method, status.start_method.why) == (method, "")
        handlers = ["the handler of the program", "its handler"]
        assert said["exec"] == ["False -1 builtin_function_or_method", *handlers]
        assert said["fork"] == ["True 1 function", *handlers]

    any_stage.play(story)


# The constructor of the fork server's part fails.
BROKEN = """
import signal
def broken():
    raise OSError("planted")
signal.valid_signals = broken
"""


def test_ranks_start_cold_if_the_fork_server_fails_or_dies(
    any_stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    (tmp_path / "sitecustomize.py").write_text(BROKEN)

    def assert_cold(status: ShimStatus, why: str) -> None:
        assert status.exit == ShimExit(0)
        assert status.start_method is not None
        assert (status.start_method.method, status.start_method.why) == ("exec", why)

    async def story(node: Node) -> None:
        before = {"PYTHONPATH": str(tmp_path)}
        status, _ = await run(node, tmp_path, "fork", "train.py", before=before)
        assert_cold(status, "the fork server failed: OSError: planted")

        given = {**ENV, "MUSTER_START_METHOD": "fork"}
        task = await behind_gate(node, tmp_path, "9.1.0", env=given)
        (server,) = children_of(min(carriers(task)))
        os.kill(server, signal.SIGKILL)
        start = torchrun(free_port(), "train.py", processes=1)
        await task.send(ShimStart(argv=start.argv, env=given, grace_s=60))
        assert_cold(await task.ended(), "the fork server has died")

    any_stage.play(story)
