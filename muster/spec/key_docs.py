"""Descriptions of a job file's keys, one line each, for the reference page and the JSON Schema.

`tests/tools/test_job_file_keys.py` checks the paths against the schema, and every example against
the parser. Enumerated values and literal defaults come from the schema.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KeyDoc(NamedTuple):
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
_NODES: Final = "a list of up to 4096 names"
_RANKS: Final = "1 to 1024"

KEYS: Final[dict[str, KeyDoc]] = {
    "schema_version": KeyDoc("The version of this format.", "schema_version: 1", "`1`"),
    "name": KeyDoc(
        "Name of the job. Its id is separate.",
        "name: qwen-sft",
        "a lower-case letter, then up to 62 of `a-z`, `0-9`, `-`; not `last`",
        "derived from the command",
    ),
    "nodes": KeyDoc(
        "Number of nodes; the job starts on all of them or none. A range is an elastic job.",
        "nodes: 2..4",
        "1 to 4096, or a range",
        "`1`",
        ("num_nodes",),
    ),
    "resources.gpu": KeyDoc(
        "GPUs per node, and their model. With fewer than a node has, jobs share the node.",
        "resources: {gpu: H100:8}",
        "a number, or `MODEL:number`",
        "the whole node",
        ("resources.accelerators", "accelerators"),
    ),
    "resources.cpu": KeyDoc(
        "Minimum CPUs of a node; on a shared node, CPUs reserved for the job.",
        "resources: {cpu: 16}",
        "a number; also `16..`, `16+`",
        "any",
    ),
    "resources.memory": KeyDoc(
        "Minimum memory of a node; on a shared node, memory reserved for the job, and its limit "
        "where the node can enforce one.",
        "resources: {memory: 200GB}",
        "a size; also `200GB..`, `200GB+`",
        "any",
    ),
    "resources.numa_binding": KeyDoc(
        "torchrun binds each rank to CPUs near its GPU; needs PyTorch 2.9 and numactl.",
        "resources: {numa_binding: node}",
        default="no binding",
    ),
    "nproc_per_node": KeyDoc(
        "Ranks per node; a map has counts by role (`launcher`, `worker`) or by node.",
        "nproc_per_node: {launcher: 4, worker: 2}",
        f"{_RANKS}, or a map",
        "the GPUs of each node, else 1",
    ),
    "roles.launcher.run": KeyDoc(
        "Command of node rank 0, if it is not the job's `run`.",
        "roles: {launcher: {run: train.py --evaluate}}",
        _COMMAND,
        "`run`",
    ),
    "roles.launcher.nproc_per_node": KeyDoc(
        "Ranks on node rank 0.",
        "roles: {launcher: {nproc_per_node: 4}}",
        _RANKS,
        "as for all",
    ),
    "roles.launcher.env": KeyDoc(
        "Variables of node rank 0; they override `env`.",
        "roles: {launcher: {env: {CACHE: /local}}}",
        "a map or a list",
        "none",
    ),
    "roles.worker.run": KeyDoc(
        "Command of all other nodes, if it is not the job's `run`.",
        "roles: {worker: {run: serve.py}}",
        _COMMAND,
        "`run`",
    ),
    "roles.worker.nproc_per_node": KeyDoc(
        "Ranks per node on the other nodes.",
        "roles: {worker: {nproc_per_node: 2}}",
        _RANKS,
        "as for all",
    ),
    "roles.worker.env": KeyDoc(
        "Variables of the other nodes; they override `env`.",
        "roles: {worker: {env: {CACHE: /local}}}",
        "a map or a list",
        "none",
    ),
    "workdir": KeyDoc(
        "Working directory of the job. A relative path is a folder beside the job file; "
        "`muster submit` sends its content to the nodes, and each gets a copy of its own. An "
        "absolute path exists on the nodes. `none` is a new empty directory on each node, which is "
        "also the default of jobs that the Python client or the HTTP API submits. With `git`, each "
        "node fetches the commit that `ref` named when the job was submitted.",
        "workdir: .",
        "a path, or `none`; also `{path: /x, ship: false}`, `{bundle: SHA256}` for content that "
        "was sent before, and `{git: URL, ref: REF, secret: NAME, submodules: true}`, all but "
        "`git` optional",
        "the pool's default, else `.`",
    ),
    "python": KeyDoc(
        "The interpreter of the job: a program, a virtual environment or a conda prefix.",
        "python: /shared/venvs/qwen",
        "an absolute path, or the name of a command",
        "the agent's configuration",
    ),
    "setup": KeyDoc(
        "Run on every node before the start, once for each attempt; a string is a bash script. "
        "Variables that it sets do not reach the ranks.",
        "setup: uv sync --frozen",
        _COMMAND,
        "none",
    ),
    "launcher": KeyDoc(
        "Program that starts the ranks; see [job-file.md](job-file.md#who-starts-the-ranks).",
        "launcher: processes",
    ),
    "torchrun_args": KeyDoc(
        "Further options of torchrun: those that Muster does not set itself.",
        "torchrun_args: [--role, trainer, --monitor-interval=1]",
        "a list of `--role`, `--local-ranks-filter`, `--monitor-interval`, `--event-log-handler`, "
        "`--shutdown-timeout`, `--duplicate-stdout-filters`, `--duplicate-stderr-filters`, each "
        "with its value",
        "none",
    ),
    "rendezvous": KeyDoc(
        "Rendezvous of the torchruns.",
        "rendezvous: c10d",
        default="`static`; `c10d` for a range of nodes",
    ),
    "run": KeyDoc(
        "Command of a rank; see [job-file.md](job-file.md#what-run-means).",
        "run: train.py --lr 1e-5",
        _COMMAND,
        "required, unless each role has one",
    ),
    "env": KeyDoc(
        "Variables of every process. A bare name takes the submitter's value.",
        "env: {HF_HOME: /data/hf}",
        "a map, or a list of `KEY=value`",
        "none",
    ),
    "time_limit": KeyDoc(
        "Maximum run time of an attempt.",
        "time_limit: 24h",
        _DURATION,
        "no limit",
        ("max_duration", "time"),
    ),
    "lease": KeyDoc(
        "Time for which a node that is cut off from the coordinator continues the job. Until then, "
        "the job runs nowhere else, and afterwards it may start elsewhere.",
        "lease: 30m",
        "a duration from 15s to 30 days",
        "jobs of one node: no limit; others: the coordinator's `lease_s`",
    ),
    "checkpoint_dir": KeyDoc(
        "Directory on the nodes in which the job writes its checkpoints; see "
        "[job-file.md](job-file.md#checkpoints).",
        "checkpoint_dir: /data/ckpt/qwen",
        "an absolute path",
        "none: its progress is unknown",
    ),
    "stop.signal": KeyDoc(
        "First signal to the ranks when the job is stopped.",
        "stop: {signal: SIGINT}",
        "the name or number of a signal",
    ),
    "stop.grace": KeyDoc(
        "Time from that signal to SIGKILL.", "stop: {grace: 5m}", "a duration up to a day"
    ),
    "stop.warn": KeyDoc(
        "Signal to the ranks before the time limit; it does not stop the job.",
        "{stop: {warn: USR1@5m}, time_limit: 1h}",
        "`SIGNAL@duration`",
        "none",
    ),
    "retry.infra": KeyDoc("Retries after a fault of the cluster.", "retry: {infra: 10}"),
    "retry.user": KeyDoc(
        "Retries after a failure of the program; `retry: 2` is `retry: {user: 2}`.",
        "retry: {user: 2}",
    ),
    "retry.on_exit_codes": KeyDoc(
        "Only these exit codes are retried on the `user` budget.",
        "retry: {user: 2, on_exit_codes: [75]}",
        "a list of 1 to 255",
        'every code except 0 and 93, with which a program says "not again"',
    ),
    "retry.never_on": KeyDoc(
        "Failures that are not retried on the `user` budget: classes as shown by `muster show`; "
        "`OOM` is every kind of memory exhaustion.",
        "retry: {user: 2, never_on: [OOM]}",
        "a list of classes",
        "none",
    ),
    "retry.backoff": KeyDoc("Pause before the next attempt.", "retry: {backoff: 1m}", _DURATION),
    "priority": KeyDoc("Priority in its pool; higher is first.", "priority: 80"),
    "pool": KeyDoc("Pool in which the job queues.", "pool: research", "spelled like a job name"),
    "rdma": KeyDoc(
        "`required`: without RDMA between all its nodes the job does not start; `preferred`: RDMA "
        "if possible; `off`: TCP.",
        "rdma: required",
    ),
    "hang": KeyDoc(
        "Action if the job hangs. `notify`: report it, with the stacks of all ranks; `dump`: also "
        "store the stacks of all threads and NCCL's flight recorder; `restart`: also end the "
        "attempt, and retry it on the `infra` budget.",
        "hang: restart",
    ),
    "idle.gpu_util_below": KeyDoc(
        "GPU utilization in percent. The job is idle if all its GPUs stay below it for "
        "`idle.for`. Without `idle`, utilization is not monitored.",
        "idle: {gpu_util_below: 10}",
    ),
    "idle.for": KeyDoc(
        "Required idle time, without interruption.",
        "idle: {for: 30m}",
        "a duration from 1m to 30 days",
    ),
    "idle.action": KeyDoc(
        "`notify`: report it; `stop`: report it after half of that time, and cancel the job after "
        "the other half.",
        "idle: {for: 2h, action: stop}",
    ),
    "nccl_debug": KeyDoc(
        "NCCL logs its choices and the reasons (`NCCL_DEBUG=INFO`), as with `muster submit "
        "--nccl-debug`.",
        "nccl_debug: true",
    ),
    "preflight": KeyDoc(
        "`quick`: check each node's GPUs, ports, clock, disks and mounts before the start, in less "
        "than two seconds; a node that fails is replaced by another one.",
        "preflight: quick",
        default="only the usual checks",
    ),
    "start_method": KeyDoc(
        "`fork`: fork the ranks from a process that has imported torch, if that is safe on the "
        "node; `exec`: each rank is a new process that imports torch itself. See "
        "[start-method.md](../explanation/start-method.md).",
        "start_method: exec",
    ),
    "preload": KeyDoc(
        "Modules of the job's Python environment to import before the ranks are forked.",
        "preload: [transformers]",
        "up to 16 names of modules",
        "none but torch",
    ),
    "notify": KeyDoc(
        "Webhooks for each start and retry, a hang, and the end; see "
        "[webhooks.md](../how-to/webhooks.md).",
        "notify: [https://hooks.example.com/team]",
        "up to 8 addresses that the coordinator's configuration allows",
        "none",
    ),
    "placement.include": KeyDoc(
        "The only nodes that the job may use.",
        "placement: {include: [gpu-01, gpu-02]}",
        _NODES,
        "any node",
    ),
    "placement.exclude": KeyDoc(
        "Nodes that the job must not use.", "placement: {exclude: [gpu-07]}", _NODES, "none"
    ),
    "placement.labels": KeyDoc(
        "Labels that a node must have, from its agent's configuration.",
        "placement: {labels: {rack: r1}}",
        "a map",
        "any node",
    ),
    "placement.spread": KeyDoc(
        "Proximity of the nodes: all have the same value of a label, such as the `switch` in their "
        "agents' configurations.",
        "placement: {spread: same-switch}",
        "`same-` and the name of a label",
        "anywhere",
    ),
}


def alias_of(path: str) -> str | None:
    """Return the key of which `path` is an alias."""
    return next((key for key, about in KEYS.items() if path in about.aliases), None)
