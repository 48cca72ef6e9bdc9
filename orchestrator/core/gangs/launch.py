"""What each node is told to run: argv, environment and host table. Pure builders."""

from __future__ import annotations

from typing import assert_never

import msgspec

from muster.protocol.control_channel import ArrangeTask, PrepareTask, RendezvousCheck
from muster.protocol.fabric import TaskFabric
from muster.protocol.ids import TaskId
from muster.spec.command import needs_interpreter
from muster.spec.model import (
    Argv,
    Command,
    JobSpec,
    Launcher,
    Rendezvous,
    Shell,
    env_on_node,
    gpus_on_node,
    nproc_on_node,
    ranks_on_node,
    run_on_node,
)
from orchestrator.core.gangs.fabric import node_plan
from orchestrator.core.gangs.host_names import elsewhere, host_table
from orchestrator.core.gangs.leases import own_lease_s
from orchestrator.core.gangs.torchrun import torchrun_arguments
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.fabric_plan import Transport
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.members import gang_members, gpus_of, require_prepared, seat
from orchestrator.core.model.state import Attempt, Job, Task
from orchestrator.core.monitoring.idle_gpus import asked_of_nodes
from orchestrator.core.monitoring.traffic import nccl_lines, recorder, watched
from orchestrator.core.scheduling.rendezvous import endpoint

PORTS_OFFERED = 8
"""How many free ports the launcher's node is asked for: other jobs of its host may lease some
first."""


def words(command: Command) -> tuple[str, ...]:
    """argv of a command; a script runs under bash that stops at the first error."""
    match command:
        case Argv(argv):
            return argv
        case Shell(script):
            return ("/bin/bash", "-euo", "pipefail", "-c", script)
        case _:
            assert_never(command)


def prepare_command(job: Job, task: Task, limits: Limits) -> PrepareTask:
    """What a node has to make ready before the gang's plan is known."""
    spec = job.spec
    return PrepareTask(
        task=task.id,
        launcher=(Launcher.TORCHRUN if spec.launcher.torchruns else spec.launcher).value,
        workdir=spec.workdir,
        python=spec.python,
        setup=words(spec.setup) if spec.setup is not None else (),
        env={**_user_env(spec, task), **_identity(job, task), **_visible(spec, task)},
        timeout_s=limits.prepare_timeout_s,
        ports=PORTS_OFFERED if task.rank == 0 else 0,
        gpus=task.gpus,
        preflight=spec.preflight is not None,
        lease_s=None if spec.lease_s is None else own_lease_s(job, limits),
        checkpoint_dir=spec.checkpoint_dir,
        idle=asked_of_nodes(spec),
    )


class Gang(msgspec.Struct, frozen=True):
    """What all nodes of a gang are told alike. It grows with the gang, hence is made once and not
    for each node."""

    hosts: tuple[tuple[str, str], ...]
    others: dict[str, tuple[str, ...]]
    hostfile: str
    ips: str
    names: str
    ranks: tuple[int, ...]  # by node rank
    gpus: tuple[int, ...]
    watched: bool  # is what carries its traffic


def gang_of(job: Job, attempt: Attempt) -> Gang:
    """Of an attempt whose nodes are all prepared and have their meeting point. Of an elastic one
    that runs: as it is now.
    """
    members = gang_members(attempt)
    ranks = tuple(ranks_on_node(job.spec, seat(t)) for t in members)
    hosts = host_table(attempt)
    return Gang(
        hosts=hosts,
        others=elsewhere(attempt) if hosts else {},
        hostfile="".join(
            f"{t.node} slots={slots}\n" for t, slots in zip(members, ranks, strict=True)
        ),
        ips="\n".join(endpoint(attempt, t).address for t in members),
        names="\n".join(t.node for t in members),
        ranks=ranks,
        gpus=tuple(gpus_on_node(job.spec, gpus_of(t)) for t in members),
        watched=watched(attempt),
    )


