"""Planted modules that make forks unsafe: each is refused by name, and the ranks start by exec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

CHILD = """
import os, time
parent = os.getpid()
if not os.fork():
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(0)
"""

START = """
import os, threading, time
def start():
    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
"""

BLOCK = """
import os, signal
def block():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.register_at_fork(after_in_child=block)
"""

# The classes of I/O priority are above 13 bits: idle is 3.
IDLE_IO = """
import ctypes, platform
number = {"x86_64": 251, "aarch64": 30}[platform.machine()]
assert ctypes.CDLL(None).syscall(number, 1, 0, 3 << 13) == 0
"""

# torch does the same in the child of a process that has used CUDA's driver.
BAD_FORK = """
import os, torch
def poison():
    torch.cuda._is_in_bad_fork = lambda: True
os.register_at_fork(after_in_child=poison)
"""

# For this module alone, the trial takes no longer than in a job.
HANG = """
import os, time
import __main__
__main__.safety.TRIAL_S = __main__.TRIAL_S
os.register_at_fork(after_in_child=lambda: time.sleep(99))
"""

# Text of a module, and the words of its refusal; "" if it is accepted.
NO_IMPORT = """
import os, sys
PID = os.getpid()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if os.getpid() != PID:
            raise ImportError(name)
sys.meta_path.insert(0, Finder())
"""
PLANTED = {
    "harmless": ("VALUE = 1", ""),
    "thread": (
        "import threading as t, time\nt.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "started a thread",
    ),
    "cuda": ("import torch\ntorch.cuda._initialized = True", "uses CUDA"),
    "cuda_in_child": (BAD_FORK, "uses CUDA at a fork"),
    "device": ("FILE = open('/dev/zero')", "left a file, socket or device open"),
    "sockets": (
        "import socket\nSOCKET = socket.socket()",
        "left a file, socket or device open",
    ),
    "import_lock": ("import _imp\n_imp.acquire_lock()", "holds the import lock"),
    "lock_of_a_module": (
        "import importlib._bootstrap as b\nLOCK = b._get_module_lock('json')\nLOCK.acquire()",
        "holds the import lock",
    ),
    "signal_mask": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])",
        "changed the signal mask",
    ),
    "handler": (
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)",
        "changed the handling of a signal",
    ),
    "variable": ("import os\nos.environ['PATH'] += ':/planted'", "changed the environment"),
    "another_variable": ("import os\nos.environ['PLANTED'] = '1'", ""),
    "child": (CHILD, "left a child process"),
    "folder": ("import os\nos.chdir('/')", "changed the working directory"),
    "mask_of_files": ("import os\nos.umask(0o007)", "changed the umask"),
    "stream": ("import io, sys\nsys.stdout = io.StringIO()", "replaced a stream of sys"),
    "timer": ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 99, 99)", "set a timer"),
    "alarm": ("import signal\nsignal.alarm(99)", "set a timer"),
    "timer_of_processor_time": (
        "import signal\nsignal.setitimer(signal.ITIMER_PROF, 99)",
        "set a timer",
    ),
    "limit": (
        "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (99, 99))",
        "changed a limit",
    ),
    "processors": (
        "import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
        "changed its processors or priority" if len(os.sched_getaffinity(0)) > 1 else "",
    ),
    "priority": ("import os\nos.nice(1)", "changed its processors or priority"),
    "policy_of_scheduling": (
        "import os\nos.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
        "changed its processors or priority",
    ),
    "priority_of_io": (IDLE_IO, "changed its processors or priority"),
    "slack_of_timers": (
        "import ctypes\nctypes.CDLL(None).prctl(29, 1_000_000, 0, 0, 0)",
        "changed its timer slack",
    ),
    "score_of_oom": (
        "with open('/proc/self/oom_score_adj', 'w') as file:\n    file.write('1000')",
        ""
        if Path("/proc/self/oom_score_adj").read_text() == "1000\n"
        else "changed its oom_score_adj",
    ),
    "dumpable": (
        "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)",
        "changed its identity or rights" if os.geteuid() == 0 else "cannot be checked",
    ),
    "rights": (
        "import ctypes\nctypes.CDLL(None).prctl(38, 1, 0, 0, 0)",
        "changed its identity or rights",
    ),
    "shared_memory": ("import mmap\nSHARED = mmap.mmap(-1, 4096)", "shares memory"),
    "read_only_memory": (
        "import mmap\nSHARED = mmap.mmap(-1, 4096, access=mmap.ACCESS_READ)",
        "",
    ),
    "random_state": ("import random, torch\nrandom.seed(1)\ntorch.manual_seed(1)", ""),
    "hangs_in_child": (
        HANG,
        "makes a forked process hang for 5 s",
    ),
    "fails_in_child": (
        "import os\nos.register_at_fork(after_in_child=lambda: os._exit(9))",
        "makes a forked process fail",
    ),
    "no_import_in_child": (NO_IMPORT, "makes a forked process fail"),
    "wrong_product": (
        "import torch\ntorch.Tensor.__matmul__ = lambda left, right: left",
        "makes a forked process fail",
    ),
    "thread_in_child": (
        START + "os.register_at_fork(after_in_child=start)",
        "started a thread at a fork",
    ),
    "signal_mask_in_child": (
        BLOCK,
        "changed the signal mask at a fork",
    ),
    "mask_of_files_in_child": (
        "import os\nos.register_at_fork(after_in_child=lambda: os.umask(0))",
        "changed the umask at a fork",
    ),
    "folder_before_fork": (
        "import os\nos.register_at_fork(before=lambda: os.chdir('/'))",
        "changed the working directory at a fork",
    ),
    "thread_in_parent": (
        START + "os.register_at_fork(after_in_parent=start)",
        "started a thread at a fork",
    ),
    "missing": ("import no_such_module_x", "cannot be imported: ModuleNotFoundError"),
    "dies": ("import os\nos._exit(1)", "the fork server has died while it imported planted_dies"),
    "ends_parent": (
        "import os\nos.register_at_fork(after_in_parent=lambda: os._exit(1))",
        "the fork server has died in the trial of planted_ends_parent",
    ),
}
# Several modules, of which the second is refused.
FAIL_TRIAL = ("fails_in_child", "hangs_in_child", "thread_in_child", "folder_before_fork")
SEVERAL = "planted_harmless planted_{} planted_another_variable"

# Does the same as the bootstrap, for each module in turn; torch is imported once.
TRY_EACH = """
import json, os, sys, types
sys.path.insert(0, sys.argv[2])
def part(name):
    module = types.ModuleType(name)
    exec(open(f"{sys.argv[1]}/{name}.py").read(), module.__dict__)
    return module
