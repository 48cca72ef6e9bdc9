"""Good jobs, and every mistake named at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.failure_kinds import FailureKind
from muster.spec.errors import ProblemKind, SpecError, SpecProblem
from muster.spec.model import (
    Argv,
    JobSpec,
    Launcher,
    Placement,
    Rendezvous,
    Resources,
    Retry,
    Seat,
    Shell,
    Stop,
    Warn,
    gpus_on_node,
    nproc_on_node,
    ranks_on_node,
)
from muster.spec.overrides import apply_overrides
from muster.spec.parse import parse_job, parse_json, parse_mapping
from muster.spec.serialize import to_mapping
from muster.spec.unsupported import LATER_KEYS


def problems_of(text: str, caller: dict[str, str] | None = None) -> tuple[SpecProblem, ...]:
    with pytest.raises(SpecError) as caught:
        parse_job(text, caller)
    return caught.value.problems


def with_key(text: str) -> str:
    return f"run: x.py\n{text}\n"


def test_the_least_job() -> None:
    assert parse_job("run: train.py") == JobSpec(name="train", run=Argv(("train.py",)))


def test_everything() -> None:
    spec = parse_job(
        """
        schema_version: 1
        name: qwen-sft
        nodes: 4
        resources: {gpu: H100:8}
        nproc_per_node: 4
        workdir: {path: /shared/x, ship: false}
        python: /venv
        setup: [make, all]
        run: train.py --bf16
        launcher: torchrun
        env: {A: off, B: 1.10, C: }
        time_limit: 1-00:00:00
        stop: {signal: USR1, grace: 5m}
        retry: {infra: 1, user: 2, on_exit_codes: [75, 76], backoff: 1m}
        priority: 100
        pool: big
        placement: {include: [gpu-01, gpu-02, gpu-03.x, gpu-04, gpu-05], exclude: [gpu-05],
                    spread: same-switch}
        """,
        {"C": "c", "D": "d"},
    )
    assert spec == JobSpec(
        name="qwen-sft",
        nodes=4,
        resources=Resources(gpu=8, gpu_model="H100"),
        nproc_per_node=4,
        workdir="/shared/x",
        python="/venv",
        setup=Argv(("make", "all")),
        run=Argv(("train.py", "--bf16")),
        launcher=Launcher.TORCHRUN,
        env={"A": "off", "B": "1.10", "C": "c"},
        time_limit_s=86400.0,
        stop=Stop(signal="SIGUSR1", grace_s=300.0),
        retry=Retry(infra=1, user=2, on_exit_codes=(75, 76), backoff_s=60.0),
        priority=100,
        pool="big",
        placement=Placement(
            include=("gpu-01", "gpu-02", "gpu-03.x", "gpu-04", "gpu-05"),
            exclude=("gpu-05",),
            spread="same-switch",
        ),
    )


@pytest.mark.parametrize(
    ("alias", "bold"),
    [
        ("num_nodes: 2", "nodes: 2"),
        ("accelerators: H100:8", "resources: {gpu: H100:8}"),
        ("resources: {accelerators: 4}", "resources: {gpu: 4}"),
        ("resources: {cpu: 16.., memory: 200GB+}", "resources: {cpu: 16, memory: 200GB}"),
        ("resources: {gpu: 1, memory: 2GiB}", "resources: {gpu: 1, memory: 2048MiB}"),
        ("max_duration: 24h", "time_limit: 24h"),
        ("time: 24:00:00", "time_limit: 24h"),
        ("retry: 3", "retry: {user: 3}"),
        ("workdir: /x", "workdir: {path: /x}"),
        ("env: [A=1, B=x=y, C=]", "env: {A: 1, B: x=y, C: ''}"),
        ("stop: {signal: 15}", "stop: {signal: SIGTERM}"),
        ("setup: make", 'setup: "make"'),
    ],
)
def test_spellings(alias: str, bold: str) -> None:
    assert parse_job(with_key(alias)) == parse_job(with_key(bold))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("nodes: 2\nnum_nodes: 2", "num_nodes"),
        ("time_limit: 1h\ntime: 1h", "time"),
        ("resources: {gpu: 1, accelerators: 1}", "resources.accelerators"),
        ("resources: {gpu: 1}\naccelerators: 1", "accelerators"),
    ],
)
def test_two_names_of_one_thing(text: str, field: str) -> None:
    (problem,) = problems_of(with_key(text))
    assert problem.field == field
    assert "another name" in problem.message


@pytest.mark.parametrize(
    ("path", "key"), [(path, key) for path, keys in LATER_KEYS.items() for key in keys]
)
def test_later_keys_are_refused_in_words(path: str, key: str) -> None:
    line = f"{path}: {{{key}: x}}" if path else f"{key}: x"
    (problem,) = problems_of(with_key(line))
    assert problem.kind is ProblemKind.LATER
    assert problem.field == (f"{path}.{key}" if path else key)
    assert f"`{problem.field}` is not supported yet by this release" in problem.message
    assert problem.hint


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("resources: {gpu: H100:80GB:8}", "resources.gpu"),
    ],
)
def test_later_values_are_refused_in_words(text: str, field: str) -> None:
    (problem,) = problems_of(with_key(text))
    assert (problem.kind, problem.field) == (ProblemKind.LATER, field)
    assert "not supported yet by this release" in problem.message
    assert problem.hint


def test_a_folder_of_the_client_or_its_content_or_none() -> None:
    sent = "0" * 64
    for text, workdir, bundle in (
        (".", ".", None),
        ("src/x", "src/x", None),
        ("{path: ., ship: true}", ".", None),
        ("/x", "/x", None),
        ("{path: /x, ship: false}", "/x", None),
        ("none", None, None),
        (f"{{bundle: {sent}}}", None, sent),
    ):
        spec = parse_job(with_key(f"workdir: {text}"))
        assert (spec.workdir, spec.bundle) == (workdir, bundle)
    spec = parse_job(with_key(f"workdir: {{bundle: {sent}}}"))
    assert parse_mapping(to_mapping(spec)) == spec
    assert apply_overrides(to_mapping(spec), ["workdir=/x"])["workdir"] == "/x"
    assert apply_overrides(to_mapping(spec), ["workdir.path=/x"])["workdir"] == {"path": "/x"}


def test_the_example_of_the_contract_uses_two_later_features() -> None:
    text = """
