"""`launcher: accelerate` and `deepspeed`: torchrun, and what those launchers add to it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from examples.local_cluster import LocalCluster
from tests.agent.shims.test_forked_ranks import PROBE, without_run
from tests.cluster.jobs import assert_forked, submit, wait

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="torch is not installed")

TELLS = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "PRECISION")
found = {name: os.environ.get(name) for name in names}
with open(f"found-{os.environ['RANK']}", "w") as file:
    json.dump({**found, "argv": sys.argv[1:]}, file)
"""
# Does the same as accelerate's launcher, with its names: its parser reads options and script, it
# sets an environment, and calls torchrun's `run` at the end.
ACCELERATE = """
import argparse, os
from torch.distributed import run as distrib_run

def launch_command_parser():
    parser = argparse.ArgumentParser()
    for name in ("num_machines", "num_processes", "machine_rank", "main_process_port"):
        parser.add_argument("--" + name, type=int)
    for name in ("main_process_ip", "deepspeed_multinode_launcher", "mixed_precision"):
        parser.add_argument("--" + name)
    parser.add_argument("--multi_gpu", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser

def launch_command(args):
    assert (args.num_machines, args.num_processes) == (2, 4), args
    assert args.machine_rank == int(os.environ["NODE_RANK"]), args
    if args.cpu:
        simple_launcher(args)
        return
    os.environ["PRECISION"] = args.mixed_precision
    distrib_run.run(args)

def prepare_simple_launcher_cmd_env(args):
    return [], {**os.environ, "PRECISION": "of a cpu"}

def simple_launcher(args):
    raise AssertionError("this would start one process")
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Make a folder in which the job finds an accelerate and a deepspeed."""
    folder = tmp_path / "packages"
    (folder / "accelerate" / "commands").mkdir(parents=True)
    for package in ("accelerate", "accelerate/commands", "deepspeed"):
        (folder / package).mkdir(exist_ok=True)
        (folder / package / "__init__.py").touch()
    (folder / "accelerate" / "commands" / "launch.py").write_text(ACCELERATE)
    return folder


def environments(
    cluster: LocalCluster, tmp_path: Path, packages: Path, **job: Any
) -> list[dict[str, Any]]:
    """Return what each rank of a gang of 2 nodes with 2 ranks reports of itself."""
    (tmp_path / "tells.py").write_text(TELLS)
    number = submit(
        cluster, tmp_path, nodes=2, nproc_per_node=2, env={"PYTHONPATH": str(packages)}, **job
    )
    assert wait(cluster, number) == 0, cluster.muster("show", number).stdout
    assert_forked(cluster, number)
    return [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in range(4)]


def test_ranks_of_deepspeed(cluster: LocalCluster, tmp_path: Path, packages: Path) -> None:
    ranks = environments(
        cluster, tmp_path, packages, launcher="deepspeed", run="tells.py --lr 1e-5"
    )
    for rank, found in enumerate(ranks):
        node, local = divmod(rank, 2)
        assert found["argv"] == [f"--local_rank={local}", "--lr", "1e-5"]
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE")
        assert [found[name] for name in names] == [*map(str, (rank, local, 4, node, 2, 2))]


@pytest.mark.parametrize(
    ("options", "precision"), [("--mixed_precision bf16", "bf16"), ("--cpu", "of a cpu")]
)
def test_the_environment_is_accelerates(
    cluster: LocalCluster, tmp_path: Path, packages: Path, options: str, precision: str
) -> None:
    run = f"{options} tells.py --lr 1e-5"
    ranks = environments(cluster, tmp_path, packages, launcher="accelerate", run=run)
    assert [found["RANK"] for found in ranks] == ["0", "1", "2", "3"]
    assert {found["PRECISION"] for found in ranks} == {precision}
    assert {tuple(found["argv"]) for found in ranks} == {("--lr", "1e-5")}


GATHERS = """
import json, os
import accelerate, torch
state = accelerate.Accelerator(cpu=True)
numbers = state.gather(torch.ones(1) * state.process_index).tolist()
found = {"numbers": numbers, "precision": state.mixed_precision, "kmp": os.environ["KMP_BLOCKTIME"]}
with open(f"found-{os.environ['RANK']}", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def accelerate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install accelerate, without a torch of its own, and return the folder of its packages."""
    folder = tmp_path_factory.mktemp("accelerate")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    # pip takes the torch of this interpreter for installed.
    (packages / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "accelerate==1.15.0"],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"accelerate cannot be installed here: {done.stderr[-300:]}")
    return packages


