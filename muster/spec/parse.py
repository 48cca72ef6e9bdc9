"""Parsing of user input to a `JobSpec`, or to the list of all its problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.git_code import GitCode
from muster.protocol.observations.hangs import Hang
from muster.spec import field_readers, units
from muster.spec.checks.gpus import check_gpus
from muster.spec.checks.rdma import check_rdma
from muster.spec.command import name_of, read_run, read_script
from muster.spec.env import read_env
from muster.spec.errors import InvalidValueError, ProblemKind, Problems, printable, shown
from muster.spec.git import read_git
from muster.spec.model import (
    DEFAULT_POOL,
    DEFAULT_PRIORITY,
    MAX_PRIORITY,
    SCHEMA_VERSION,
    Argv,
    Command,
    Idle,
    JobSpec,
    Launcher,
    Placement,
    Rdma,
    Rendezvous,
    Resources,
    Retry,
    Roles,
    StartMethod,
    Stop,
    env_on_node,
    run_on_node,
)
from muster.spec.roles import Nproc, command_of_roles, read_nproc, read_roles
from muster.spec.torchrun_args import read_torchrun_args
from muster.spec.yaml.loader import Document, check_tree, read_json, read_yaml, scalar_text
from muster.spec.yaml.mapping_reader import GivenValue, Section, seconds, whole_number

MAX_RETRIES: Final = 1000
MAX_WEBHOOKS: Final = 8
# Linux allows 2 MiB of arguments and environment with the usual stack limit of 8 MiB, and a message
# to an agent is limited to 1 MiB. Half of that leaves room for Muster's additions.
MAX_LAUNCH_BYTES: Final = 512 * 1024
ONE_NODE: Final[tuple[int, int | None]] = (1, None)
_NO_COMMAND: Final = Argv(("",))


def parse_job(text: str, caller_env: Mapping[str, str] | None = None) -> JobSpec:
    """Parse a YAML text. `caller_env` is the submitter's environment, for bare names in `env`.
    Raises `SpecError` with every problem and its line.
    """
    return parse_document(read_yaml(text), caller_env)


def parse_json(text: str, caller_env: Mapping[str, str] | None = None) -> JobSpec:
    """Parse a JSON text, as sent over HTTP. Raises `SpecError`."""
    return parse_document(read_json(text), caller_env)


def parse_mapping(obj: object, caller_env: Mapping[str, str] | None = None) -> JobSpec:
    """Parse a tree of maps, lists and scalars; numbers and booleans may be real or text.

    Raises `SpecError`.
    """
    return parse_document(Document(obj), caller_env)


def parse_document(document: Document, caller_env: Mapping[str, str] | None = None) -> JobSpec:
    """Parse a document, possibly with overrides. Raises `SpecError`."""
    check_tree(document.tree)
    problems = Problems(document.lines, document.options)
    problems.extend(document.problems)
    spec = _read_job(document.tree, caller_env or {}, problems)
    problems.raise_if_any()
    return spec


def _read_job(tree: object, caller: Mapping[str, str], problems: Problems) -> JobSpec:
    if not isinstance(tree, dict):
        said = "there is no job here" if tree is None else "a job is a map of keys"
        problems.add("", shown(tree), said, "begin with `run: train.py`", ProblemKind.SYNTAX)
        tree = {"run": "train.py"}
    job = Section(tree, "", problems)
    job.read("schema_version", field_readers.schema_version, SCHEMA_VERSION)
    launcher = job.read("launcher", field_readers.launcher, None)
    nodes, most = job.read("nodes", field_readers.nodes, ONE_NODE, "num_nodes")
    nproc = read_nproc(job)
    roles = read_roles(job, nproc, lambda found: _given(job, found, launcher), caller)
    run, roles = _run(job, launcher, roles, nodes)
    code = _code(job)
    env = job.take("env")
    time_limit_s = job.read("time_limit", field_readers.time_limit, None, "max_duration", "time")
    spec = JobSpec(
        name=_name(job, run),
        run=run,
        nodes=nodes,
        max_nodes=most,
        rendezvous=_rendezvous(job, launcher, elastic=most is not None),
        resources=_resources(job),
        nproc_per_node=nproc.everywhere,
        nproc_on=dict(nproc.by_node),
        roles=roles,
        workdir=code.workdir,
        bundle=code.bundle,
        git=code.git,
        python=job.read("python", lambda text: field_readers.python(text, code.workdir), None),
        setup=_setup(job),
        launcher=launcher or Launcher.TORCHRUN,
        torchrun_args=_torchrun_args(job, launcher),
        env=read_env(env, caller, problems) if env else {},
        time_limit_s=time_limit_s,
        lease_s=job.read(
            "lease", seconds(field_readers.LEAST_LEASE_S, field_readers.MOST_LEASE_S), None
        ),
        checkpoint_dir=job.read("checkpoint_dir", field_readers.absolute_path, None),
        stop=_stop(job, time_limit_s),
        retry=_retry(job),
        priority=job.read("priority", whole_number(0, MAX_PRIORITY), DEFAULT_PRIORITY),
        pool=job.read("pool", field_readers.pool, DEFAULT_POOL),
        placement=_placement(job, nodes, nproc, roles),
        rdma=job.read("rdma", field_readers.rdma, Rdma.PREFERRED),
        notify=_notify(job),
        preflight=job.read("preflight", field_readers.preflight, None),
        nccl_debug=job.read("nccl_debug", field_readers.boolean, False),
        hang=job.read("hang", field_readers.hang, Hang.NOTIFY),
        idle=_idle(job),
        start_method=job.read("start_method", field_readers.start_method, StartMethod.FORK),
        preload=_preload(job),
    )
    job.finish()
    check_gpus(spec, problems)
    check_rdma(spec, problems)
    if spec.preload and not (spec.launcher.torchruns and spec.start_method is StartMethod.FORK):
        said = "needs ranks that are forked by a torchrun"
        problems.add("preload", None, said, "leave it out")
    _check_size(spec, problems)
    return spec


def _check_size(spec: JobSpec, problems: Problems) -> None:
    """Refuse a job that is too large for the message to a node, or for the arguments of a process.
    A node would refuse it later."""
    for node_rank, field in ((0, "launcher"), (1, "worker")):
        env, run = env_on_node(spec, node_rank), run_on_node(spec, node_rank)
        size = len(msgspec.json.encode((env, run, spec.setup)))
        if size > MAX_LAUNCH_BYTES:
            own = getattr(spec.roles, field)
            where = f"roles.{field}" if own.env or own.run else "env" if env else "run"
            problems.add(
                where,
                None,
                f"environment, command and set-up are {size // 1024} KiB together, and "
                f"{MAX_LAUNCH_BYTES // 1024} KiB is the limit",
                "pass data in files",
            )
            return


def _name(job: Section, run: Command) -> str:
    default = name_of(run)
    return job.read("name", field_readers.job_name, default)


def _run(
    job: Section, launcher: Launcher | None, roles: Roles, nodes: int
) -> tuple[Command, Roles]:
    """Return the job's command, and its roles without it."""
    found = job.take("run")
    if found is not None:
        return _given(job, found, launcher), roles
    if "run" in job.raw:
        return _NO_COMMAND, roles
    of_roles = command_of_roles(roles, nodes)
    if of_roles is None:
        job.problems.add(
            "run", None, "is missing", "say what to run, such as `run: train.py --lr 1e-5`"
        )
        return _NO_COMMAND, roles
    return of_roles