server, safety, rank = part("fork_server"), part("fork_safety"), part("forked_rank")
import torch
# The bootstrap has them, and its server closes them.
for fd in (60, 62):
    os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
found = {}
# The machine may be slow.
TRIAL_S, safety.TRIAL_S, server._SEARCH_S = safety.TRIAL_S, 60.0, 120.0
for name in sys.argv[3:]:
    before = safety.snapshot()
    reads = safety.EnvironmentReads()
    started, _ = server.start(safety, rank, before, reads, "torch", name.split())
    started.await_proof()
    found[name] = started.why_not
    started.end("")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The refusal of each planted module."""
    folder = tmp_path_factory.mktemp("planted")
    for name, (text, _) in PLANTED.items():
        (folder / f"planted_{name}.py").write_text(text + "\n")
    parts = Path(__file__).parents[3] / "agent" / "bootstrap"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            TRY_EACH,
            str(parts),
            str(folder),
            *(f"planted_{name}" for name in PLANTED),
            *(SEVERAL.format(name) for name in FAIL_TRIAL),
            "not_there",
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", PLANTED)
def test_a_module_that_makes_forks_unsafe_is_refused(refused: dict[str, str], name: str) -> None:
    words, found = PLANTED[name][1], refused[f"planted_{name}"]
    if words.startswith("the fork server"):
        assert found == words
    elif words:
        assert found.startswith(f"planted_{name} ")
        assert words in found
    else:
        assert not found


def test_a_module_that_is_not_found_is_refused_with_the_way_to_name_its_folder(
    refused: dict[str, str],
) -> None:
    remedy = "name the folder of a module that travels with the job: `env: {PYTHONPATH: .}`"
    assert refused["not_there"].endswith(remedy)
    assert remedy not in refused["planted_missing"]


@pytest.mark.parametrize("name", FAIL_TRIAL)
def test_a_failed_trial_names_one_of_several_modules(refused: dict[str, str], name: str) -> None:
    found = refused[SEVERAL.format(name)]
    assert found.startswith(f"planted_{name} ")
    assert PLANTED[name][1] in found


REFUSES = """
import sys, types, torch
safety = types.ModuleType("fork_safety")
exec(open(sys.argv[1]).read(), safety.__dict__)
torch.cuda._is_in_bad_fork = lambda: True
safety.TRIAL_S = 60.0
try:
    safety.check_trial(lambda: None)
except safety.Unsafe as error:
    print(error)
"""


def test_a_process_in_which_torch_refuses_cuda_is_not_forked() -> None:
    part = Path(__file__).parents[3] / "agent" / "bootstrap" / "fork_safety.py"
    done = subprocess.run(
        [sys.executable, "-c", REFUSES, str(part)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "uses CUDA at a fork\n"
