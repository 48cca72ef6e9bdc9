"""Files that travel in the `setup` of a job."""

import subprocess
import sys
from pathlib import Path

import pytest

import muster.bench
from muster.bench.job import allreduce_job
from muster.check import program
from muster.check.job import check_job
from muster.client.embedded_files import package_of, shipped, source_of
from muster.spec.model import Rdma
from muster.spec.parse import parse_document
from muster.spec.yaml.loader import Document


@pytest.mark.parametrize(
    "text",
    ["plain\n", "no end", "% $HOME `id` \\n '\"\n", "long\n" * 50_000, "\u20ac" * 70_000],
    ids=["plain", "no-end", "quotes", "long", "wide"],
)
def test_files_arrive_as_they_were(tmp_path: Path, text: str) -> None:
    subprocess.run(shipped({"one.txt": text, "two.txt": "2"}), cwd=tmp_path, check=True)
    assert (tmp_path / "one.txt").read_text() == text
    assert (tmp_path / "two.txt").read_text() == "2"


def test_our_programs_are_shipped_whole(tmp_path: Path) -> None:
    subprocess.run(
        shipped({"a.py": source_of(muster.bench, "allreduce")}), cwd=tmp_path, check=True
    )
    compile((tmp_path / "a.py").read_text(), "a.py", "exec")


def test_a_package_is_found_under_its_own_name_and_nothing_else_of_ours(tmp_path: Path) -> None:
    subprocess.run(shipped(package_of(program)), cwd=tmp_path, check=True)
    asks = (
        "import sys, muster, muster.check.program.peer as node, muster.check.program.driver;"
        "print(muster.__file__, node.__file__, sorted(n for n in sys.modules if 'muster' in n))"
    )
    # Neither our environment nor what is installed in it.
    done = subprocess.run(
        [sys.executable, "-S", "-c", asks],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(tmp_path)) == 2
    assert "muster.client" not in done.stdout


def test_a_check_of_five_hundred_nodes_with_nine_networks_is_a_job() -> None:
    names = [f"gpu-node-{number:04}" for number in range(500)]
    networks = {
        f"10.{net}.0.0/16": {
            name: f"10.{net}.{at // 250}.{at % 250}" for at, name in enumerate(names)
        }
        for net in range(9)
    }
    job = check_job(names, networks, size=1 << 24, timeout_s=3.0, key="k" * 16, pool="default")
    spec = parse_document(Document(job), {})
    assert spec.nodes == 500
    assert spec.retry.infra == 0


def test_the_benchmark_is_a_job() -> None:
    job = allreduce_job(
        2, (1 << 20,), rdma="required", iterations=20, warmups=5, named=("a", "b"), pool="p"
    )
    spec = parse_document(Document(job), {})
    assert (spec.nodes, spec.rdma, spec.pool) == (2, Rdma.REQUIRED, "p")
