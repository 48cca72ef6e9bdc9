"""The arguments of torchrun: size of the gang, rendezvous and its timeouts."""

from __future__ import annotations

import math
from typing import assert_never

from muster.spec.model import JobSpec, Launcher, Rendezvous, ranks_on_node
from orchestrator.core.model.members import require_prepared, seat
from orchestrator.core.model.state import Attempt, Job, Task
from orchestrator.core.scheduling.rendezvous import endpoint


def torchrun_arguments(job: Job, attempt: Attempt, task: Task) -> tuple[str, ...]:
    """Arguments of torch.distributed.run, which the bootstrap runs in the job's interpreter.

    With --redirects and never --tee, which reads and decodes every line. Nodes may have different
    numbers of ranks: torchrun's agents exchange them through the store.
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
        *job.spec.torchrun_args,
        # The separator after which options of accelerate begin.
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
    """Static rendezvous: torchrun uses the node rank given.

    No restarts by torchrun: one node would restart alone.
    """
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
    """c10d rendezvous, without a node rank: torchrun would ignore it.

    `is_host` puts the store on the launcher's node; otherwise torchrun guesses from host names.
    """
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
    """Seconds for which a sufficient number of torchruns waits for more before they start the
    ranks.

    When a gang forms again, its torchruns arrive as late as their ranks take to end. At most
    torchrun's own default of 30 s.
    """
    return min(30, 5 + math.ceil(spec.stop.grace_s))
