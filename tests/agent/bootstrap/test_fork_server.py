"""Every failure of the fork server means a cold start with its reason, and no rank starts twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from agent.bootstrap import main
from agent.shim.fork_server import bootstrap_text
from tests.agent.shims import test_torchrun

# Runs each story with a fork server of its own; torch is imported once.
STORIES = r"""
import json, os, signal, sys, time
parts = json.loads(os.environ.pop("PARTS"))
folder = sys.argv[1]
sys.path.insert(0, folder)

class Refused(Exception):
    pass

def load():
    names = {"PARTS": dict(parts), "__name__": "bootstrap"}
    exec(compile(parts["main"], "bootstrap", "exec"), names)
    return names

# The bootstrap has them, and its server closes them.
for fd in (60, 62, 63):
    os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
import torch

class Shim:
    def __init__(self):
        self.said = []
    def send(self, message):
        self.said.append(message)
        return True

class Process:
    pass

class Story:
    def __init__(self, name, preload="", more=lambda forks: None, edit=None):
        self.name, self.shim = name, Shim()
        os.environ["MUSTER_PRELOAD"] = preload
        if edit:
            parts_of, old, new = edit
            assert old in parts[parts_of]
            changed = {**parts, parts_of: parts[parts_of].replace(old, new)}
        else:
            changed = parts
        names = load()
        names["PARTS"].update(changed)
        self.forks = names["Forks"](asked=True)
        # The machine may be slow.
        self.forks._safety.TRIAL_S = 60.0
        more(self.forks)
        program = self.forks.start("torchrun")
        if program is not None:
            self.forks.rank.run(program)
            sys.stdout.flush()
            os._exit(0)

    def start(self, number=0, ranks=1, words=(), **options):
        "Start a rank. Returns it, or None if it has to start cold."
        env = {**os.environ, "RANK": str(number), "LOCAL_RANK": str(number)}
        env["LOCAL_WORLD_SIZE"] = str(ranks)
        self.env = env
        path = f"{folder}/{self.name}-{number}"
        words = [*words] or [sys.executable, "-u", f"{folder}/program.py", path]
        process = Process()
        process.__class__ = Process
        forked = self.forks.fork(self.shim, process, words, {"env": env, **options})
        return process if forked else None

    def run(self, number=0, ranks=1):
        process = self.start(number, ranks)
        if process is None:
            return None
        self.forks.started(self.env)
        return process.wait()

    def server(self):
        assert self.forks._server._pid > 1
        return self.forks._server._pid

    def why(self):
        return [message["why"] for message in self.shim.said]

found = {}

def story(function):
    found[function.__name__] = function()

def failing(*_):
    raise OSError(11, "planted")

@story
def no_process():
    real, os.fork = os.fork, failing
    try:
        story = Story("no_process")
    finally:
        os.fork = real
    return story.run(), story.why()

@story
def no_socket():
    import socket
    real, socket.socketpair = socket.socketpair, failing
    try:
        story = Story("no_socket")
    finally:
        socket.socketpair = real
    return story.run(), story.why()

@story
def no_memory():
    story = Story("no_memory")
    real, os.memfd_create = os.memfd_create, failing
    try:
        first = story.run()
    finally:
        os.memfd_create = real
    return first, story.run(), story.why()

@story
def dies_before_the_first_rank():
    story = Story("dies_before_the_first_rank")
    os.kill(story.server(), signal.SIGKILL)
    return story.run(), story.why()

@story
def dies_while_a_rank_runs():
    story = Story("dies_while_a_rank_runs")
    rank = story.start()
    os.kill(story.server(), signal.SIGKILL)
    story.forks.started(story.env)
    return rank.wait(), story.run(1), story.why()

@story
def dies_with_modules():
    story = Story("dies_with_modules", "reads_home")
    story.forks._server.await_proof()
    os.kill(story.server(), signal.SIGKILL)
    return story.run(), story.why()

@story
def searches_too_long():
    def impatient(forks):
        forks._module._SEARCH_S = 0.2
    story = Story("searches_too_long", "reads_home hangs_again", impatient)
    return story.run(), story.why()

@story
def is_stopped():
    story = Story("is_stopped")
    story.forks._module._ANSWER_S = 60
    story.forks._server.await_proof()
    os.kill(story.server(), signal.SIGSTOP)
    story.forks._server._receive.__func__.__defaults__ = (0.2, "", "")
    return story.run(), story.why()

@story
def never_loads():
    def impatient(forks):
        forks._module._PRELOAD_S = 3.0
    story = Story("never_loads", "sleeps", impatient)
    return story.run(), story.why()

@story
def cannot_become_a_rank():
    edit = ("forked_rank", "    _seed()\n", "    raise OSError('planted')\n")
    story = Story("cannot_become_a_rank", edit=edit)
    return story.run(), story.why()

@story
def no_map():
    edit = ("forked_rank", "    show_as([sys.executable]", "    raise OSError([sys.executable]")
    story = Story("no_map", edit=edit)
    return story.run(), story.why()

