"""Advice on variables that published recipes set and that have no effect or do harm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.spec.model import JobSpec

_ADVICE: Final = {
    "PYTORCH_TCP_SOCKET_IFNAME": "has no effect: no program reads it. Muster sets "
    "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME on each node",
    "NCCL_IB_CUDA_SUPPORT": "has no effect: NCCL removed it in 2.4. GPUDirect RDMA is used where "
    "the node has it (muster show --fabric)",
    "NCCL_IB_GID_INDEX": "is one index for all nodes, and the GID tables of nodes differ: RDMA "
    "fails on a node where the index is another network or empty. Without it Muster sets the "
    "index of each node where NCCL needs one",
}
_GDR: Final = "NCCL_NET_GDR_LEVEL"
_GDR_ADVICE: Final = (
    "is a number of older NCCL releases: a number above 4 means SYS, which permits GPUDirect RDMA "
    "at any distance. Leave it out, and NCCL decides by the topology; or write SYS"
)


def env_advice(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence for each variable of the job that is better left out."""
    found: dict[str, None] = {}
    for where, env in (
        ("env", spec.env),
        ("roles.launcher.env", spec.roles.launcher.env),
        ("roles.worker.env", spec.roles.worker.env),
    ):
        found |= dict.fromkeys(_of(where, env))
    return tuple(found)


def _of(where: str, env: Mapping[str, str]) -> list[str]:
    advice = [f"{where}.{name} {_ADVICE[name]}" for name in env if name in _ADVICE]
    # NCCL ignores an index of -1, and chooses itself.
    if env.get("NCCL_IB_GID_INDEX") == "-1":
        advice = [text for text in advice if "NCCL_IB_GID_INDEX" not in text]
    if env.get(_GDR, "").isdigit():
        advice.append(f"{where}.{_GDR} {_GDR_ADVICE}")
    return advice
