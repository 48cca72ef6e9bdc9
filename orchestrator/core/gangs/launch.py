"""Argv, environment and host table of each node's task. Pure builders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias, assert_never

import msgspec

from muster.http.views import VariableOrigin
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, PrepareTask, RendezvousCheck
from muster.protocol.link.terms import Member
from muster.protocol.observations.fabric import TaskFabric
from muster.spec.command import needs_interpreter
from muster.spec.model import (
    Argv,
    Command,
    JobSpec,
    Launcher,
    Rendezvous,
    Shell,
    StartMethod,
    env_on_node,
    gpus_on_node,
    nproc_on_node,
    ranks_on_node,
    run_on_node,
)
from orchestrator.core.gangs.fabric import node_plan
from orchestrator.core.gangs.host_names import elsewhere, host_table
from orchestrator.core.gangs.terms import members_of, terms_of
from orchestrator.core.gangs.torchrun import torchrun_arguments
from orchestrator.core.model.attempt import AttemptPhase
from orchestrator.core.model.fabric_plan import FabricTransport
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.members import gang_members, gpus_of, require_prepared, seat
from orchestrator.core.model.state import Attempt, Job, Task
from orchestrator.core.monitoring.idle_gpus import asked_of_nodes
from orchestrator.core.monitoring.traffic import nccl_lines, recorder, watched
from orchestrator.core.scheduling.rendezvous import endpoint

PORTS_OFFERED = 8
"""Number of free ports requested from the launcher's node: jobs on the same host may lease some."""

# A rank that dies does not lose lines.
_UNBUFFERED: Final = {"PYTHONUNBUFFERED": "1"}
Layers: TypeAlias = tuple[tuple[VariableOrigin, dict[str, str]], ...]


def words(command: Command) -> tuple[str, ...]:
    """The argv of a command; a script runs under a bash that stops at the first error."""
    match command:
        case Argv(argv):
            return argv
        case Shell(script):
            return ("/bin/bash", "-euo", "pipefail", "-c", script)
        case _:
            assert_never(command)


def prepare_command(job: Job, task: Task, limits: Limits) -> PrepareTask:
    """The command with everything a node prepares before the gang's plan is known."""
    spec = job.spec
    return PrepareTask(
        task=task.id,
        launcher=(Launcher.TORCHRUN if spec.launcher.torchruns else spec.launcher).value,
        workdir=spec.workdir,
        bundle=spec.bundle,
        git=spec.git,
        python=spec.python,
        setup=words(spec.setup) if spec.setup is not None else (),
        env={
            **_UNBUFFERED,
            **env_on_node(spec, task.rank),
            **_identity(job, task),
            **_visible(spec, task),
        },
        timeout_s=limits.prepare_timeout_s,
        ports=PORTS_OFFERED if task.rank == 0 else 0,
        gpus=task.gpus,
        preflight=spec.preflight is not None,
        lease_s=job.attempt(task.attempt).lease_s,
        checkpoint_dir=spec.checkpoint_dir,
        idle=asked_of_nodes(spec),
        user=job.user,
        cpus=spec.resources.cpu or 0,
        memory_bytes=spec.resources.memory_bytes or 0,
        grows=spec.elastic,
        meets=_meets(job.attempt(task.attempt)) if task.joined else None,
    )


def _meets(attempt: Attempt) -> tuple[tuple[str, ...], int]:
    """The rendezvous of a gang that a task joins: its node closes that to other users of its own
    before the launcher's node lets it in."""
    address = attempt.master_addr
    return (address, *elsewhere(attempt).get(address, ())), attempt.master_port


class Gang(msgspec.Struct, frozen=True):
    """The part of the plan that is the same for all nodes.

    It grows with the gang, so it is built once and not for each node.
    """

    hosts: tuple[tuple[str, str], ...]
    others: dict[str, tuple[str, ...]]
    hostfile: str
    ips: str
    names: str
    ranks: tuple[int, ...]  # by node rank
    gpus: tuple[int, ...]
    watched: bool  # whether the agents measure the gang's traffic
    members: tuple[Member, ...]  # () if they do not vouch for each other