@story
def other_commands():
    story = Story("other_commands")
    started = [
        story.start(user="nobody"),
        story.start(words=["numactl", "--cpunodebind=0", sys.executable, "-u", "program.py"]),
        story.start(words=[sys.executable, "-u", "/bin/true"]),
        story.run(),
    ]
    return started, story.why()

@story
def the_import_changes_the_umask():
    story = Story("the_import_changes_the_umask", more=lambda forks: os.umask(0o077))
    os.umask(0o022)
    return story.run(), story.why()

@story
def the_import_starts_a_thread():
    import threading
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    story = Story("the_import_starts_a_thread", more=lambda forks: thread.start())
    ended.set()
    thread.join()
    return story.run(), story.why()

@story
def is_not_told_to_begin():
    story = Story("is_not_told_to_begin")
    rank = story.start()
    story.forks._server._drop()
    return rank.wait(), os.path.exists(f"{folder}/is_not_told_to_begin-0"), story.run(1)

@story
def starts_each_rank_once():
    story = Story("starts_each_rank_once")
    story.forks.once = True
    server = story.server()
    codes = [story.run(0, 2)]
    alive = os.path.exists(f"/proc/{server}")
    codes.append(story.run(1, 2))
    return codes, alive, os.path.exists(f"/proc/{server}"), story.why()

@story
def reads_the_rank():
    story = Story("reads_the_rank", "reads_rank")
    return story.run(), story.why()

@story
def reads_the_rank_as_bytes():
    story = Story("reads_the_rank_as_bytes", "reads_bytes")
    return story.run(), story.why()

@story
def ends_at_its_import():
    story = Story("ends_at_its_import", "exits_early")
    return story.run(), story.why()

@story
def reads_the_number_of_threads():
    story = Story("reads_the_number_of_threads", "reads_omp")
    os.environ["OMP_NUM_THREADS"] = "3"
    try:
        return story.run(), story.why()
    finally:
        del os.environ["OMP_NUM_THREADS"]

def with_another_affinity(name, preload=""):
    story = Story(name, preload)
    os.environ["KMP_AFFINITY"] = "compact"
    try:
        return story.run(), story.why()
    finally:
        del os.environ["KMP_AFFINITY"]

@story
def another_affinity():
    return with_another_affinity("another_affinity")

@story
def another_affinity_and_the_openmp_that_reads_it():
    return with_another_affinity("another_affinity_and_the_openmp_that_reads_it", "loads_iomp")

@story
def adopts_the_rank():
    story = Story("adopts_the_rank", "adopts_orphans")
    return story.run(), [why.partition(":")[0] for why in story.why()]

@story
def reads_another_variable():
    story = Story("reads_another_variable", "reads_home")
    return story.run(), story.why()

@story
def copies_the_environment():
    story = Story("copies_the_environment", "copies_all")
    return story.run(), story.why()

@story
def looks_for_a_prefix():
    story = Story("looks_for_a_prefix", "looks_for_prefix")
    return story.run(), story.why()

@story
def adds_a_variable():
    story = Story("adds_a_variable", "adds_variable")
    return story.run(), open(f"{folder}/adds_a_variable-0").read()

@story
def under_a_tracer():
    sys.setprofile(lambda *_: None)
    try:
        story = Story("under_a_tracer")
    finally:
        sys.setprofile(None)
    return story.run(), story.why()

@story
def customised():
    sys.path.insert(0, folder)
    sys.modules.pop("sitecustomize", None)
    import sitecustomize
    story = Story("customised")
    return story.run(), story.why()

print(json.dumps(found))
"""

HANGS_AGAIN = """
import os, time
os.register_at_fork(after_in_child=lambda: os._exit(9))
try:
    open(__file__ + ".imported", "x").close()
except FileExistsError:
    time.sleep(99)
