"""Time from a submit to the first all-reduce of two nodes, or to the first step of a model of
transformers, compared with two torchruns started by hand.

Pairs are run in the order ours, theirs, theirs, ours, so that a machine that becomes slower or
faster favours neither. Every run starts new processes; torch's files are in the page cache.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.launch.cluster import Connection, Wrong, cluster, job_of, settle
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import LocalCluster, free_port

NODES = 2
CASES = ("2x1", "2x4", "transformers")
_PROGRAMS = Path(__file__).parent / "programs"
_ALL_REDUCE, _STEP = _PROGRAMS / "first_all_reduce.py", _PROGRAMS / "first_step.py"
_MODEL = "transformers.models.llama.modeling_llama"
_HAND_S = 120.0
_HOSTS = ("127.0.0.11", "127.0.0.12")


def measure(pairs: int, cases: Sequence[str] = CASES) -> tuple[list[Row], list[str]]:
    """Measure Muster, with both start methods of ranks, and torchrun in turns, and Muster's own
    overhead from the job's history.
    """
    compared = {
        "2x1": _Comparison("first all-reduce, 2 nodes x 1 rank, gloo", 1, [_EXEC, _FORK]),
        "2x4": _Comparison("first all-reduce, 2 nodes x 4 ranks, gloo", 4, [_Way("fork", 0.55)]),
        "transformers": _Comparison(
            "first step, 2 nodes x 1 rank, transformers", 1, _PRELOADED, _STEP
        ),
    }
    rows: list[Row] = []
    notes: list[str] = []
    with cluster(NODES) as local, contextlib.closing(Connection(local)) as connection:
        for case in cases:
            if case == "transformers" and not _installed():
                notes.append("transformers was left out: `pip install transformers`")
                continue
            comparison, parts = compared[case], Parts()
            # The first pair fills the page cache.
            comparison.run(local, connection, 1, Parts())
            comparison.clear()
            comparison.run(local, connection, pairs, parts)
            rows += comparison.rows()
            if case == "2x1":
                rows += parts.rows()
    return rows, notes


def _installed() -> bool:
    return importlib.util.find_spec("transformers") is not None


@dataclass(frozen=True)
class _Way:
    """A start method of ranks, its aim, and the modules to load before."""

    method: str
    aim: float
    preload: tuple[str, ...] = ()

    def __str__(self) -> str:
        modules = ", ".join(name.rpartition(".")[2] for name in self.preload)
        return f"{self.method}, preload: [{modules}]" if modules else self.method


_EXEC, _FORK = _Way("exec", 1.0), _Way("fork", 0.65)
# transformers loads the module of a model when it is asked for it.
_PRELOADED = [
    _Way("fork", 0.65, ("transformers",)),
    _Way("fork", 0.65, ("transformers", _MODEL)),
]


class _Comparison:
    """Runs of one size and program: ours in several ways, and by hand."""

    def __init__(
        self, what: str, ranks: int, ways: list[_Way], program: Path = _ALL_REDUCE
    ) -> None:
        self._what, self._ranks, self._ways, self._program = what, ranks, ways, program
        self.clear()

    def clear(self) -> None:
        what = self._what
        self._ours = {
            way: Row("all-reduce", f"submit -> {what}, {way}", "ours", "s") for way in self._ways
        }
        self._hand = Row("all-reduce", f"two torchruns by hand, {what}", "peer", "s")
        self._ratios = {
            way: Row(
                "all-reduce", f"{way} / by hand, paired, {what}", "ours", "ratio", Aim(way.aim)
            )
            for way in self._ways
        }

    def run(self, local: LocalCluster, connection: Connection, pairs: int, parts: Parts) -> None:
        for _, forwards in zip(range(pairs), itertools.cycle((True, False)), strict=False):
            took: dict[_Way | None, float] = {}
            order = [*self._ways, None]
            for way in order if forwards else reversed(order):
                if way is None:
                    took[way] = _by_hand(local, self._ranks, self._program)
                else:
                    took[way], job = _ours(local, connection, self._ranks, way, self._program)
                    if way == _EXEC:
                        parts.add(_Times(connection.events(job)))
            self._hand.add(took[None])
            for way in self._ways:
                self._ours[way].add(took[way])
                self._ratios[way].add(took[way] / took[None])

    def rows(self) -> list[Row]:
        return [*self._ours.values(), self._hand, *self._ratios.values()]


class Parts:
    """The parts of a launch with `start_method: exec`."""

    def __init__(self) -> None:
        self._added = Row(
            "all-reduce", "of it our own path, torch's import taken out", "ours", aim=Aim(50.0)
        )
        self._parts = [Row("all-reduce", f"  {name}", "ours") for name in _PARTS]
        self._boot = Row("all-reduce", "  (bootstrap's import of torch, slower node)", "ours")
        self._listen = Row("all-reduce", "  (torchrun's way to its port, launcher)", "ours")

    def add(self, times: _Times) -> None:
        for row, part in zip(self._parts, times.parts(), strict=True):
            row.add(part * 1e3)
        self._added.add(sum(times.parts()) * 1e3)
        self._boot.add(times.boot_s * 1e3)
        self._listen.add(times.listening_s * 1e3)

    def rows(self) -> list[Row]:
        return [self._added, *self._parts, self._boot, self._listen]


_PARTS = (
    "submit received -> prepared everywhere, less the import",
    "prepared -> plan on every node -> released, on record",
    "released -> launcher's torchrun running",
    "launcher's port listens -> worker's torchrun running",
)


class _Times:
    """Times of one job, as recorded by the coordinator (wall seconds)."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._at: dict[tuple[str, int], float] = {}
        boots: dict[int, float] = {}
        for event in events:
            rank = event["fields"].get("rank", -1)
            self._at[event["kind"], rank] = datetime.fromisoformat(event["at"]).timestamp()
            if event["kind"] == "TaskPrepared":
                boots[rank] = event["fields"]["prepared"]["boot_s"]
        # The gang waited for the node that was ready last.
        slower = max(boots, key=lambda rank: self._at["TaskPrepared", rank])
        self.boot_s = boots[slower]
        self._prepared = self._at["TaskPrepared", slower]

    @property
    def listening_s(self) -> float:
        return self._at["TaskListening", 0] - self._at["TaskStarted", 0]

    def parts(self) -> tuple[float, ...]:
        """Seconds, in the order of `_PARTS`, without the launcher's way to its port."""
        released = self._at["AttemptStarted", -1]
        return (
            self._prepared - self._at["JobSubmitted", -1] - self.boot_s,
            released - self._prepared,
            self._at["TaskStarted", 0] - released,
            self._at["TaskStarted", 1] - self._at["TaskListening", 0],
        )