name: qwen-sft
nodes: 4
resources: {gpu: H100:8}
workdir: .
setup: uv sync --frozen
run: train.py --bf16 --deepspeed ds_zero2.json --lr 1e-5     # becomes torchrun ... train.py ...
env: {HF_HOME: /data/hf, WANDB_MODE: offline}
secrets: [HF_TOKEN]
rdma: required
time_limit: 24h
stop: {grace: 5m}
retry: {infra: 3, user: 1}
after: [41]
"""
    found = problems_of(text)
    assert [p.field for p in found] == ["secrets", "after"]
    assert all(p.kind is ProblemKind.LATER and p.line and p.hint for p in found)


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("nam: x", "nam", "`name`"),
        ("Nodes: 2", "Nodes", "`nodes`"),
        ("time-limit: 1h", "time-limit", "`time_limit`"),
        ("secret: [a]", "secret", "`secrets`"),
        ("gpus: 8", "gpus", "`resources.gpu`"),
        ("partition: x", "partition", "`pool`"),
        ("commands: [x]", "commands", "`run`"),
        ("retry: {back_off: 1s}", "retry.back_off", "`backoff`"),
        ("retry: {max_retries: 1}", "retry.max_retries", "`user`"),
        ("stop: {kill_timeout: 1s}", "stop.kill_timeout", "`grace`"),
        ("placement: {exclud: [a]}", "placement.exclud", "`exclude`"),
        ("qqqq: 1", "qqqq", "known keys: env"),
    ],
)
def test_unknown_keys(text: str, field: str, hint: str) -> None:
    (problem,) = problems_of(with_key(text))
    assert (problem.kind, problem.field) == (ProblemKind.UNKNOWN, field)
    assert hint.replace("known keys: env", "known keys: ") in problem.hint


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("schema_version: 2", "schema_version", "2"),
        ("name: Qwen_SFT", "name", "Qwen_SFT"),
        ("name: 1st", "name", "1st"),
        ("name: last", "name", "last"),
        ("name: " + "a" * 64, "name", "a" * 64),
        ("name: [a]", "name", "[a]"),
        ("name:", "name", None),
        ("nodes: 0", "nodes", "0"),
        ("nodes: -1", "nodes", "-1"),
        ("nodes: two", "nodes", "two"),
        ("nodes: 010", "nodes", "010"),
        ("nodes: 2.0", "nodes", "2.0"),
        ("nodes: {a: b}", "nodes", "{a}"),
        ("resources: H100:8", "resources", "H100:8"),
        ("resources: {gpu: all}", "resources.gpu", "all"),
        ("accelerators: {H100: 8}", "accelerators", "{H100}"),
        ("resources: {cpu: 0}", "resources.cpu", "0"),
        ("resources: {cpu: 4..8}", "resources.cpu", "4..8"),
        ("resources: {memory: 32}", "resources.memory", "32"),
        ("resources: {memory: 0GB}", "resources.memory", "0GB"),
        ("placement: {labels: [rack]}", "placement.labels", "[rack]"),
        ("placement: {labels: {rack: [r1]}}", "placement.labels.rack", "[r1]"),
        ('placement: {labels: {rack: "a\\nb"}}', "placement.labels.rack", "a\\nb"),
        ("placement: {labels: {rack: }}", "placement.labels.rack", None),
        ("nproc_per_node: auto", "nproc_per_node", "auto"),
        ("nproc_per_node: 0", "nproc_per_node", "0"),
        ("workdir: {}", "workdir.path", None),
        ("workdir: {path: /x, ship: maybe}", "workdir.ship", "maybe"),
        ("workdir: {path: /x, ship: true}", "workdir.ship", "true"),
        ("workdir: {path: ., ship: false}", "workdir.ship", "false"),
        ("workdir: ~/x", "workdir", "~/x"),
        ("workdir: {bundle: x}", "workdir.bundle", "x"),
        ('workdir: "/x\\ny"', "workdir", "/x\\ny"),
        ("python: .venv", "python", ".venv"),
        ("python: ~/venv", "python", "~/venv"),
        ("setup: ''", "setup", ""),
        ("setup: {a: b}", "setup", "{a}"),
        ("launcher: slurm", "launcher", "slurm"),
        ("time_limit: 90", "time_limit", "90"),
        ("time_limit: 0s", "time_limit", "0s"),
        ("max_duration: off", "max_duration", "off"),
        ("time_limit: 99999w", "time_limit", "99999w"),
        ("stop: 30s", "stop", "30s"),
        ("stop: {signal: SIGKILL}", "stop.signal", "SIGKILL"),
        ("stop: {signal: FOO}", "stop.signal", "FOO"),
        ("stop: {grace: 30}", "stop.grace", "30"),
        ("stop: {warn: USR1@5m}", "stop.warn", "USR1@5m"),
        ("time_limit: 5m\nstop: {warn: USR1@5m}", "stop.warn", "USR1@5m"),
        ("time_limit: 1h\nstop: {warn: FOO@5m}", "stop.warn", "FOO@5m"),
        ("time_limit: 1h\nstop: {warn: USR1@}", "stop.warn", "USR1@"),
        ("time_limit: 1h\nstop: {warn: USR1@0s}", "stop.warn", "USR1@0s"),
        ("time_limit: 1h\nstop: {warn: 'B:USR1@5m'}", "stop.warn", "B:USR1@5m"),
        ("time_limit: 1h\nstop: {warn: KILL@5m}", "stop.warn", "KILL@5m"),
        ("retry: many", "retry", "many"),
        ("retry: {infra: -1}", "retry.infra", "-1"),
        ("retry: {backoff: 30}", "retry.backoff", "30"),
        ("retry: {user: 1, on_exit_codes: 75}", "retry.on_exit_codes", "75"),
        ("retry: {user: 1, on_exit_codes: [1, 0]}", "retry.on_exit_codes[1]", "0"),
        ("retry: {user: 1, on_exit_codes: [1, 1]}", "retry.on_exit_codes[1]", "1"),
        ("retry: {on_exit_codes: [75]}", "retry.on_exit_codes", "[75]"),
        ("retry: {user: 1, never_on: [oom]}", "retry.never_on[0]", "oom"),
        ("retry: {user: 1, never_on: OOM}", "retry.never_on", "OOM"),
        ("retry: {never_on: [OOM]}", "retry.never_on", "[OOM]"),
        ("rdma: on", "rdma", "on"),
        ("rdma: true", "rdma", "true"),
        ("rdma: [required]", "rdma", "[required]"),
        ("nccl_debug: yes", "nccl_debug", "yes"),
        ("idle: 1h", "idle", "1h"),
        ("idle: {for: 10s}", "idle.for", "10s"),
        ("idle: {gpu_util_below: 101}", "idle.gpu_util_below", "101"),
        ("idle: {action: kill}", "idle.action", "kill"),
        ("idle: {}\nresources: {gpu: 0}", "idle", None),
        ("priority: 101", "priority", "101"),
        ("priority: high", "priority", "high"),
        ("pool: A b", "pool", "A b"),
        ("placement: [a]", "placement", "[a]"),
        ("placement: {include: a}", "placement.include", "a"),
        ("notify: https://x/y", "notify", "https://x/y"),
        ("notify: [hooks.example.com]", "notify[0]", "hooks.example.com"),
        ("notify: ['https://x/y', 'https://x/y']", "notify[1]", "https://x/y"),
        ("notify: ['https://x:0/y']", "notify[0]", "https://x:0/y"),
        ("notify: ['https://x:y/']", "notify[0]", "https://x:y/"),
        ("placement: {spread: switch}", "placement.spread", "switch"),
        ("placement: {include: ['gpu-[1-4]']}", "placement.include[0]", "gpu-[1-4]"),
        ("placement: {exclude: ['a#b']}", "placement.exclude[0]", "a#b"),
        ("placement: {include: [a], exclude: [a]}", "placement.include", "[a]"),
        ("nodes: 2\nplacement: {include: [a]}", "placement.include", "[a]"),
        ("env: A=1", "env", None),
        ("env: {'A-B': secret}", "env.A-B", None),
        ("env: {A: [secret]}", "env.A", None),
        ("env: [A=secret, A=secret]", "env[1]", None),
        ("env: [{name: A, value: secret}]", "env[0]", None),
        ("env: [=secret]", "env[0]", None),
        ("env: {MISSING: }", "env.MISSING", None),
        ("env: [MISSING]", "env[0]", None),
    ],
)
def test_bad_values(text: str, field: str, value: str | None) -> None:
    (problem,) = problems_of(with_key(text))
    assert (problem.kind, problem.field, problem.value) == (ProblemKind.INVALID, field, value)
    assert problem.message
    assert problem.hint
    assert (problem.line or 0) >= 2
    assert "secret" not in str(problem)


def test_memory_used_up_is_one_word_for_several_failures() -> None:
    spec = parse_job(with_key("retry: {user: 1, never_on: [cuda_out_of_memory, OOM, segfault]}"))
    assert spec.retry.never_on == (
        FailureKind.CUDA_OUT_OF_MEMORY,
        FailureKind.OOM_KILLED,
        FailureKind.HOST_OUT_OF_MEMORY,
        FailureKind.SEGFAULT,
    )
    assert parse_mapping(to_mapping(spec)) == spec


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "TORCHELASTIC_RUN_ID",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "PET_NNODES",
        "MUSTER_JOB_ID",
    ],
)
def test_variables_of_others(name: str) -> None:
    (problem,) = problems_of(with_key(f"env: {{{name}: 1}}"))
    assert problem.field == f"env.{name}"
    assert "torchrun" in problem.message or "Muster" in problem.message


def test_env_of_the_caller_is_taken_by_name_only() -> None:
    caller = {"A": "1", "B": "2", "EMPTY": ""}
    assert parse_job(with_key("env: [A, EMPTY]"), caller).env == {"A": "1", "EMPTY": ""}
    assert parse_job(with_key("env: {A: '', EMPTY: }"), caller).env == {"A": "", "EMPTY": ""}
    assert parse_job(with_key("env: {}"), caller).env == {}


@pytest.mark.parametrize("value", ["a\0b", "\udcff", "x" * (128 * 1024)])
def test_env_of_the_caller_is_checked(value: str) -> None:
    (problem,) = problems_of(with_key("env: [A]"), {"A": value})
    assert problem.field == "env[0]"


def test_every_problem_at_once_in_order_of_the_file() -> None:
    found = problems_of(
        "nodes: 0\nrdma: requird\nenv:\n  RANK: 1\nretry:\n  backoff: 5\nnodes: 3\nx: 1\n"
    )
    assert [(p.field, p.line) for p in found] == [
        ("nodes", 1),
        ("rdma", 2),
        ("env.RANK", 4),
        ("retry.backoff", 6),
        ("nodes", 7),
        ("x", 8),
        ("run", None),
    ]


def test_a_bad_launcher_does_not_make_run_look_wrong() -> None:
    (problem,) = problems_of("run: sleep 1\nlauncher: nonne\n")
    assert problem.field == "launcher"
    assert problem.hint == "did you mean `none`?"


def test_secrets_are_not_repeated() -> None:
    (problem,) = problems_of(with_key("secrets: {HF_TOKEN: hf_abc}"))
    assert "hf_abc" not in str(problem)
    (problem,) = problems_of(with_key("api_token: hf_abc"))
    assert "hf_abc" not in str(problem)


def test_values_cannot_write_to_a_terminal() -> None:
    (problem,) = problems_of('run: x.py\npriority: "\\e[2J"\n"\\e[1mkey": 1\n')[:1]
    text = str(SpecError(problems_of('run: x.py\npriority: "\\e[2J"\n"\\e[1mkey": 1\n')))
    assert problem.value == "\\x1b[2J"
    assert "\x1b" not in text


def test_a_correction_is_bounded_and_printable() -> None:
    (problem,) = problems_of('run: "torchrun x.py \\e[2J ' + "a " * 5000 + '"')
    assert "\x1b" not in str(problem)
    assert problem.hint.startswith("write `run: [x.py, ")
    assert len(str(problem)) < 5000


def test_a_hostile_file_makes_few_problems() -> None:
    found = problems_of("\n".join(f"key{i}: x" for i in range(15_000)))
    assert len(found) == 101
    assert "14901 more" in found[-1].message


@pytest.mark.parametrize("text", ["", "# nothing\n", "- run", "run", "[]"])
def test_no_job(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.kind is ProblemKind.SYNTAX


def test_real_json_types() -> None:
    body = {
        "run": ["train.py", 1],
        "nodes": 2,
        "resources": {"gpu": 8},
        "env": {"A": 1, "B": True, "C": 0.5, "D": "010"},
        "retry": 2,
        "workdir": {"path": "/x", "ship": False},
    }
    spec = parse_mapping(body)
    assert spec.env == {"A": "1", "B": "true", "C": "0.5", "D": "010"}
    assert (spec.nodes, spec.resources.gpu, spec.retry.user) == (2, 8, 2)
    assert parse_json(json.dumps(body)) == spec


@pytest.mark.parametrize(
    "body",
    [{"nodes": True}, {"nodes": 2.0}, {"time_limit": 60}, {"name": None}, {"priority": 10**30}],
)
def test_bad_json_types(body: dict[str, object]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping({"run": "x.py", **body})
    (problem,) = caught.value.problems
    assert problem.field == next(iter(body))


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("2..4", (2, 4)), (" 2 .. 4 ", (2, 4)), ("3..3", (3, None)), ("4", (4, None))],
)
def test_a_range_of_nodes(text: str, bounds: tuple[int, int | None]) -> None:
    spec = parse_job(f"run: x.py\nnodes: {text}")
    assert (spec.nodes, spec.max_nodes) == bounds
    assert spec.elastic == (bounds[1] is not None)
    assert spec.rendezvous is (Rendezvous.C10D if spec.elastic else Rendezvous.STATIC)


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("nodes: 2-4", "nodes", "write both bounds: `2..4`"),
        ("nodes: 2:4", "nodes", "write both bounds: `2..4`"),
        ("num_nodes: 2..", "num_nodes", "write both bounds: `2..4`"),
        ("nodes: ..4", "nodes", "write both bounds: `1..4`"),
        ("nodes: 4..2", "nodes", "write `2..4`"),
        ("nodes: 0..2", "nodes", "write a number from 1 to 4096"),
        ("nodes: 2..4\nrendezvous: static", "rendezvous", "leave the key out"),
        ("nodes: 2..4\nlauncher: processes", "nodes", "use `launcher: torchrun`"),
        ("rendezvous: c10d\nlauncher: none", "rendezvous", "use `launcher: torchrun`"),
        ("rendezvous: etcd", "rendezvous", "write static or c10d"),
        ("nodes: 2..4\nplacement: {include: [a]}", "placement.include", "name more"),
    ],
)
def test_no_range_of_nodes(text: str, field: str, hint: str) -> None:
    (problem,) = problems_of("run: x.py\n" + text)
    assert problem.field == field
    assert hint in problem.hint


def test_scripts_under_none() -> None:
    spec = parse_job("launcher: none\nrun: |\n  echo hi\n  exit 3\n")
    assert spec.run == Shell("echo hi\nexit 3\n")
    assert spec.name == "echo"


@pytest.mark.parametrize(
    ("text", "node_gpus", "ranks"),
    [
        ("nproc_per_node: 4\nresources: {gpu: 8}", 8, 4),
        ("resources: {gpu: 2}", 8, 2),
        ("nodes: 1", 8, 8),
        ("nodes: 1", 0, 1),
        ("resources: {gpu: 0}", 8, 1),
        ("launcher: none\nnproc_per_node: 4", 8, 1),
    ],
)
def test_ranks_on_node(text: str, node_gpus: int, ranks: int) -> None:
    assert ranks_on_node(parse_job(with_key(text)), Seat(0, "n", node_gpus)) == ranks


def test_nproc_on_node_does_not_ask_who_starts_them() -> None:
    none = parse_job("run: torchrun x.py\nlauncher: none\n")
    assert [nproc_on_node(none, Seat(0, "n", gpus)) for gpus in (8, 0)] == [8, 1]


def test_gpus_on_node() -> None:
    assert gpus_on_node(parse_job("run: x.py"), 8) == 8
    assert gpus_on_node(parse_job(with_key("resources: {gpu: 0}")), 8) == 0


KEYS = st.sampled_from(
    [
        "run",
        "nodes",
        "name",
        "env",
        "retry",
        "stop",
        "workdir",
        "resources",
        "placement",
        "launcher",
        "python",
        "setup",
        "time_limit",
        "accelerators",
        "nproc_per_node",
        "roles",
        "worker",
        "secrets",
        "gpu",
        "signal",
        "x",
    ]
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, TREES, max_size=8))
def test_any_tree_is_read_or_refused(tree: dict[str, object]) -> None:
    said = "read"
    try:
        parse_mapping(tree)
    except SpecError as error:
        said = "".join(str(problem) for problem in error.problems)
    assert said
    assert "\x1b" not in said


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_job, parse_json):
        problems: tuple[SpecProblem, ...] | None = None
        try:
            parse(text)
        except SpecError as error:
            problems = error.problems
        assert problems != ()


@pytest.mark.parametrize(
    ("typed", "warn"),
    [
        ("USR1@300s", Warn("SIGUSR1", 300.0)),
        ("SIGUSR2@5m", Warn("SIGUSR2", 300.0)),
        ("10 @ 1m30s", Warn("SIGUSR1", 90.0)),
        # Slurm's syntax and units.
        ("USR1@300", Warn("SIGUSR1", 300.0)),
        ("usr1", Warn("SIGUSR1", 60.0)),
    ],
)
def test_a_warning_before_the_time_limit(typed: str, warn: Warn) -> None:
    spec = parse_mapping({"run": "x.py", "time_limit": "1h", "stop": {"warn": typed}})
    assert spec.stop.warn == warn
    assert parse_mapping(to_mapping(spec)) == spec


def test_a_warning_is_not_judged_by_a_limit_that_is_wrong_itself() -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping({"run": "x.py", "time_limit": "90", "stop": {"warn": "USR1@5m"}})
    assert [problem.field for problem in caught.value.problems] == ["time_limit"]


@pytest.mark.parametrize("key", ["include", "exclude"])
def test_a_list_of_more_nodes_than_a_job_can_have(key: str) -> None:
    names = [f"n{number}" for number in range(4097)]
    parse_mapping({"run": "train.py", "placement": {key: names[1:]}})
    with pytest.raises(SpecError) as caught:
        parse_mapping({"run": "train.py", "placement": {key: names}})
    (problem,) = caught.value.problems
    assert problem.field == f"placement.{key}"
    assert "4096 is the limit" in problem.message