def arrange_command(job: Job, attempt: Attempt, task: Task, gang: Gang) -> ArrangeTask:
    """The gang's plan for one node."""
    spec = job.spec
    torchrun = spec.launcher.torchruns
    processes = spec.launcher is Launcher.PROCESSES
    program = words(run_on_node(spec, task.rank))
    return ArrangeTask(
        task=task.id,
        argv=(*torchrun_arguments(job, attempt, task), *program) if torchrun else program,
        env=_environment(job, attempt, task, gang),
        hosts=gang.hosts,
        others=gang.others,
        hostfile=gang.hostfile,
        listen_port=attempt.master_port if torchrun and task.rank == 0 else None,
        grace_s=spec.stop.grace_s,
        stop_signal=spec.stop.signal,
        meeting=_meeting(attempt, task),
        ranks=_ranks(task, gang) if processes else (),
        interpreter=processes and needs_interpreter(program),
        fabric=_fabric(job, attempt, task),
    )


def _fabric(job: Job, attempt: Attempt, task: Task) -> TaskFabric:
    planned = node_plan(job, attempt, task)
    interface = endpoint(attempt, task).interface
    netdevs = dict.fromkeys((*planned.netdevs, *((interface,) if interface else ())))
    return TaskFabric(job.spec.rdma, planned.hcas, tuple(netdevs), job.spec.nccl_debug)


def ranks_of(job: Job, attempt: Attempt) -> dict[TaskId, range]:
    """Which ranks run on each node of an attempt that has started; nothing where torchruns number
    them as they meet (c10d), or where a node says so beside one that never was ready."""
    if attempt.started_at is None or job.spec.rendezvous is not Rendezvous.STATIC:
        return {}
    if any(task.prepared is None for task in attempt.tasks):
        return {}
    made, before = {}, 0
    for task in attempt.tasks:
        count = ranks_on_node(job.spec, seat(task))
        made[task.id] = range(before, before + count)
        before += count
    return made


def _meeting(attempt: Attempt, task: Task) -> RendezvousCheck | None:
    """None for a gang of one, and where the launcher's program may listen already: that has another
    greeting than its agent."""
    if len(attempt.tasks) == 1 or attempt.phase is not AttemptPhase.ARRANGING:
        return None
    launcher = attempt.tasks[0]
    return RendezvousCheck(
        launcher.id,
        launcher.node,
        attempt.master_addr,
        attempt.master_port,
        endpoint(attempt, task).address,
    )


def environments(job: Job, attempt: Attempt) -> list[tuple[Task, dict[str, str] | None]]:
    """What each node of an attempt is told; None where that is not decided. Once an elastic gang
    has changed: as a node that joined now would be told.
    """
    arranged = attempt.prepared_at is not None
    gang = gang_of(job, attempt) if arranged else None
    return [
        (
            task,
            _environment(job, attempt, task, gang)
            if gang is not None and task.prepared is not None
            else None,
        )
        for task in attempt.tasks
    ]


def _ranks(task: Task, gang: Gang) -> tuple[dict[str, str], ...]:
    """What differs from rank to rank on one node; the rest is in the node's environment."""
    before = sum(gang.ranks[: task.rank])
    return tuple(
        {
            "RANK": str(before + local),
            "LOCAL_RANK": str(local),
            "ROLE_RANK": str(before + local),
        }
        for local in range(gang.ranks[task.rank])
    )


def _of_ranks(task: Task, gang: Gang) -> dict[str, str]:
    """What torchrun would tell every rank of a node, for ranks that we start ourselves.

    Nothing of torchelastic's own: a program that finds it there expects torchrun's store.
    """
    world = str(sum(gang.ranks))
    return {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(gang.ranks[task.rank]),
        "GROUP_RANK": str(task.rank),
        "GROUP_WORLD_SIZE": str(len(gang.ranks)),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": world,
    }


