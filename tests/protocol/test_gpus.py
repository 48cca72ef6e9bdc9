"""GPU models as users type them, and reports of GPUs that a coordinator refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.observations.gpus import GpuDevice, divides, is_model, problem, usable

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("wanted", "name", "meant"),
    [
        ("H100", H100, True),
        ("h100", H100, True),
        ("H100-80GB", H100, True),
        ("NVIDIA-H100-80GB-HBM3", H100, True),
        ("H200", H100, False),
        ("H10", H100, False),
        ("100", H100, False),
        ("A100", A100, True),
        ("A10", A100, False),
        ("A100-80GB", A100, True),
        ("A100-SXM4-80GB", A100, True),
        ("A100-40GB", A100, False),
        ("80GB-A100", A100, False),
        ("L4", "NVIDIA L40S", False),
        ("L40S", "NVIDIA L40S", True),
        ("RTX4090", "NVIDIA GeForce RTX 4090", True),
        ("RTX_4090", "NVIDIA GeForce RTX 4090", True),
        ("4090", "NVIDIA GeForce RTX 4090", True),
        ("V100", "Tesla V100-SXM2-32GB", True),
        ("GH200", "NVIDIA GH200 480GB", True),
        ("H200", "NVIDIA GH200 480GB", False),
        ("H100", "", False),
        ("-", H100, False),
    ],
)
def test_a_model_is_made_of_whole_words_of_the_name(wanted: str, name: str, meant: bool) -> None:
    assert is_model(wanted, name) is meant


@given(st.lists(st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True), min_size=1, max_size=6), st.data())
def test_words_of_a_name_in_their_order_are_its_model(
    words: list[str], data: st.DataObject
) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)))
    wanted = [word for word, keep in zip(words, kept, strict=True) if keep] or words
    assert is_model("-".join(wanted), " ".join(words))


def test_faulty_gpus_are_not_assigned_and_gpus_without_uuid_not_divided() -> None:
    good = GpuDevice("0000:01:00.0", "GPU-1")
    bad = GpuDevice("0000:02:00.0", "", fault="does not answer")
    nameless = GpuDevice("0000:03:00.0")
    assert usable((good, bad)) == (good,)
    assert divides((good, bad))
    assert not divides((good, nameless))
    assert not divides((bad,))
    assert not divides(())


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([GpuDevice("a", "GPU-1"), GpuDevice("b", "GPU-1")], "two GPUs"),
        ([GpuDevice("a", "GPU-1,GPU-2")], "the UUID"),
        ([GpuDevice("a", "0")], "the UUID"),
        ([GpuDevice("a\n", "GPU-1")], "described"),
        ([GpuDevice("a", "GPU-1", "x" * 300)], "described"),
        ([GpuDevice("a")] * 1025, "1025 GPUs"),
    ],
)
def test_gpu_reports_that_a_coordinator_refuses(devices: list[GpuDevice], expected: str) -> None:
    found = problem(devices)
    assert found is not None
    assert expected in found


def test_gpus_without_uuids_are_no_problem() -> None:
    assert problem([GpuDevice("a"), GpuDevice("b", fault="no driver")]) is None