def _rendezvous(job: Section, launcher: Launcher | None, *, elastic: bool) -> Rendezvous:
    default = Rendezvous.C10D if elastic else Rendezvous.STATIC
    chosen = job.read("rendezvous", field_readers.rendezvous, default)
    if elastic and chosen is Rendezvous.STATIC:
        job.problems.add(
            "rendezvous",
            chosen.value,
            "cannot serve a range of nodes",
            "leave the key out, or write one number of nodes",
        )
    if chosen is Rendezvous.C10D and launcher is not None and not launcher.torchruns:
        where = "nodes" if elastic else "rendezvous"
        what = "a range of nodes" if elastic else "c10d"
        job.problems.add(
            where, None, f"{what} needs torchrun", "use `launcher: torchrun`, or leave it out"
        )
    return chosen


def _given(job: Section, found: GivenValue, launcher: Launcher | None) -> Command:
    if launcher is None:
        if "launcher" in job.raw:  # refused already: without a launcher, `run` cannot be parsed
            return _NO_COMMAND
        launcher = Launcher.TORCHRUN
    return _command(job, found, lambda value: read_run(value, launcher))


def _setup(job: Section) -> Command | None:
    found = job.take("setup")
    return None if found is None else _command(job, found, read_script)


def _command(job: Section, found: GivenValue, reader: Callable[[object], Command]) -> Command:
    try:
        return reader(found.value)
    except InvalidValueError as refused:
        job.problems.refuse(found.path, shown(found.value), refused)
        return _NO_COMMAND