def _ours(
    local: LocalCluster, connection: Connection, ranks: int, way: _Way, program: Path
) -> tuple[float, int]:
    """Seconds until the slower rank has come to its moment, and the job."""
    settle(local)
    with _moments() as folder:
        body = job_of(
            nodes=NODES,
            nproc_per_node=ranks,
            run=[str(program)],
            env={"BENCH_MOMENTS": str(folder)},
            start_method=way.method,
            **({"preload": list(way.preload)} if way.preload else {}),
        )
        began = time.time()
        job = connection.submit(body)
        connection.wait(job)
        return _last(folder, ranks) - began, job


def _by_hand(local: LocalCluster, ranks: int, program: Path) -> float:
    """Seconds from the start of both commands."""
    settle(local)
    with _moments() as folder:
        port = free_port()
        began = time.time()
        nodes = [
            subprocess.Popen(
                [*_torchrun(rank, ranks, port, folder / f"logs-{rank}"), str(program)],
                env={**_environment(port, ranks), "BENCH_MOMENTS": str(folder)},
                cwd="/tmp",  # noqa: S108 - where ours runs too
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for rank in range(NODES)
        ]
        try:
            codes = [node.wait(_HAND_S) for node in nodes]
        finally:
            for node in nodes:
                # torchrun ends its ranks on SIGTERM.
                node.terminate()
                node.wait()
        if any(codes):
            raise Wrong(f"torchrun by hand ended with {codes}")
        return _last(folder, ranks) - began


def _torchrun(rank: int, ranks: int, port: int, logs: Path) -> list[str]:
    """Return the arguments that the coordinator uses (orchestrator/core/gangs/torchrun.py)."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *("--nnodes", str(NODES)),
        *("--node-rank", str(rank)),
        *("--nproc-per-node", str(ranks)),
        *("--rdzv-backend", "static"),
        *("--master-addr", _HOSTS[0]),
        *("--master-port", str(port)),
        *("--rdzv-id", "by-hand"),
        *("--max-restarts", "0"),
        *("--redirects", "3"),
        *("--log-dir", str(logs)),
        *("--local-addr", _HOSTS[rank]),
    ]


def _environment(port: int, ranks: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": _HOSTS[0],
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        # Muster sets it, too, and torchrun itself, with a warning.
        **({"OMP_NUM_THREADS": "1"} if ranks > 1 else {}),
    }


@contextlib.contextmanager
def _moments() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="muster-moments-") as folder:
        yield Path(folder)


def _last(folder: Path, ranks: int) -> float:
    moments = [float(path.read_text()) for path in folder.glob("rank-*")]
    if len(moments) != NODES * ranks:
        raise Wrong(f"{len(moments)} of {NODES} ranks came to their moment")
    return max(moments)
