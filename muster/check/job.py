"""A check as a job like any other: one process on each node, whose program travels inside the
job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from muster.check import program
from muster.check.networks import Networks
from muster.client.embedded_files import package_of, shipped

NAME: Final = "check"
_PLAN: Final = "plan.json"


def check_job(
    nodes: Sequence[str],
    networks: Networks,
    *,
    size: int,
    timeout_s: float,
    key: str,
    pool: str,
    python: str | None = None,
    time_limit: str = "4h",
) -> dict[str, Any]:
    """The mapping of a job file. `size`: bytes from each node to each other on each network;
    `timeout_s`: for a connection; `key`: what the nodes of this check know each other by.
    """
    plan = {"networks": networks, "bytes": size, "timeout_s": timeout_s, "key": key}
    text = msgspec.json.encode(plan).decode()
    job: dict[str, Any] = {
        "name": NAME,
        "nodes": len(nodes),
        "launcher": "processes",
        "nproc_per_node": 1,
        "setup": shipped({**package_of(program), _PLAN: text}),
        "run": ["-m", program.__name__, _PLAN],
        "placement": {"include": list(nodes)},
        "pool": pool,
        # A node that refuses is a finding, and the check goes on without it.
        "retry": {"infra": 0},
        "time_limit": time_limit,
    }
    return {**job, "python": python} if python else job
