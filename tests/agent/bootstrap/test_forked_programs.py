"""A program ends alike as a forked and as an executed rank: exit code, output, error file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.shim.fork_server import bootstrap_text

pytestmark = pytest.mark.torch

PROGRAMS = {
    "succeeds": "print('said', __name__, __file__)",
    "exits": "import sys\nprint('said')\nsys.exit(3)",
    "exits_with_words": "import sys\nsys.exit('these words')",
    "exits_at_once": "import os\nprint('said', end='')\nos._exit(7)",
    "exits_beyond_a_byte": "raise SystemExit(256 + 3)",
    "exits_in_a_function": "def leave():\n    raise SystemExit(4)\nleave()",
    "is_killed": "import os\nprint('said')\nos.kill(os.getpid(), 9)",
    "aborts": "import os\nos.abort()",
    "is_terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "is_interrupted": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('no')",
    "raises": """
import beside
def call():
    try:
        beside.fail(1)
    except KeyError as error:
        error.add_note("a note")
        raise ValueError("the data are not there") from error
call()
""",
    "raises_a_group": "raise ExceptionGroup('all', [ValueError(1), KeyError('x')])",
    "raises_while_it_handles": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    [][1]",
    "is_no_python": "print('never')\nif True print('wrong')",
    "misses_a_module": "import no_such_module_x",
    "misses_a_module_in_one": "import beside\nbeside.load()",
    "has_a_hook": """
import sys, traceback
def hook(kind, value, trace):
    print("hook", kind.__name__, value, [frame.name for frame in traceback.extract_tb(trace)])
sys.excepthook = hook
raise ValueError("x")
""",
    "limits_tracebacks": "import sys\nsys.tracebacklimit = 1\ndef f(): raise ValueError(1)\nf()",
    "prints_its_own_traceback": """
import logging, traceback
try:
    raise ValueError("x")
except ValueError:
    traceback.print_exc()
    logging.exception("logged")
""",
    "warns": "import warnings\nwarnings.warn('careful')\nwarnings.warn('old', DeprecationWarning)",
    "exit_handlers": """
import atexit, threading
class Deleted:
    def __del__(self):
        print("deleted")
kept = Deleted()
atexit.register(print, "first registered")
atexit.register(print, "last registered")
def late():
    threading.main_thread().join()
    print("a thread", threading.main_thread().is_alive())
threading.Thread(target=late).start()
print("main ends")
""",
    "an_exit_handler_fails": "import atexit\natexit.register(lambda: 1 / 0)\nprint('said')",
    "a_thread_fails": """
import threading
def fail():
    raise ValueError("in a thread")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
print(threading.Thread().name)
""",
    "unraisable": """
class Broken:
    def __del__(self):
        raise ValueError("deleted")
broken = Broken()
del broken
print("goes on")
""",
    "pickles": """
import copy, dataclasses, inspect, pickle, sys, typing
@dataclasses.dataclass
class Point:
    x: "Point | None" = None
made = pickle.loads(pickle.dumps(Point(Point())))
print(made, Point.__module__, sys.modules["__main__"].Point is Point)
print(typing.get_type_hints(Point), inspect.getsource(Point).splitlines()[1])
print(pickle.dumps(Point())[:40])
""",
    "reads_nothing": "import sys\nprint(repr(sys.stdin.read()))",
    "runs_another": """
import os, subprocess, sys
code = "import os, sys; print(os.environ['RANK'], sys.argv, 'torch' in sys.modules)"
print(subprocess.run([sys.executable, "-c", code, "x"], capture_output=True, text=True).stdout)
""",
    "forks": """
import os, sys
pid = os.fork()
if not pid:
    print("child", flush=True)
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
""",
    "processes": """
import multiprocessing
def work():
    print(multiprocessing.current_process().name, __name__, flush=True)
    raise SystemExit(6)
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
        print(method, process.exitcode)
""",
    "runs_a_loop": "import asyncio\nasync def f():\n    raise ValueError('x')\nasyncio.run(f())",
    "handles_a_signal": """
import os, signal
signal.signal(signal.SIGTERM, lambda number, _: print("handled", number))
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
""",
    "records": """
from torch.distributed.elastic.multiprocessing.errors import record
import beside
@record
def main():
    beside.fail(2)
main()
""",
    "threads_of_torch": """
import os
os.environ["OMP_NUM_THREADS"] = "3"
import torch
print(torch.get_num_threads(), "OMP_NUM_THREADS=3" in open("/proc/self/environ").read())
""",
    "threads_of_torch_stay": """
import os
os.environ["OMP_NUM_THREADS"] = "2"
from torch import get_num_threads
os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(get_num_threads(), torch.__spec__.name, type(torch.__spec__))
""",
    "threads_of_numpy": """
import os, numpy
print(len(os.listdir("/proc/self/task")))
numpy.ones((300, 300)) @ numpy.ones((300, 300))
print(len(os.listdir("/proc/self/task")))
""",
    "interpreter": """
import sys, os
print(sys.flags, sys._xoptions, sys.warnoptions, sys.dont_write_bytecode, sys.pycache_prefix)
print(sys.stdout.write_through, sys.stdout.encoding, sys.path, os.environ["PYTHONPATH"])
""",
}
BESIDE = """
def fail(number):
    raise KeyError(number)
