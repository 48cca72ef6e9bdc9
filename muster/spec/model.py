"""The checked job: frozen records that the rest of Muster trusts.

`parse` makes them from user input; nothing else should build one from raw input. They are msgspec
structs, so that messages and the journal carry them unchanged. Older readers ignore unknown fields.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.git_code import GitCode
from muster.protocol.observations.hangs import Hang

SCHEMA_VERSION = 1

DEFAULT_POOL = "default"
DEFAULT_PRIORITY = 50
MAX_PRIORITY = 100
SAME = "same-"


class Launcher(Enum):
    """The program that starts the ranks on a node."""

    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    PROCESSES = "processes"
    NONE = "none"

    @property
    def torchruns(self) -> bool:
        """True if a torchrun on every node starts the ranks. `accelerate` adds the environment of
        `accelerate launch`, `deepspeed` that of DeepSpeed's own launcher.
        """
        return self in (Launcher.TORCHRUN, Launcher.ACCELERATE, Launcher.DEEPSPEED)


class StartMethod(Enum):
    """Ranks are forked from a process that has imported torch, or executed as new programs."""

    FORK = "fork"
    EXEC = "exec"


class Rendezvous(Enum):
    """The rendezvous of a gang's torchruns, and whether their number may change."""

    STATIC = "static"
    C10D = "c10d"


class Rdma(Enum):
    """RDMA for a job's traffic between nodes: required to start, used if available, or off
    (TCP)."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    OFF = "off"


class Preflight(Enum):
    """Extra checks on each node before a start."""

    QUICK = "quick"


class NumaBinding(Enum):
    """CPUs to which torchrun binds a rank: those of its GPU's NUMA node, those of that node's
    socket, an exclusive share of the node's CPUs, or a group of cores with a common cache.
    """

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


class Argv(msgspec.Struct, frozen=True, tag="argv"):
    """Words for one program, passed verbatim, without a shell.

    Under torchrun they are the training script (or `-m module`) and its arguments; the interpreter
    and torchrun's own options are added at launch, as is the interpreter of a Python script under
    `processes`.
    """

    argv: tuple[str, ...]


class Shell(msgspec.Struct, frozen=True, tag="shell"):
    """A script for `bash -euo pipefail -c`."""

    script: str


Command: TypeAlias = Argv | Shell


class Resources(msgspec.Struct, frozen=True):
    """Resources of a job on each node.

    `gpu` is the count per node; None means the whole node. `gpu_model` is a model name as typed
    (`H100`), None for any. `cpu` and `memory_bytes` are minimums for the whole node, None for no
    minimum; on a shared node the job reserves them.
    """

    gpu: int | None = None
    gpu_model: str | None = None
    cpu: int | None = None
    memory_bytes: int | None = None
    numa_binding: NumaBinding | None = None


class Warn(msgspec.Struct, frozen=True):
    """A signal to the ranks `before_s` before the time limit. It does not end them."""

    signal: str
    before_s: float


class Stop(msgspec.Struct, frozen=True):
    """Stop procedure of a job: the signal with this canonical name, then SIGKILL after `grace_s`
    seconds.
    """

    signal: str = "SIGTERM"
    grace_s: float = 30.0
    warn: Warn | None = None


class Retry(msgspec.Struct, frozen=True):
    """Retry limits of a job.

    `infra` and `user` are separate budgets: faults of the cluster, and failures of the program.
    `on_exit_codes` restricts the user budget to these codes; empty means every code except 0 and
    `NO_RETRY_EXIT`. Failures of the classes in `never_on` are not retried on the user budget.
    `backoff_s` is the pause before the next attempt, in seconds.
    """

    infra: int = 3
    user: int = 0
    on_exit_codes: tuple[int, ...] = ()
    never_on: tuple[FailureKind, ...] = ()
    backoff_s: float = 30.0


class IdleAction(Enum):
    """The action on a job with idle GPUs. `STOP`: first report it, then cancel the job."""

    NOTIFY = "notify"
    STOP = "stop"


class Idle(msgspec.Struct, frozen=True):
    """Idle limits: a job is idle if all its GPUs are used less than `gpu_util_below` percent of the
    time, for `for_s` without interruption.
    """

    gpu_util_below: int = 5
    for_s: float = 3600.0
    action: IdleAction = IdleAction.NOTIFY


class Placement(msgspec.Struct, frozen=True, dict=True):
    """Nodes that a job may use (empty: any) and must not use, and labels that its nodes must have.
    `spread` is the required proximity of a gang's nodes, `same-` and the name of a label; None
    means anywhere.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    spread: str | None = None

    @cached_property
    def included(self) -> frozenset[str]:
        """`include` for look-ups: each scheduling pass looks for every node."""
        return frozenset(self.include)

    @cached_property
    def excluded(self) -> frozenset[str]:
        """`exclude` for look-ups."""
        return frozenset(self.exclude)

    @property
    def shared_label(self) -> str | None:
        """The label whose value all nodes of a gang share."""
        return None if self.spread is None else self.spread.removeprefix(SAME)