def _torchrun_args(job: Section, launcher: Launcher | None) -> tuple[str, ...]:
    found = job.take("torchrun_args")
    if found is None:
        return ()
    if not isinstance(found.value, list | tuple):
        hint = "write `torchrun_args: [--role, trainer]`"
        job.problems.add(found.path, shown(found.value), "must be a list", hint)
        return ()
    if launcher is not None and not launcher.torchruns:
        hint = "leave it out, or use `launcher: torchrun`"
        job.problems.add(found.path, None, f"needs torchrun, not `{launcher.value}`", hint)
        return ()
    try:
        return read_torchrun_args([scalar_text(word) for word in found.value])
    except InvalidValueError as refused:
        job.problems.refuse(found.path, None, refused)
        return ()


def _notify(job: Section) -> tuple[str, ...]:
    found = job.items("notify", field_readers.webhook, "`[https://hooks.example.com/x]`")
    if len(found) > MAX_WEBHOOKS:
        job.problems.add("notify", None, f"names more than {MAX_WEBHOOKS}", "name fewer")
        return ()
    return found


def _preload(job: Section) -> tuple[str, ...]:
    found = job.items("preload", field_readers.module_name, "`[transformers]`")
    if len(found) > field_readers.MAX_PRELOAD:
        said = f"names more than {field_readers.MAX_PRELOAD}"
        job.problems.add("preload", None, said, "name fewer")
        return ()
    return found


def _part(job: Section, key: str, example: str) -> Section | None:
    """Return the map under `key`, or None."""
    found = job.take(key)
    if found is None:
        return None
    if not isinstance(found.value, dict):
        job.problems.add(found.path, shown(found.value), "must be a map", f"write {example}")
        return None
    return Section(found.value, found.path, job.problems)


def _resources(job: Section) -> Resources:
    top = job.take("accelerators")
    part = _part(job, "resources", "`resources: {gpu: 8}`")
    inner = part.take("gpu", "accelerators") if part else None
    least = Resources()
    if part:
        least = Resources(
            cpu=part.read("cpu", field_readers.cpus, None),
            memory_bytes=part.read("memory", field_readers.memory, None),
            numa_binding=part.read("numa_binding", field_readers.numa_binding, None),
        )
        part.finish()
    if top and inner:
        job.problems.add(
            top.path,
            shown(top.value),
            f"is another name of `{inner.path}`, which is given too",
            "keep `resources.gpu`",
        )
    found = inner or top
    if found is None:
        return least
    if isinstance(found.value, dict) and len(found.value) == 1:  # SkyPilot's {H100: 8}
        model, count = next(iter(found.value.items()))
        meant = f"{printable(str(model))}:{shown(count) or 8}"
        try:
            units.gpu(meant)
            hint = f"write `{meant}`"
        except InvalidValueError as refused:
            hint = refused.hint
        job.problems.add(found.path, shown(found.value), "must be text, not a map", hint)
        return least
    return job.typed(found, lambda text: replace(least, **_gpus(text)), least)


def _gpus(text: str) -> dict[str, Any]:
    count, model = units.gpu(text)
    return {"gpu": count, "gpu_model": model}


class _Code(NamedTuple):
    """`workdir`, `bundle` and `git` of a spec."""

    workdir: str | None = None
    bundle: str | None = None
    git: GitCode | None = None


def _code(job: Section) -> _Code:
    found = job.take("workdir")
    if found is None:
        return _Code()
    if not isinstance(found.value, dict):
        return _Code(job.typed(found, field_readers.folder, None))
    part = Section(found.value, found.path, job.problems)
    path = part.read("path", field_readers.folder, None)
    ships = part.read("ship", field_readers.boolean, None)
    bundle = part.read("bundle", field_readers.bundle, None)
    git = read_git(part)
    part.finish()
    if path is not None and ships is not None and ships == path.startswith("/"):
        job.problems.add(
            f"{found.path}.ship",
            shown(found.value["ship"]),
            "does not go with this path: a relative path is sent to the nodes, an absolute one "
            "exists there",
            f"write `ship: {'false' if path.startswith('/') else 'true'}`",
        )
    given = [key for key in ("path", "bundle", "git") if key in found.value]
    if len(given) != 1:
        said = f"does not go with `{given[1]}`" if given else "is missing"
        where = given[0] if given else "path"
        job.problems.add(f"{found.path}.{where}", None, said, "write `workdir: {path: /x}`")
    return _Code(path, bundle, git)


