"""Variables of published recipes that have no effect or do harm are named at submit."""

from __future__ import annotations

import pytest

from muster.spec.checks.env_advice import env_advice
from muster.spec.parse import parse_mapping


def named(env: dict[str, str], **more: object) -> list[str]:
    spec = parse_mapping({"run": "x.py", "env": env, **more})
    return [advice.partition(" ")[0] for advice in env_advice(spec)]


def test_each_is_named() -> None:
    recipe = {
        "PYTORCH_TCP_SOCKET_IFNAME": "eth0",
        "NCCL_IB_CUDA_SUPPORT": "1",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_NET_GDR_LEVEL": "5",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_DEBUG": "INFO",
    }
    assert named(recipe) == [
        "env.PYTORCH_TCP_SOCKET_IFNAME",
        "env.NCCL_IB_CUDA_SUPPORT",
        "env.NCCL_IB_GID_INDEX",
        "env.NCCL_NET_GDR_LEVEL",
    ]


def test_values_that_are_right_are_not() -> None:
    assert named({"NCCL_IB_GID_INDEX": "-1", "NCCL_NET_GDR_LEVEL": "SYS"}) == []


def test_variables_of_a_role_are_named_with_it() -> None:
    roles = {"worker": {"env": {"NCCL_IB_CUDA_SUPPORT": "0"}}}
    assert named({}, roles=roles) == ["roles.worker.env.NCCL_IB_CUDA_SUPPORT"]


RECIPE = """\
# NCCL_IB_GID_INDEX=9 in a comment is none
export NCCL_IB_CUDA_SUPPORT=1 NCCL_NET_GDR_LEVEL="5"
NCCL_IB_GID_INDEX=-1 MY_NCCL_IB_CUDA_SUPPORT=1 python x.py
mpirun -x PYTORCH_TCP_SOCKET_IFNAME=eth0 python x.py
"""
NAMED = ["NCCL_IB_CUDA_SUPPORT", "NCCL_NET_GDR_LEVEL", "PYTORCH_TCP_SOCKET_IFNAME"]


def in_text(**job: object) -> list[str]:
    """The place and the variable of each sentence."""
    spec = parse_mapping({"run": "x.py", **job})
    return [" ".join(advice.split()[:2]) for advice in env_advice(spec)]


def test_variables_that_a_script_sets_are_named_with_it() -> None:
    assert in_text(launcher="none", run=RECIPE) == [f"run: {name}" for name in NAMED]
    assert in_text(setup=RECIPE) == [f"setup: {name}" for name in NAMED]
    roles = {"worker": {"run": "export NCCL_IB_GID_INDEX=3; python x.py"}}
    assert in_text(launcher="none", roles=roles) == ["roles.worker.run: NCCL_IB_GID_INDEX"]


@pytest.mark.parametrize(
    "script",
    [
        # The value is another one on each node, or the user's choice.
        "export NCCL_IB_GID_INDEX=${NCCL_IB_GID_INDEX:-3}",
        'export NCCL_IB_GID_INDEX="${GID:-3}"',
        "export NCCL_IB_GID_INDEX=$(show_gids | awk '/v2/ {print $3}')",
        "NCCL_IB_GID_INDEX=`gid` NCCL_IB_TIMEOUT=22 python x.py",
        # Text that is printed, and no assignment.
        'echo "use NCCL_IB_GID_INDEX=3 here"; python x.py',
        "if true; then echo NCCL_IB_GID_INDEX=3; fi",
        "printf '%s; NCCL_IB_GID_INDEX=3' x",
        'echo "the first line',
    ],
)
def test_values_of_an_expansion_and_printed_text_are_not_named(script: str) -> None:
    assert in_text(launcher="none", run=script) == []


def test_what_follows_printed_text_is_named() -> None:
    script = 'echo "it\'s NCCL_IB_GID_INDEX=1" && NCCL_IB_CUDA_SUPPORT=${A:-1} python x.py'
    assert in_text(launcher="none", run=script) == ["run: NCCL_IB_CUDA_SUPPORT"]


def test_variables_of_a_list_of_words_are_named_if_its_program_sets_them() -> None:
    text = "export NCCL_IB_CUDA_SUPPORT=1; x"
    assert in_text(launcher="none", run=["bash", "-c", text]) == ["run: NCCL_IB_CUDA_SUPPORT"]
    words = ["env", "NCCL_IB_CUDA_SUPPORT=1", "x"]
    assert in_text(launcher="none", run=words) == ["run: NCCL_IB_CUDA_SUPPORT"]
    assert in_text(run=["x.py", "NCCL_IB_CUDA_SUPPORT=1"]) == []
