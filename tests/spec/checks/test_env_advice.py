"""Variables of published recipes that have no effect or do harm are named at submit."""

from __future__ import annotations

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