def _stop(job: Section, time_limit_s: float | None) -> Stop:
    part = _part(job, "stop", "`stop: {signal: SIGTERM, grace: 30s}`")
    if part is None:
        return Stop()
    default = Stop()
    stop = Stop(
        signal=part.read("signal", field_readers.stop_signal, default.signal),
        grace_s=part.read("grace", seconds(0.0, field_readers.DAY), default.grace_s),
        warn=part.read("warn", field_readers.warn, None),
    )
    part.finish()
    if stop.warn is None or (time_limit_s is None and _has_time_limit(job)):
        return stop
    if time_limit_s is None:
        said, hint = "has no effect without `time_limit`", "set `time_limit`, or leave it out"
    elif stop.warn.before_s >= time_limit_s:
        said = f"is not within the time limit of {units.duration_text(time_limit_s)}"
        hint = "warn later, or raise `time_limit`"
    else:
        return stop
    job.problems.add(f"{part.path}.warn", shown(part.raw["warn"]), said, hint)
    return stop


def _idle(job: Section) -> Idle | None:
    part = _part(job, "idle", "`idle: {gpu_util_below: 5, for: 1h, action: notify}`")
    if part is None:
        return None
    default = Idle()
    found = Idle(
        gpu_util_below=part.read("gpu_util_below", whole_number(1, 100), default.gpu_util_below),
        for_s=part.read(
            "for", seconds(field_readers.LEAST_IDLE_S, 30 * field_readers.DAY), default.for_s
        ),
        action=part.read("action", field_readers.idle_action, default.action),
    )
    part.finish()
    return found


def _has_time_limit(job: Section) -> bool:
    """True if a time limit was given, valid or not."""
    return any(key in job.raw for key in ("time_limit", "max_duration", "time"))


def _retry(job: Section) -> Retry:
    found = job.take("retry")
    if found is None:
        return Retry()
    times = whole_number(0, MAX_RETRIES)
    default = Retry()
    if not isinstance(found.value, dict):
        return Retry(user=job.typed(found, times, default.user))
    part = Section(found.value, found.path, job.problems)
    retry = Retry(
        infra=part.read("infra", times, default.infra),
        user=part.read("user", times, default.user),
        on_exit_codes=part.items("on_exit_codes", whole_number(1, 255), "`[75, 76]`"),
        never_on=_each_once(part.items("never_on", field_readers.failures, "`[OOM]`")),
        backoff_s=part.read("backoff", seconds(0.0, 7 * field_readers.DAY), default.backoff_s),
    )
    part.finish()
    if part.raw.get("user") in (None, "0", 0):
        for key, given in (("on_exit_codes", retry.on_exit_codes), ("never_on", retry.never_on)):
            if given:
                job.problems.add(
                    f"{found.path}.{key}",
                    shown(part.raw[key]),
                    "has no effect while `retry.user` is 0",
                    "say how often: add `user: 3`",
                )
    return retry


def _each_once(classes: tuple[tuple[FailureKind, ...], ...]) -> tuple[FailureKind, ...]:
    return tuple(dict.fromkeys(kind for kinds in classes for kind in kinds))


def _placement(job: Section, nodes: int, nproc: Nproc, roles: Roles) -> Placement:
    part = _part(job, "placement", "`placement: {exclude: [gpu-07]}`")
    part = part or Section({}, "placement", job.problems)
    include = part.items("include", field_readers.node_name, "`[gpu-01, gpu-02]`")
    exclude = part.items("exclude", field_readers.node_name, "`[gpu-07]`")
    labels = _labels(part)
    spread = part.read("spread", field_readers.spread, None)
    part.finish()
    counted = [r for r in (roles.launcher, roles.worker) if r.nproc_per_node is not None]
    where, given = f"{part.path}.include", shown(part.raw.get("include"))
    if include:
        for name in nproc.by_node:
            if name not in include:
                path = f"nproc_per_node.{name}"
                job.problems.add(path, None, "is not in `placement.include`", "add it there")
    elif nproc.by_node and not counted:
        # A user who gives rank counts for some nodes only means these nodes.
        include = tuple(nproc.by_node)
        where, given = "nproc_per_node", None
    for path, names in ((where, include), (f"{part.path}.exclude", exclude)):
        if len(names) > field_readers.MAX_NODES:
            said = f"names {len(names)} nodes, and {field_readers.MAX_NODES} is the limit"
            job.problems.add(path, None, said, "name fewer, or use labels")
    usable = set(include) - set(exclude)
    if include and len(usable) < nodes:
        job.problems.add(
            where,
            given,
            f"leaves {len(usable)} nodes for a job of {nodes}",
            "name more, or ask for fewer",
        )
    return Placement(include, exclude, labels, spread)


def _labels(placement: Section) -> dict[str, str]:
    part = _part(placement, "labels", "`labels: {rack: r1}`")
    if part is None:
        return {}
    return {str(name): part.read(str(name), field_readers.label, "") for name in part.raw}