def gang_of(job: Job, attempt: Attempt) -> Gang:
    """The common part of the plan of an attempt that has its rendezvous.

    For a running elastic gang: as the gang is now.
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
        members=members_of(attempt),
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
        rendezvous=_rendezvous(attempt, task),
        ranks=_ranks(task, gang) if processes else (),
        interpreter=processes and needs_interpreter(program),
        fabric=_fabric(job, attempt, task),
        key=attempt.vouch_key,
        terms=terms_of(job, attempt, task, gang.members),
    )


def _fabric(job: Job, attempt: Attempt, task: Task) -> TaskFabric:
    planned = node_plan(job, attempt, task)
    interface = endpoint(attempt, task).interface
    netdevs = dict.fromkeys((*planned.netdevs, *((interface,) if interface else ())))
    return TaskFabric(job.spec.rdma, planned.hcas, tuple(netdevs), job.spec.nccl_debug)


def ranks_of(job: Job, attempt: Attempt) -> dict[TaskId, range]:
    """The global ranks on each node of an attempt that has started.

    Empty if torchrun numbers the ranks at the rendezvous (c10d), or if some node never was
    prepared.
    """
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


def _rendezvous(attempt: Attempt, task: Task) -> RendezvousCheck | None:
    """The check that this node reaches the launcher.

    Returns None for a gang of one, and once the launcher's program may be listening on the port: it
    does not answer as the agent does.
    """
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


def environments(job: Job, attempt: Attempt) -> Iterator[tuple[Task, Layers | None]]:
    """The environment of each node of an attempt; None for a node whose environment is not decided.

    Once an elastic gang has changed: the environment that a joining node would get now.
    """
    arranged = attempt.prepared_at is not None
    gang = gang_of(job, attempt) if arranged else None
    for task in list(attempt.tasks):
        if gang is None or task.prepared is None:
            yield task, None
        else:
            yield task, _layers(job, attempt, task, gang)


def merged(layers: Layers) -> dict[str, str]:
    """The variables with their values."""
    return {name: value for _, layer in layers for name, value in layer.items()}


def origins(layers: Layers) -> dict[str, VariableOrigin]:
    """The origin of each variable's value."""
    return {name: origin for origin, layer in layers for name in layer}


def _ranks(task: Task, gang: Gang) -> tuple[dict[str, str], ...]:
    """The variables that differ between the ranks of one node."""
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
    """The variables that torchrun would set for every rank of a node, for ranks that Muster starts.

    Without those of torchelastic: a program that finds them expects torchrun's store.
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
    """Every variable that a process of the task gets in addition to the shim's own base."""
    return merged(_layers(job, attempt, task, gang))


def _layers(job: Job, attempt: Attempt, task: Task, gang: Gang) -> Layers:
    """The environment by origin, the weakest first.

    Muster's values override the user's. RANK and LOCAL_RANK belong to a rank, never to a node. With
    WORLD_SIZE they are set by torchrun, or for the ranks that Muster starts itself.
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
    usual = {**nccl_lines(spec, task, gang.watched), **recorder(task, gang.watched), **_UNBUFFERED}
    if spec.elastic:
        # Because torchrun reuses the address of the first store. If another node became the first,
        # ranks would wait for each other in two stores. So rank 0 opens a new store for each round.
        ours["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if spec.launcher is not Launcher.NONE and max(gang.ranks) > 1:
        # Otherwise torchrun sets the same value itself, with a warning in the user's log.
        usual["OMP_NUM_THREADS"] = "1"
    return (
        (VariableOrigin.FABRIC, fabric_environment(job, attempt, task)),
        (VariableOrigin.DEFAULT, usual),
        (VariableOrigin.JOB, env_on_node(spec, task.rank)),
        (VariableOrigin.MUSTER, ours),
    )


def fabric_environment(job: Job, attempt: Attempt, task: Task) -> dict[str, str]:
    """Network variables of a node's tasks; the user's own values override them."""
    interface = endpoint(attempt, task).interface
    made = {**node_plan(job, attempt, task).env, **_sockets(interface)}
    plan = attempt.fabric
    if plan is not None and plan.transport is FabricTransport.TCP and interface:
        # UCX has to leave RDMA alone, too.
        made["UCX_NET_DEVICES"] = interface
    return made


def _visible(spec: JobSpec, task: Task) -> dict[str, str]:
    """The variable with the task's GPUs.

    Empty if all GPUs of the node are sound, or if a job that has whole nodes chooses its GPUs
    itself.
    """
    mine = "CUDA_VISIBLE_DEVICES" in env_on_node(spec, task.rank) and not spec.resources.gpu
    return {} if mine or not task.gpus else {"CUDA_VISIBLE_DEVICES": ",".join(task.gpus)}


def _sockets(interface: str) -> dict[str, str]:
    """The interface for gloo's connections and NCCL's sockets; a user's own choice wins.

    If it is unset, gloo takes the address to which the host's own name resolves, often 127.0.1.1.
    NCCL's `=` is an exact match; gloo knows only exact names.
    """
    if not interface:
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}


def _identity(job: Job, task: Task) -> dict[str, str]:
    return {
        "MUSTER_JOB_ID": str(job.id),
        "MUSTER_JOB_NAME": job.spec.name,
        "MUSTER_ATTEMPT": str(task.attempt),
        "MUSTER_TASK": task.id,
        "MUSTER_NODE_RANK": str(task.rank),
        **_of_bootstrap(job.spec),
    }


def _of_bootstrap(spec: JobSpec) -> dict[str, str]:
    """Variables for the bootstrap, which reads them before its gate: the launcher that it runs in
    addition to torchrun, and the start method of the ranks.
    """
    made = {}
    if spec.launcher in (Launcher.ACCELERATE, Launcher.DEEPSPEED):
        made["MUSTER_LAUNCHER"] = spec.launcher.value
    if spec.launcher.torchruns and spec.start_method is StartMethod.FORK:
        made["MUSTER_START_METHOD"] = spec.start_method.value
        if spec.preload:
            made["MUSTER_PRELOAD"] = " ".join(spec.preload)
    return made
