"""Descriptions of a job file's keys, one line each, for the reference page and the JSON Schema.

`tests/tools/test_job_file_keys.py` checks the paths against the schema, and every example against
the parser. Enumerated values and literal defaults come from the schema.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class About(NamedTuple):
    """Documentation of a key. `value` and `default` are text for what the schema cannot express;
    `example` is YAML.
    """

    what: str
    example: str
    value: str = ""
    default: str = ""
    aliases: tuple[str, ...] = ()


_DURATION: Final = "a duration"
_COMMAND: Final = "a string or a list"
_NODES: Final = "a list of names"
_RANKS: Final = "1 to 1024"

KEYS: Final[dict[str, About]] = {
    "schema_version": About("The version of this format.", "schema_version: 1", "`1`"),
    "name": About(
        "What the job is called; its id is another thing.",
        "name: qwen-sft",
        "a letter, then up to 62 of `a-z`, `0-9`, `-`; not `last`",
        "made of the command",
    ),
    "nodes": About(
        "How many nodes: all of them or none. A range is an elastic job.",
        "nodes: 2..4",
        "1 to 4096, or a range",
        "`1`",
        ("num_nodes",),
    ),
    "resources.gpu": About(
        "GPUs of each node, and of which model. Fewer than a node has: others share it.",
        "resources: {gpu: H100:8}",
        "a number, or `MODEL:number`",
        "the whole node",
        ("resources.accelerators", "accelerators"),
    ),
    "resources.cpu": About(
        "The least CPUs that a node has; where jobs share it, that others leave.",
        "resources: {cpu: 16}",
        "a number; also `16..`, `16+`",
        "any",
    ),
    "resources.memory": About(
        "The least memory that a node has; where jobs share it, that others leave.",
        "resources: {memory: 200GB}",
        "a size; also `200GB..`, `200GB+`",
        "any",
    ),
    "resources.numa_binding": About(
        "torchrun binds each rank to CPUs near its GPU; needs PyTorch 2.9 and numactl.",
        "resources: {numa_binding: node}",
        default="no binding",
    ),
    "nproc_per_node": About(
        "Ranks on each node; a map counts them by role (`launcher`, `worker`) or by node.",
        "nproc_per_node: {launcher: 4, worker: 2}",
        f"{_RANKS}, or a map",
        "the GPUs of each node, else 1",
    ),
    "roles.launcher.run": About(
        "What node rank 0 runs, where that is not the job's `run`.",
        "roles: {launcher: {run: train.py --evaluate}}",
        _COMMAND,
        "`run`",
    ),
    "roles.launcher.nproc_per_node": About(
        "Ranks on node rank 0.",
        "roles: {launcher: {nproc_per_node: 4}}",
        _RANKS,
        "as for all",
    ),
    "roles.launcher.env": About(
        "Variables of node rank 0, added to `env`; they win.",
        "roles: {launcher: {env: {CACHE: /local}}}",
        "a map or a list",
        "none",
    ),
    "roles.worker.run": About(
        "What all other nodes run, where that is not the job's `run`.",
        "roles: {worker: {run: serve.py}}",
        _COMMAND,
        "`run`",
    ),
    "roles.worker.nproc_per_node": About(
        "Ranks on each of the other nodes.",
        "roles: {worker: {nproc_per_node: 2}}",
        _RANKS,
        "as for all",
    ),
    "roles.worker.env": About(
        "Variables of the other nodes, added to `env`; they win.",
        "roles: {worker: {env: {CACHE: /local}}}",
        "a map or a list",
        "none",
    ),
    "workdir": About(
        "The folder on the nodes in which the job runs.",
        "workdir: /shared/qwen",
        "an absolute path; also `{path: /x, ship: false}`",
        "an empty one of its own on each node",
    ),
    "python": About(
        "The interpreter of the job: a program, a virtual environment or a conda prefix.",
        "python: /shared/venvs/qwen",
        "an absolute path, or the name of a command",
        "the agent's configuration",
    ),
    "setup": About(
        "Run on every node before the start, once for each attempt; a string is a bash script. "
        "Variables that it sets do not reach the ranks.",
        "setup: uv sync --frozen",
        _COMMAND,
        "none",
    ),
    "launcher": About(
        "What starts the ranks; see [job-file.md](job-file.md#who-starts-the-ranks).",
        "launcher: processes",
    ),
    "rendezvous": About(
        "How torchruns meet.",
        "rendezvous: c10d",
        default="`static`; `c10d` for a range of nodes",
    ),
    "run": About(
        "What a rank runs; see [job-file.md](job-file.md#what-run-means).",
        "run: train.py --lr 1e-5",
        _COMMAND,
        "has to be there, or each role has one",
    ),
    "env": About(
        "Variables of every process. A bare name takes the value of whoever submits.",
        "env: {HF_HOME: /data/hf}",
        "a map, or a list of `KEY=value`",
        "none",
    ),
    "time_limit": About(
        "The longest that an attempt may run.",
        "time_limit: 24h",
        _DURATION,
        "no limit",
        ("max_duration", "time"),
    ),
    "lease": About(
        "How long a node that is cut off from the coordinator goes on with the job; until then it "
        "runs nowhere else.",
        "lease: 30m",
        "a duration from 15s to 30 days",
        "the coordinator's `lease_s`",
    ),
    "checkpoint_dir": About(
        "The folder on the nodes in which the job writes its checkpoints; see "
        "[job-file.md](job-file.md#checkpoints).",
        "checkpoint_dir: /data/ckpt/qwen",
        "an absolute path",
        "none: nothing is known of its progress",
    ),
    "stop.signal": About(
        "What the ranks get first when the job is stopped.",
        "stop: {signal: SIGINT}",
        "the name or number of a signal",
    ),
    "stop.grace": About(
        "From that signal to SIGKILL.", "stop: {grace: 5m}", "a duration up to a day"
    ),
    "stop.warn": About(
        "A signal to the ranks that long before the time limit; it ends nothing.",
        "{stop: {warn: USR1@5m}, time_limit: 1h}",
        "`SIGNAL@duration`",
        "none",
    ),
    "retry.infra": About("Tries after a fault of the cluster.", "retry: {infra: 10}"),
    "retry.user": About(
        "Tries after a failure of the program; `retry: 2` is `retry: {user: 2}`.",
        "retry: {user: 2}",
    ),
    "retry.on_exit_codes": About(
        "Only these codes are tried again on the `user` budget.",
        "retry: {user: 2, on_exit_codes: [75]}",
        "a list of 1 to 255",
        'every code but 0 and 93, by which a program says "not again"',
    ),
    "retry.never_on": About(
        "Failures that are not tried again on the `user` budget: classes as `muster show` calls "
        "them; `OOM` is every kind of memory used up.",
        "retry: {user: 2, never_on: [OOM]}",
        "a list of classes",
        "none",
    ),
    "retry.backoff": About("Pause before the next try.", "retry: {backoff: 1m}", _DURATION),
    "priority": About("Higher is first in its pool.", "priority: 80"),
    "pool": About("Where the job queues.", "pool: research", "spelled as a name"),
    "rdma": About(
        "`required`: without RDMA between all its nodes the job does not start; `preferred`: RDMA "
        "where it can be; `off`: TCP.",
        "rdma: required",
    ),
    "hang": About(
        "What is done when the job hangs. `notify`: it is told, with the stacks of all ranks; "
        "`dump`: all threads and NCCL's flight recorder are kept, too; `restart`: and the attempt "
        "ends, to be tried again on the `infra` budget.",
        "hang: restart",
    ),
    "idle.gpu_util_below": About(
        "Percent of the time in which a GPU computes. All GPUs of the job below it, all through "
        "`idle.for`: the job is idle. Without `idle` nobody looks.",
        "idle: {gpu_util_below: 10}",
    ),
    "idle.for": About(
        "For how long, without a break.", "idle: {for: 30m}", "a duration from 1m to 30 days"
    ),
    "idle.action": About(
        "`notify`: it is told; `stop`: it is told after half of that time, and the job cancelled "
        "after the other half.",
        "idle: {for: 2h, action: stop}",
    ),
    "nccl_debug": About(
        "NCCL says what it chooses and why (`NCCL_DEBUG=INFO`), as with `muster submit "
        "--nccl-debug`.",
        "nccl_debug: true",
    ),
    "preflight": About(
        "`quick`: look at each node's GPUs, ports, clock, disks and mounts before the start, in "
        "less than two seconds; a node on which something is wrong is refused, and another taken.",
        "preflight: quick",
        default="nothing more than always",
    ),
    "notify": About(
        "Webhooks that are told of each start and retry, of a hang, and the end; see "
        "[webhooks.md](../how-to/webhooks.md).",
        "notify: [https://hooks.example.com/team]",
        "up to 8 addresses that the coordinator's configuration allows",
        "none",
    ),
    "placement.include": About(
        "The only nodes that the job may have.",
        "placement: {include: [gpu-01, gpu-02]}",
        _NODES,
        "any node",
    ),
    "placement.exclude": About(
        "Nodes that the job may not have.", "placement: {exclude: [gpu-07]}", _NODES, "none"
    ),
    "placement.labels": About(
        "Labels that a node must have, as its agent's configuration gives them.",
        "placement: {labels: {rack: r1}}",
        "a map",
        "any node",
    ),
    "placement.spread": About(
        "How near to each other the nodes are: all have the same value of a label, such as the "
        "`switch` that their agents' configurations name.",
        "placement: {spread: same-switch}",
        "`same-` and the name of a label",
        "anywhere",
    ),
}


def alias_of(path: str) -> str | None:
    """Return the key of which `path` is an alias."""
    return next((key for key, about in KEYS.items() if path in about.aliases), None)
