"""The all-reduce benchmark as an ordinary job that carries its program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import muster.bench
from muster.client.embedded_files import shipped, source_of

NAME: Final = "bench-allreduce"
DEFAULT_RDMA: Final = "preferred"
_SCRIPT: Final = "allreduce.py"


def allreduce_job(
    nodes: int,
    sizes: Sequence[int],
    *,
    rdma: str,
    iterations: int,
    warmups: int,
    named: Sequence[str] = (),
    pool: str | None = None,
    python: str | None = None,
    time_limit: str = "1h",
) -> dict[str, Any]:
    """Return the mapping of a job file, for `Client.submit`. `rdma` is as in a job file."""
    words = ["--sizes", ",".join(map(str, sizes)), "--iters", iterations, "--warmups", warmups]
    job: dict[str, Any] = {
        "name": NAME,
        "nodes": nodes,
        "setup": shipped({_SCRIPT: source_of(muster.bench, "allreduce")}),
        "run": [_SCRIPT, *map(str, words)],
        "time_limit": time_limit,
    }
    if rdma != DEFAULT_RDMA:
        job["rdma"] = rdma
    if named:
        job["placement"] = {"include": list(named)}
    given = {"pool": pool, "python": python}
    return {**job, **{key: value for key, value in given.items() if value}}
