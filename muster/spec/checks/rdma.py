"""RDMA settings in a job's own NCCL variables, and their conflicts with the job."""

from __future__ import annotations

from collections.abc import Mapping

from muster.spec.errors import Problems
from muster.spec.model import JobSpec, Rdma


def named_plugin(env: Mapping[str, str]) -> str:
    """Return the setting that gives NCCL an external network plugin, such as `NCCL_NET_PLUGIN=ofi`;
    or ""."""
    if env.get("NCCL_NET_PLUGIN", "none").lower() not in ("", "none"):
        return f"NCCL_NET_PLUGIN={env['NCCL_NET_PLUGIN']}"
    if env.get("NCCL_NET", "").lower() not in ("", "ib", "socket"):
        return f"NCCL_NET={env['NCCL_NET']}"
    return ""


def rdma_off(env: Mapping[str, str]) -> str:
    """Return the setting that disables RDMA in NCCL, such as `NCCL_NET=Socket`; or ""."""
    if env.get("NCCL_NET", "").lower() == "socket":
        return f"NCCL_NET={env['NCCL_NET']}"
    if env.get("NCCL_IB_DISABLE", "0").strip() not in ("", "0") and not named_plugin(env):
        return f"NCCL_IB_DISABLE={env['NCCL_IB_DISABLE']}"
    return ""


def check_rdma(spec: JobSpec, problems: Problems) -> None:
    """Add the problems of a parsed job."""
    if spec.rdma is not Rdma.REQUIRED:
        return
    for where, env in (
        ("env", spec.env),
        ("roles.launcher.env", spec.roles.launcher.env),
        ("roles.worker.env", spec.roles.worker.env),
    ):
        if found := rdma_off(env):
            problems.add(
                "rdma",
                None,
                f"rdma: required and {found} in {where} contradict each other",
                "leave one out",
            )
