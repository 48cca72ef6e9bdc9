"""A check as an ordinary job: one process per node, which the job carries."""

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
    """Return the mapping of a job file. `size`: bytes sent between each pair of nodes, in each
    direction and on each network. `timeout_s`: connection timeout. `key`: the secret by which the
    nodes of this check recognise each other."""
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
        # Because a refusing node is a finding, do not retry: the check continues without that node.
        "retry": {"infra": 0},
        "time_limit": time_limit,
    }
    return {**job, "python": python} if python else job
