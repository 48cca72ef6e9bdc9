"""How torchrun is called: what it is told of the gang, and where its agents meet."""

from __future__ import annotations

import math
from typing import assert_never

from muster.spec.model import JobSpec, Launcher, Rendezvous, ranks_on_node
from orchestrator.core.model.members import require_prepared, seat
from orchestrator.core.model.state import Attempt, Job, Task
from orchestrator.core.scheduling.rendezvous import endpoint


def torchrun_arguments(job: Job, attempt: Attempt, task: Task) -> tuple[str, ...]:
    """Arguments of torch.distributed.run, which the bootstrap runs in the job's interpreter.

    Redirects, never --tee: that reads and decodes every line. Nodes may have different numbers of
    ranks: torchrun's agents tell each other theirs through the store.
    """
    prepared = require_prepared(task)
    return (
        *_rendezvous(job.spec, attempt, task),
        "--nproc-per-node",
        str(ranks_on_node(job.spec, seat(task))),
        "--rdzv-id",
        f"{job.id}.{attempt.number}",
        "--redirects",
        "3",
        "--log-dir",
        prepared.log_dir,
        "--local-addr",
        endpoint(attempt, task).address,
        *_binding(job.spec),
        # Where options of accelerate's begin.
        *(["--"] if job.spec.launcher is Launcher.ACCELERATE else []),
    )


def _binding(spec: JobSpec) -> tuple[str, ...]:
    chosen = spec.resources.numa_binding
    return () if chosen is None else ("--numa-binding", chosen.value)


def _rendezvous(spec: JobSpec, attempt: Attempt, task: Task) -> tuple[str, ...]:
    match spec.rendezvous:
        case Rendezvous.STATIC:
            return _static(attempt, task)
        case Rendezvous.C10D:
            return _c10d(spec, attempt, task)
        case _:
            assert_never(spec.rendezvous)


def _static(attempt: Attempt, task: Task) -> tuple[str, ...]:
    """The node rank given is the one used. No restarts of its own: one node would restart alone."""
    return (
        "--nnodes",
        str(len(attempt.tasks)),
        "--node-rank",
        str(task.rank),
        "--rdzv-backend",
        "static",
        "--master-addr",
        attempt.master_addr,
        "--master-port",
        str(attempt.master_port),
        "--max-restarts",
        "0",
    )


def _c10d(spec: JobSpec, attempt: Attempt, task: Task) -> tuple[str, ...]:
    """No node rank: it would be ignored. The store is on the launcher's node, said out loud, as
    torchrun would else guess it from names."""
    nodes = f"{spec.nodes}:{spec.max_nodes}" if spec.elastic else str(spec.nodes)
    restarts = spec.retry.infra + spec.retry.user if spec.elastic else 0
    conf = f"is_host={int(task.rank == 0)},last_call_timeout={last_call_s(spec)}"
    return (
        "--nnodes",
        nodes,
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"{attempt.master_addr}:{attempt.master_port}",
        "--rdzv-conf",
        conf,
        "--max-restarts",
        str(restarts),
    )


def last_call_s(spec: JobSpec) -> int:
    """How long torchruns that are enough wait for more before they start their ranks. Those of a
    gang that meets again come as late as their ranks take to end; torchrun's own 30 s at most."""
    return min(30, 5 + math.ceil(spec.stop.grace_s))