def load():
    import no_such_module_y
"""
# Runs each program in both ways. The server and its descriptors are those of a bootstrap.
RUN_EACH = r"""
import json, os, subprocess, sys
parts = json.loads(os.environ.pop("PARTS"))
folder, module, names = sys.argv[1], sys.argv[2] == "-m", sys.argv[3:]
for fd in (60, 62, 63):
    os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
bootstrap = {"PARTS": parts, "__name__": "bootstrap"}
exec(compile(parts["main"], "bootstrap", "exec"), bootstrap)

class Shim:
    def send(self, message):
        if message["why"]:
            raise SystemExit(message["why"])

class Process:
    pass

def read(path):
    if not os.path.exists(path):
        return None
    with open(path, errors="replace") as file:
        return file.read()

def main():
    forks = bootstrap["Forks"](asked=True)
    # The machine may be slow.
    forks._safety.TRIAL_S = 60.0
    import torch, numpy
    program = forks.start("torchrun")
    if program is not None:
        forks.rank.run(program)
        return
    found = {}
    for name in names:
        run = ["-m", name] if module else [f"{folder}/{name}.py"]
        words = [sys.executable, "-u", *run, "a word"]
        found[name] = []
        for way in ("exec", "fork"):
            error_file = f"{folder}/{name}.{way}.json"
            env = {**os.environ, "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
            env["TORCHELASTIC_ERROR_FILE"] = error_file
            # torchrun sets it for several ranks. It need not be set at the gate.
            env.setdefault("OMP_NUM_THREADS", "1")
            paths = [f"{folder}/{name}.{way}.{stream}" for stream in ("stdout", "stderr")]
            out, err = (os.open(path, os.O_CREAT | os.O_WRONLY) for path in paths)
            options = {"env": env, "stdout": out, "stderr": err}
            if way == "exec":
                code = subprocess.run(words, **options).returncode
            else:
                process = Process()
                forks.fork(Shim(), process, words, options)
                forks.started(env)
                code = process.wait()
            os.close(out), os.close(err)
            found[name].append([code, *map(read, paths), read(error_file)])
    forks.end("done")
    print(json.dumps(found))

main()
"""


def outcomes(folder: Path, words: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Exit code, output and error file of each program, first executed and then forked."""
    done = subprocess.run(
        [sys.executable, "-u", "-c", f"import sys; sys.path[:1] = []\n{RUN_EACH}", folder, *words],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], "PARTS": bootstrap_text().decode(), **env},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    (made / "beside.py").write_text(BESIDE)
    for name, text in {**PROGRAMS, "dumps": DUMPS}.items():
        (made / f"{name}.py").write_text(text.lstrip() + "\n")
    return made


DUMPS = """
import faulthandler, os, signal
faulthandler.enable()
def crash():
    os.kill(os.getpid(), signal.SIGSEGV)
crash()
"""
PYTHON = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": "/nowhere",
    "PYTHONWARNINGS": "always",
    "PYTHONHASHSEED": "5",
}


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return outcomes(folder, ["script", *PROGRAMS, "dumps"], PYTHON)


@pytest.fixture(scope="module")
def found_as_modules(folder: Path) -> dict[str, Any]:
    names = [
        name for name in PROGRAMS if name.startswith(("exit", "raise", "pickles", "threads_of"))
    ]
    return outcomes(folder, ["-m", *names], {"PYTHONUNBUFFERED": "1"})


def assert_alike(ways: list[Any]) -> None:
    code, *texts = zip(*ways, strict=True)
    assert code[0] == code[1]
    for executed, forked in texts:
        assert without_run(forked) == without_run(executed)


def without_run(text: str | None) -> str:
    """The text without addresses and times."""
    return re.sub(r'0x[0-9a-f]+|"timestamp": "\d+"', "", text or "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_alike(found: dict[str, Any], name: str) -> None:
    assert_alike(found[name])


def test_a_module_ends_alike(found_as_modules: dict[str, Any]) -> None:
    assert len(found_as_modules) > 10
    for ways in found_as_modules.values():
        assert_alike(ways)


def test_the_programs_do_what_their_names_say(found: dict[str, Any]) -> None:
    codes = {name: forked[0] for name, (_, forked) in found.items()}
    assert (codes["exits"], codes["exits_at_once"], codes["raises"]) == (3, 7, 1)
    assert codes["is_interrupted"] == -signal.SIGINT
    assert codes["dumps"] == -signal.SIGSEGV
    assert "KeyError: 2" in json.loads(found["records"][1][3])["message"]["message"]
    assert found["threads_of_torch"][1][1] != "1 False\n"


def test_a_dump_of_faulthandler_begins_at_the_program(found: dict[str, Any]) -> None:
    executed, forked = (way[2].splitlines() for way in found["dumps"])
    assert executed[0] == forked[0] == "Fatal Python error: Segmentation fault"
    frames = [line for line in executed if line.startswith("  File")]
    assert [line for line in forked if line.startswith("  File")][: len(frames)] == frames
    assert len(frames) == 2