"""

# A library of that name; the rule knows it by its name.
LOADS_IOMP = """
import _ctypes, ctypes, os, shutil
copy = os.path.join(os.path.dirname(__file__), "libiomp5.so")
shutil.copyfile(_ctypes.__file__, copy)
ctypes.CDLL(copy)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of each story."""
    folder = tmp_path_factory.mktemp("stories")
    (folder / "program.py").write_text(
        "import os, sys\nopen(sys.argv[1], 'x').write(os.environ.get('PLANTED', ''))\n"
    )
    (folder / "adds_variable.py").write_text("import os\nos.environ['PLANTED'] = 'added'\n")
    (folder / "sleeps.py").write_text("import time\ntime.sleep(99)\n")
    (folder / "hangs_again.py").write_text(HANGS_AGAIN)
    (folder / "reads_rank.py").write_text("import os\nRANK = os.environ.get('RANK', '0')\n")
    (folder / "reads_omp.py").write_text("import os\nos.environ.get('OMP_NUM_THREADS')\n")
    (folder / "loads_iomp.py").write_text(LOADS_IOMP)
    (folder / "exits_early.py").write_text("raise SystemExit(2)\n")
    (folder / "adopts_orphans.py").write_text("import ctypes\nctypes.CDLL(None).prctl(36, 1)\n")
    (folder / "reads_bytes.py").write_text("import os\nRANK = os.environb.get(b'RANK')\n")
    (folder / "reads_home.py").write_text("import os\nHOME = os.environ.get('HOME')\n")
    (folder / "looks_for_prefix.py").write_text(
        "import os\nOWN = [name for name, _ in os.environ.items() if name[:5] == 'TQDM_']\n"
    )
    (folder / "copies_all.py").write_text("import os\nRANK = dict(os.environ).get('RANK')\n")
    (folder / "sitecustomize.py").write_text("import os\nFIRST = os.environ.get('LOCAL_RANK')\n")
    done = subprocess.run(
        [sys.executable, "-I", "-c", STORIES, str(folder)],
        check=False,
        start_new_session=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PARTS": bootstrap_text().decode()},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


FAILED = "the fork server failed: BlockingIOError: [Errno 11] planted"
DIED = "the fork server has died"
NO_MAP = "this kernel lets no process change its /proc/environ"
FAILS = "makes a forked process fail (wait status 2304)"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("no_process", [None, [FAILED]]),
        ("no_socket", [None, [FAILED]]),
        ("no_memory", [None, None, [FAILED]]),
        ("dies_before_the_first_rank", [None, [DIED]]),
        ("dies_while_a_rank_runs", [0, None, ["", DIED]]),
        ("dies_with_modules", [None, [DIED]]),
        (
            "searches_too_long",
            [
                None,
                [f"one of torch, reads_home, hangs_again {FAILS}"],
            ],
        ),
        ("is_stopped", [None, ["the fork server did not answer within 0.2 s"]]),
        (
            "never_loads",
            [None, ["the fork server did not answer within 3 s while it imported sleeps"]],
        ),
        (
            "cannot_become_a_rank",
            [None, ["a forked process could not become a rank: OSError: planted"]],
        ),
        ("no_map", [None, [f"torch cannot be forked here: {NO_MAP}"]]),
        (
            "other_commands",
            [
                [None, None, None, 0],
                [
                    "this version of torch starts ranks with other options",
                    "ranks run numactl, not a Python program",
                    "/bin/true is not a Python file",
                    "",
                ],
            ],
        ),
        ("the_import_changes_the_umask", [None, ["torch changed the umask"]]),
        ("the_import_starts_a_thread", [None, ["torch started a thread"]]),
        ("is_not_told_to_begin", [1, False, 0]),
        ("starts_each_rank_once", [[0, 0], True, False, [""]]),
        ("reads_the_rank", [None, ["RANK had another value when reads_rank was imported"]]),
        (
            "reads_the_rank_as_bytes",
            [None, ["RANK had another value when reads_bytes was imported"]],
        ),
        ("ends_at_its_import", [None, ["exits_early cannot be imported: SystemExit: 2"]]),
        (
            "reads_the_number_of_threads",
            [None, ["OMP_NUM_THREADS had another value when reads_omp was imported"]],
        ),
        ("another_affinity", [0, [""]]),
        (
            "another_affinity_and_the_openmp_that_reads_it",
            [None, ["KMP_AFFINITY had another value when torch was imported"]],
        ),
        ("adopts_the_rank", [None, ["the fork server failed"]]),
        ("reads_another_variable", [0, [""]]),
        (
            "copies_the_environment",
            [None, ["LOCAL_RANK had another value when copies_all was imported"]],
        ),
        ("looks_for_a_prefix", [0, [""]]),
        ("adds_a_variable", [0, "added"]),
        ("under_a_tracer", [None, ["torch is loaded under a tracer or profiler"]]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fork_server_in_trouble(told: dict[str, Any], name: str, wanted: list[Any]) -> None:
    assert told[name] == wanted


@pytest.mark.torch
def test_a_customised_start_that_reads_the_rank_is_named(told: dict[str, Any]) -> None:
    code, (why,) = told["customised"]
    assert code is None
    assert why.endswith("/sitecustomize.py, which reads RANK")


def test_a_bootstrap_without_its_parts_starts_ranks_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "PARTS", {})
    said: list[main.Message] = []

    class Shim:
        def send(self, message: main.Message) -> bool:
            said.append(message)
            return True

    forks = main.Forks(asked=True)
    assert forks.start("torchrun") is None
    assert not forks.fork(Shim(), None, ["python"], {})  # type: ignore[arg-type]
    forks.started({})
    forks.end("the job has ended")
    assert [message["why"] for message in said] == [
        "the fork server failed: KeyError: 'fork_server'"
    ]
    assert said[0]["method"] == "exec"


def test_the_server_of_a_gang_of_fixed_size_ends_with_the_last_start() -> None:
    assert main._starts_ranks_once([*test_torchrun.torchrun(1, "train.py").argv])
    assert not main._starts_ranks_once([*test_torchrun.c10d(1, "train.py").argv])
