"""Keys that a job may not combine with its GPUs."""

from __future__ import annotations

import pytest

from muster.spec.checks.advice import advice
from muster.spec.errors import SpecError, SpecProblem
from muster.spec.model import NumaBinding
from muster.spec.parse import parse_job
from muster.spec.serialize import to_mapping


def problems_of(text: str) -> list[SpecProblem]:
    with pytest.raises(SpecError) as caught:
        parse_job(f"run: train.py\n{text}")
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("env", "env: {CUDA_VISIBLE_DEVICES: 0}"),
        ("roles.launcher.env", "roles: {launcher: {env: {CUDA_VISIBLE_DEVICES: 0}}}"),
        ("roles.worker.env", "roles: {worker: {env: [CUDA_VISIBLE_DEVICES=0]}}"),
    ],
)
def test_a_job_with_gpus_sees_its_own_gpus(where: str, text: str) -> None:
    (problem,) = problems_of(f"resources: {{gpu: 2}}\n{text}")
    assert problem.field == f"{where}.CUDA_VISIBLE_DEVICES"
    assert "is set by Muster" in problem.message
    parse_job(f"run: train.py\n{text}")


def test_numa_binding_is_torchruns() -> None:
    spec = parse_job("run: train.py\nresources: {gpu: 4, numa_binding: core-complex}")
    assert spec.resources.numa_binding is NumaBinding.CORE_COMPLEX
    assert to_mapping(spec)["resources"] == {"gpu": 4, "numa_binding": "core-complex"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resources: {numa_binding: core_complex}", "did you mean `core-complex`?"),
        ("resources: {numa_binding: gpu}", "write node, socket, exclusive, core-complex"),
        ("resources: {numa_binding: node}\nlauncher: processes", "launcher: torchrun"),
        ("resources: {numa_binding: node}\nlauncher: none", "launcher: torchrun"),
        ("resources: {numa_binding: node, gpu: 0}", "ask for GPUs"),
    ],
)
def test_numa_binding_where_it_cannot_be(text: str, expected: str) -> None:
    (problem,) = problems_of(text)
    assert problem.field == "resources.numa_binding"
    assert expected in problem.hint


def test_more_ranks_than_gpus_are_named() -> None:
    def named(text: str) -> list[str]:
        return [said.partition(":")[0] for said in advice(parse_job(f"run: train.py\n{text}"))]

    assert named("resources: {gpu: 2}\nnproc_per_node: 4") == ["nproc_per_node"]
    worker = "roles: {worker: {nproc_per_node: 3}}\n"
    assert named(f"resources: {{gpu: 2}}\n{worker}") == ["roles.worker.nproc_per_node"]
    assert named("resources: {gpu: 4}\nnproc_per_node: 4") == []
    assert named("resources: {gpu: 0}\nnproc_per_node: 4") == []
    assert named("nproc_per_node: 4") == []
