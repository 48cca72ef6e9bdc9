"""Time from a submit to the first all-reduce with NCCL of one rank on one GPU, compared with
torchrun started by hand. The initialisation of CUDA is stated apart.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.launch.cluster import Connection, cluster, job_of, settle
from benchmarks.launch.samples import Aim, Row
from examples.local_cluster import LocalCluster, free_port

_PROGRAM = Path(__file__).parent / "programs" / "first_nccl.py"
_HAND_S = 120.0
_HAND = "torchrun by hand"
_WAYS = ("fork", "exec", _HAND)


def measure(pairs: int, backend: str = "nccl") -> tuple[list[Row], list[str]]:
    """Measure both start methods and torchrun in turns; exec in every third. `backend`: gloo tries
    the benchmark itself, without a GPU.
    """
    if backend == "nccl" and shutil.which("nvidia-smi") is None:
        return [], ["nccl was left out: there is no GPU"]
    took, cuda, first = ({way: _row(what, way) for way in _WAYS} for what in _WHAT)
    paired = {way: _ratio(f"{way} / by hand, paired") for way in _WAYS[:2]}
    less = {way: _ratio(f"{way} / by hand, paired, without CUDA's start") for way in _WAYS[:2]}
    with (
        cluster(1, _GpuCluster if backend == "nccl" else LocalCluster) as local,
        contextlib.closing(Connection(local)) as connection,
    ):
        # The pair before the first fills the page cache.
        for number in range(-1, pairs):
            ways = [way for way in _WAYS if way != "exec" or number % 3 == 0]
            found = {
                way: _run(local, connection, way, backend)
                for way in (ways if number % 2 else reversed(ways))
            }
            if number < 0:
                continue
            hand = found[_HAND]
            for way, run in found.items():
                for row, sample in zip((took, cuda, first), run, strict=True):
                    row[way].add(sample)
                if way != _HAND:
                    paired[way].add(run[0] / hand[0])
                    less[way].add((run[0] - run[1]) / (hand[0] - hand[1]))
    rows = [row for kind in (took, paired, less, cuda, first) for row in kind.values()]
    return [row for row in rows if row.samples], []


_WHAT = (
    "start -> first all-reduce, 1 node x 1 rank, NCCL",
    "  initialisation of CUDA",
    "  first all-reduce, including NCCL's start",
)


def _row(what: str, way: str) -> Row:
    return Row("nccl", f"{what}, {way}", "peer" if way == _HAND else "ours", "s")


def _ratio(what: str) -> Row:
    return Row("nccl", what, "ours", "ratio", Aim(0.65) if what.startswith("fork") else None)


class _GpuCluster(LocalCluster):
    def _place(self, number: int) -> dict[str, object]:
        return {**super()._place(number), "gpus": "auto"}


def _run(
    local: LocalCluster, connection: Connection, way: str, backend: str
) -> tuple[float, float, float]:
    """Seconds to the all-reduce, of CUDA's initialisation, and of the all-reduce itself."""
    settle(local)
    with tempfile.TemporaryDirectory(prefix="muster-moments-") as folder:
        env = {"BENCH_MOMENTS": folder, "BENCH_BACKEND": backend}
        if "LD_LIBRARY_PATH" in os.environ:
            env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        began = time.time()
        if way == _HAND:
            _by_hand(folder, env)
        else:
            body = job_of(nodes=1, nproc_per_node=1, run=[str(_PROGRAM)], env=env, start_method=way)
            began = time.time()
            connection.wait(connection.submit(body))
        moment, cuda_s, first_s = map(float, (Path(folder) / "rank-0").read_text().split())
        return moment - began, cuda_s, first_s


def _by_hand(folder: str, env: dict[str, str]) -> None:
    subprocess.run(
        [
            sys.executable,
            *("-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "1"),
            *("--rdzv-backend", "static", "--master-addr", "127.0.0.1"),
            *("--master-port", str(free_port()), "--max-restarts", "0"),
            *("--redirects", "3", "--log-dir", f"{folder}/logs", str(_PROGRAM)),
        ],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **env},
        cwd="/tmp",  # noqa: S108 - where ours runs too
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=_HAND_S,
    )