class Role(msgspec.Struct, frozen=True):
    """Settings of the launcher or the workers that differ from the job's; None and empty mean no
    difference.

    `env` is added to the job's and overrides it.
    """

    run: Command | None = None
    nproc_per_node: int | None = None
    env: dict[str, str] = {}


class Roles(msgspec.Struct, frozen=True):
    """The node with rank 0, and all others."""

    launcher: Role = Role()
    worker: Role = Role()

    def of(self, node_rank: int) -> Role:
        return self.launcher if node_rank == 0 else self.worker


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A checked job with every default filled in. Times are in seconds.

    A job with `max_nodes` starts with any number of nodes from `nodes` up to it, and may lose and
    gain some while it runs. `nproc_on` is ranks by node name; it overrides the role's, which
    overrides `nproc_per_node`. `workdir` is the absolute path of an existing folder on the nodes. A
    relative one is a folder of the client, which replaces it by `bundle`, the hash of its content.
    `git` is code that each node fetches itself.
    `python` is an interpreter, virtual environment or conda prefix; None leaves it to the agent.
    `setup` runs once per node and attempt. `nccl_debug`: NCCL logs its choices and the reasons.
    `notify` are the job's webhooks. `preflight`: nodes that fail it are refused before the start.
    `lease_s` is how long a node that is cut off from the coordinator may continue the job; None
    leaves it to the cluster. `checkpoint_dir` is the absolute path of a folder on the nodes;
    changed files there count as progress. `idle`: None if idle GPUs do not matter. `torchrun_args`
    are further options of torchrun, each `--option=value`. `preload` are modules that are imported
    before the ranks are forked.
    """

    name: str
    run: Command
    nodes: int = 1
    max_nodes: int | None = None
    rendezvous: Rendezvous = Rendezvous.STATIC
    resources: Resources = Resources()
    nproc_per_node: int | None = None
    nproc_on: dict[str, int] = {}
    roles: Roles = Roles()
    workdir: str | None = None
    bundle: str | None = None
    git: GitCode | None = None
    python: str | None = None
    setup: Command | None = None
    launcher: Launcher = Launcher.TORCHRUN
    torchrun_args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    time_limit_s: float | None = None
    lease_s: float | None = None
    checkpoint_dir: str | None = None
    stop: Stop = Stop()
    retry: Retry = Retry()
    priority: int = DEFAULT_PRIORITY
    pool: str = DEFAULT_POOL
    placement: Placement = Placement()
    rdma: Rdma = Rdma.PREFERRED
    nccl_debug: bool = False
    hang: Hang = Hang.NOTIFY
    notify: tuple[str, ...] = ()
    preflight: Preflight | None = None
    idle: Idle | None = None
    start_method: StartMethod = StartMethod.FORK
    preload: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def elastic(self) -> bool:
        return self.max_nodes is not None

    @property
    def most_nodes(self) -> int:
        return self.nodes if self.max_nodes is None else self.max_nodes


class Seat(NamedTuple):
    """A node in a gang: its rank, its name and its number of GPUs."""

    rank: int
    node: str
    gpus: int


def nproc_wanted(spec: JobSpec, node_rank: int, node: str) -> int | None:
    """Return the number of training processes requested for a node; None if the job leaves it
    open.
    """
    for asked in (spec.nproc_on.get(node), spec.roles.of(node_rank).nproc_per_node):
        if asked is not None:
            return asked
    return spec.nproc_per_node


def nproc_on_node(spec: JobSpec, seat: Seat) -> int:
    """Return the number of training processes on a node, independent of the launcher: the requested
    number, else `resources.gpu`, else the GPUs of the node; at least 1.

    Under `launcher: none` it is the value of PET_NPROC_PER_NODE, for the user's own torchrun.
    """
    asked = nproc_wanted(spec, seat.rank, seat.node)
    return max(gpus_on_node(spec, seat.gpus), 1) if asked is None else asked


def ranks_on_node(spec: JobSpec, seat: Seat) -> int:
    """Return the number of rank processes that Muster counts on a node: `nproc_on_node`, but 1
    under `launcher: none`, where Muster starts and sees only the command.
    """
    return 1 if spec.launcher is Launcher.NONE else nproc_on_node(spec, seat)


def run_on_node(spec: JobSpec, node_rank: int) -> Command:
    """Return the command of the node: its role's, if it has one."""
    return spec.roles.of(node_rank).run or spec.run


def env_on_node(spec: JobSpec, node_rank: int) -> dict[str, str]:
    """Return the user's variables on the node."""
    return {**spec.env, **spec.roles.of(node_rank).env}


def gpus_on_node(spec: JobSpec, node_gpus: int) -> int:
    """Return the number of GPUs that the job takes of a node with `node_gpus`: the requested count,
    else all.
    """
    return node_gpus if spec.resources.gpu is None else spec.resources.gpu