def _environment(job: Job, attempt: Attempt, task: Task, gang: Gang) -> dict[str, str]:
    """Everything a process of the task gets beyond the shim's own base.

    The user's values are overridden by ours. RANK and LOCAL_RANK are a rank's, never a node's;
    with WORLD_SIZE they belong to torchrun, or to the ranks that we start ourselves.
    """
    spec = job.spec
    prepared = require_prepared(task)
    ours = {
        **_identity(job, task),
        "MUSTER_NUM_NODES": str(len(gang.ranks)),
        "MUSTER_GPUS_PER_NODE": str(gpus_on_node(spec, gpus_of(task))),
        "MUSTER_NUM_GPUS": str(sum(gang.gpus)),
        "MUSTER_NODE_IPS": gang.ips,
        "MUSTER_NODE_NAMES": gang.names,
        "MUSTER_HOSTFILE": prepared.hostfile,
        "MUSTER_MASTER_ADDR": attempt.master_addr,
        "MUSTER_MASTER_PORT": str(attempt.master_port),
        "MUSTER_WORKDIR": prepared.workdir,
        "MUSTER_SCRATCH": prepared.scratch,
        "MUSTER_OUTPUT_DIR": prepared.output,
        "MASTER_ADDR": attempt.master_addr,
        "MASTER_PORT": str(attempt.master_port),
        "NODE_RANK": str(task.rank),
        **_visible(spec, task),
    }
    if spec.launcher is Launcher.NONE:
        ours |= {
            "PET_NNODES": str(len(attempt.tasks)),
            "PET_NPROC_PER_NODE": str(nproc_on_node(spec, seat(task))),
            "PET_NODE_RANK": str(task.rank),
            "PET_MASTER_ADDR": attempt.master_addr,
            "PET_MASTER_PORT": str(attempt.master_port),
        }
    if spec.launcher is Launcher.PROCESSES:
        ours |= _of_ranks(task, gang)
    usual = fabric_environment(job, attempt, task) | nccl_lines(spec, task, gang.watched)
    usual |= recorder(task, gang.watched)
    if spec.elastic:
        # torchrun keeps what it was told of the first store; where another node becomes the first,
        # ranks would wait for each other in two stores. So rank 0 opens one for each round.
        ours["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if spec.launcher is not Launcher.NONE and max(gang.ranks) > 1:
        # torchrun sets it to 1 itself, with a warning in the user's log; the value is the same.
        usual["OMP_NUM_THREADS"] = "1"
    return {**usual, **_user_env(spec, task), **ours}


def fabric_environment(job: Job, attempt: Attempt, task: Task) -> dict[str, str]:
    """What a node's jobs get for their network, where their user says nothing else."""
    interface = endpoint(attempt, task).interface
    made = {**node_plan(job, attempt, task).env, **_sockets(interface)}
    plan = attempt.fabric
    if plan is not None and plan.transport is Transport.TCP and interface:
        # UCX, too, is to leave RDMA alone.
        made["UCX_NET_DEVICES"] = interface
    return made


def _visible(spec: JobSpec, task: Task) -> dict[str, str]:
    """The GPUs of the task. A job that has its nodes alone may choose among the sound ones itself,
    and where all are sound nothing is said."""
    mine = "CUDA_VISIBLE_DEVICES" in env_on_node(spec, task.rank) and not spec.resources.gpu
    return {} if mine or not task.gpus else {"CUDA_VISIBLE_DEVICES": ",".join(task.gpus)}


def _sockets(interface: str) -> dict[str, str]:
    """The interface for gloo's connections and NCCL's sockets; a user's own choice wins.

    Unset, gloo takes the address that the host's own name resolves to, often 127.0.1.1. NCCL's `=`
    is an exact match, gloo knows only exact names.
    """
    if not interface:
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}


def _user_env(spec: JobSpec, task: Task) -> dict[str, str]:
    # A rank that dies must not take unflushed lines with it.
    return {"PYTHONUNBUFFERED": "1", **env_on_node(spec, task.rank)}


def _identity(job: Job, task: Task) -> dict[str, str]:
    return {
        "MUSTER_JOB_ID": str(job.id),
        "MUSTER_JOB_NAME": job.spec.name,
        "MUSTER_ATTEMPT": str(task.attempt),
        "MUSTER_TASK": task.id,
        "MUSTER_NODE_RANK": str(task.rank),
        **_beyond_torchrun(job.spec.launcher),
    }


def _beyond_torchrun(launcher: Launcher) -> dict[str, str]:
    """What the bootstrap is to do besides running torchrun, from before its gate on."""
    if launcher in (Launcher.ACCELERATE, Launcher.DEEPSPEED):
        return {"MUSTER_LAUNCHER": launcher.value}
    return {}