@pytest.mark.long
def test_ranks_of_the_real_accelerate_are_forked(
    cluster: LocalCluster, tmp_path: Path, accelerate: Path
) -> None:
    (tmp_path / "gathers.py").write_text(GATHERS)
    number = submit(
        cluster,
        tmp_path,
        nodes=2,
        nproc_per_node=2,
        launcher="accelerate",
        run="--cpu --mixed_precision bf16 gathers.py",
        env={"PYTHONPATH": str(accelerate)},
    )
    assert wait(cluster, number) == 0, cluster.muster("show", number).stdout
    assert_forked(cluster, number)
    for rank in range(4):
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        assert found == {"numbers": [0.0, 1.0, 2.0, 3.0], "precision": "bf16", "kmp": "1"}


@pytest.mark.parametrize("launcher", ["accelerate", "deepspeed"])
def test_a_missing_launcher_is_refused_before_the_start(
    cluster: LocalCluster, tmp_path: Path, launcher: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tells.py").write_text(TELLS)
    job = submit(cluster, tmp_path, launcher=launcher, run="tells.py")
    assert wait(cluster, job) == 123
    assert f"has no {launcher}; install it there" in cluster.muster("show", job).stdout


OF_A_JOB = {"MUSTER_JOB_ID", "MUSTER_MASTER_PORT", "MUSTER_OUTPUT_DIR", "TORCHELASTIC_RUN_ID"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param({"launcher": "accelerate"}, "--mixed_precision bf16 ", id="accelerate"),
        pytest.param({"launcher": "deepspeed"}, "", id="deepspeed"),
        pytest.param({"launcher": "torchrun", "nodes": "1..2"}, "", id="elastic"),
    ],
)
def test_a_probe_finds_no_difference_under(
    cluster: LocalCluster, tmp_path: Path, packages: Path, kind: dict[str, Any], options: str
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    reports, job = [], ""
    for method in ("exec", "fork"):
        job = submit(
            cluster,
            tmp_path,
            nproc_per_node=2,
            env={"PYTHONPATH": str(packages)},
            start_method=method,
            run=f"{options}probe.py {tmp_path}/report-{method}-",
            **{"nodes": 2, **kind},
        )
        assert wait(cluster, job) == 0, cluster.muster("show", job).stdout
        files = sorted(tmp_path.glob(f"report-{method}-*"))
        assert len(files) == 4
        made = [without_run(json.loads(file.read_text())["found"]) for file in files]
        for report in made:
            # The pool of OpenBLAS is there already in a forked rank.
            report.pop("Threads")
            report["environ"] |= dict.fromkeys(OF_A_JOB & set(report["environ"]), "")
        reports.append(re.sub(rf"(?<![\w-]){job}(?=\.1\.)", "JOB", json.dumps(made)))
    assert_forked(cluster, job)
    cold, forked = (json.loads(each) for each in reports)
    assert forked == cold


STARTS_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
"""


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        pytest.param({"preload": ["planted"]}, "planted started a thread", id="refused module"),
        pytest.param({"start_method": "exec"}, "start_method: exec", id="exec"),
    ],
)
def test_show_says_why_ranks_were_not_forked(
    cluster: LocalCluster, tmp_path: Path, wanted: dict[str, Any], why: str
) -> None:
    (tmp_path / "planted.py").write_text(STARTS_A_THREAD)
    (tmp_path / "tells.py").write_text(TELLS)
    job = submit(
        cluster,
        tmp_path,
        launcher="torchrun",
        run=["tells.py"],
        env={"PYTHONPATH": str(tmp_path)},
        **wanted,
    )
    assert wait(cluster, job) == 0, cluster.muster("show", job).stdout
    (task,) = cluster.client().job(int(job)).attempts[-1].tasks
    assert task.start is not None
    assert task.start.method == "exec"
    assert why in " ".join(cluster.muster("show", job).stdout.split())
