"""Every correction that an error suggests passes the check that made it.

`MISTAKES` are jobs that are refused with a correction. What the hint writes in backticks is put
into the job as a user would, and the job must be accepted then. `test_every_correction_has_a_case`
reads the hints out of the source, so that a new one needs a case here.
"""

from __future__ import annotations

import ast
import copy
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster.spec
from muster.cli.input.job_input import looks_like_a_file, meant_for_a_shell
from muster.spec import unsupported
from muster.spec.errors import SpecError, SpecProblem
from muster.spec.model import Argv
from muster.spec.overrides import apply_overrides
from muster.spec.parse import parse_mapping
from muster.spec.slurm.sbatch import _INSTEAD, from_sbatch
from muster.spec.suggestions import _ELSEWHERE, _REPLACED
from muster.spec.yaml.loader import read_yaml

Job = dict[str, Any]

HOOK = "https://hooks.example.com/x"
ACCELERATE = {"run": "x.py", "launcher": "accelerate"}
PROCESSES = {"run": "x.py", "launcher": "processes"}
MISTAKES: tuple[Job, ...] = (
    # whole lines of launchers
    {"run": "torchrun --nproc_per_node=8 --nnodes 2 --rdzv-id x -m pkg.train 'a b'"},
    {"run": "torchrun --nnodes 0 --nproc-per-node 99999 x.py"},
    {"run": "torchrun"},
    {"run": "torchrun --no-python ./run.sh"},
    {"run": "torchrun --no-python sleep 1"},
    {"run": "torchrun python x.py --name 'a: b' '#1'"},
    {"run": "torchrun x.py --prompt 'Say: yes # no' '' \"it's\""},
    {"run": "torchrun 'my script.py'"},
    {"run": "python -m torch.distributed.launch --nnodes=2 x.py"},
    {"run": ["torchrun", "x.py", "a, b", "c: d", "-"]},
    {"run": ["python", "x.py", "a, b", "c: d", "[x]", "-", ""]},
    {"run": "accelerate launch --num_machines 2 --num_processes 16 --mixed_precision bf16 x.py -a"},
    {"run": "accelerate launch --num_machines=2 --machine_rank $R --same_network x.py"},
    {"run": "accelerate launch --num_processes 8 --max_restarts 3 -m pkg.train --num_machines 2"},
    {"run": "accelerate launch --num_machines 2 $SCRIPT"},
    {"run": "accelerate config"},
    {"run": "accelerate"},
    ACCELERATE | {"run": "accelerate launch --num_machines 2 x.py"},
    ACCELERATE | {"run": "--num_machines 2 --num-processes=8 --max_restarts 1 x.py"},
    ACCELERATE | {"run": "--main_process_ip 10.0.0.1 --rdzv_backend c10d x.py"},
    ACCELERATE | {"run": "--cpu"},
    {"run": "deepspeed --hostfile /job/hostfile --num_gpus 8 --num_nodes=2 x.py --ds c"},
    {"run": "deepspeed --module pkg.train -a"},
    {"run": "deepspeed --num_gpus 8"},
    PROCESSES | {"run": "torchrun x.py"},
    PROCESSES | {"run": ""},
    PROCESSES | {"run": "-m a/b.py"},
    # programs that torchrun does not start
    {"run": "/venv/bin/python x.py -a"},
    {"run": "venv/bin/python -m pkg"},
    {"run": "/venv/bin/python train --lr 1"},
    {"run": "python3.11 -m pkg 'a: b'"},
    {"run": "python -c 'print(1)'"},
    {"run": "sleep infinity"},
    {"run": "bash run.sh"},
    {"run": ["sh", "run.sh"]},
    {"run": "--lr 1"},
    {"run": "-m"},
    {"run": "A=1 CUDA_VISIBLE_DEVICES=0,1 'B=a: b' x.py"},
    {"run": "RANK=0 x.py"},
    {"run": "RANK=0 A=1 x.py"},
    {"run": ["A=1", "x.py"]},
    {"run": ""},
    {"run": []},
    {"run": "x.py | tee log"},
    {"run": "x.py 'a"},
    {"run": 'x.py "a'},
    {"run": "x.py a\\"},
    {"run": "x.py a #b"},
    # durations, sizes, GPUs and numbers
    {"time_limit": "90"},
    {"time_limit": "12345678901"},
    {"time_limit": "1:59"},
    {"time_limit": "1m2h"},
    {"time_limit": "soon"},
    {"nodes": "007"},
    {"nodes": "two"},
    {"nodes": "8-"},
    {"nodes": "0-4"},
    {"nodes": "5:2"},
    {"nodes": "99999-"},
    {"nodes": "4..2"},
    {"nodes": "0"},
    {"priority": "101"},
    {"resources": {"memory": "5iB"}},
    {"resources": {"memory": "5"}},
    {"resources": {"gpu": "08"}},
    {"resources": {"gpu": "H100:08"}},
    {"resources": {"gpu": "gpu:8"}},
    {"resources": {"gpu": "gpu:0"}},
    {"resources": {"gpu": "H100:0"}},
    {"resources": {"gpu": "gpu"}},
    {"resources": {"gpu": "H100"}},
    {"resources": {"gpu": "8xgpu"}},
    {"resources": {"gpu": "H100x8"}},
    {"resources": {"gpu": "A100:80GB:0"}},
    {"resources": {"gpu": "A100:80GB:99999"}},
    {"resources": {"gpu": "A100:80GB"}},
    {"resources": {"gpu": "gpu:80GB:8"}},
    {"resources": {"gpu": "8 of them"}},
    {"accelerators": {"H100": 8}},
    {"accelerators": {"gpu": 8}},
    {"accelerators": {"H100": "many"}},
    {"accelerators": {"H100": 0}},
    {"resources": {"gpu": 1}, "accelerators": 2},
    {"nodes": 1, "num_nodes": 2},
    # names and paths
    {"name": "My_Job"},
    {"name": "123"},
    {"python": "venv/bin"},
    {"python": "~/venv", "workdir": "/x"},
    {"workdir": {"ship": "false"}},
    {"workdir": {"path": "/x", "bundle": "0" * 64}},
    {"workdir": {"path": "/x", "ship": "true"}},
    {"workdir": {"bundle": "x"}},
    {"workdir": "https://host/x.git"},
    {"workdir": {"git": "git://host/x.git"}},
    {"workdir": {"git": "https://host/x.git", "ref": "a..b"}},
    {"workdir": {"git": "https://host/x.git", "secret": "../x"}},
    {"workdir": {"git": "https://host/x.git", "path": "/x"}},
    {"workdir": {"ref": "main"}},
    {"workdir": "~/x"},
    # words that are one of several
    {"launcher": "torchrunn"},
    {"launcher": "zzz"},
    {"rdma": "true"},
    {"rdma": "zzz"},
    {"rendezvous": "zzz"},
    {"hang": "restrat"},
    {"hang": "zzz"},
    {"idle": {"action": "stopp"}},
    {"idle": {"action": "zzz"}},
    {"resources": {"numa_binding": "sockets"}},
    {"resources": {"numa_binding": "zzz"}},
    {"preflight": "full"},
    {"start_method": "spawn"},
    {"start_method": "exec", "preload": ["transformers"]},
    {"launcher": "none", "preload": ["transformers"]},
    {"start_method": "fork", "preload": ["./train.py"]},
    {"start_method": "fork", "preload": [f"m{number}" for number in range(17)]},
    {"schema_version": "2"},
    {"nccl_debug": "yes"},
    {"retry": {"user": 1, "never_on": ["OMM"]}},
    {"retry": {"user": 1, "never_on": ["zzz"]}},
    {"retry": {"on_exit_codes": [75]}},
    {"placement": {"spread": "rack"}},
    {"notify": ["hooks"]},
    {"stop": {"signal": "KILL"}},
    {"stop": {"signal": "zzz"}},
    {"stop": {"warn": "B:USR1@300"}, "time_limit": "1h"},
    {"stop": {"warn": "B:"}, "time_limit": "1h"},
    {"stop": {"warn": "B:KILL@5"}, "time_limit": "1h"},
    {"stop": {"warn": "KILL@5"}, "time_limit": "1h"},
    # maps and lists
    {"resources": "8"},
    {"stop": "30s"},
    {"idle": "1h"},
    {"placement": "gpu-01"},
    {"placement": {"labels": "r1"}},
    {"placement": {"include": "gpu-01"}},
    {"placement": {"exclude": "gpu-01"}},
    {"retry": {"user": 1, "on_exit_codes": "75"}},
    {"retry": {"user": 1, "never_on": "OOM"}},
    {"notify": HOOK},
    {"roles": "worker"},
    {"roles": {"worker": "x.py"}},
    {"nproc_per_node": {"workr": 2}},
    {"nproc_per_node": {"master": 2}},
    {"env": "A=1"},
    {"env": [1]},
    {"env": {"NOT_SET_HERE": None}},
    # what goes together
    {"launcher": "none", "rendezvous": "c10d"},
    {"launcher": "processes", "torchrun_args": ["--role", "a"]},
    {"torchrun_args": "--role a"},
    {"launcher": "processes", "resources": {"numa_binding": "node", "gpu": 1}},
    {"prepare": "true"},
    {"ship": "true"},
)
# What a hint writes in backticks and does not mean literally.
FORMS = frozenset(
    {"HH:MM:SS", "- KEY", "setup", "env", "python", "numactl", "labels", "switch", "time_limit"}
)
WRITES = re.compile(r"(?:write|use|add|keep|begin with|did you mean|keep) `|such as `|bounds: `")


def problems_of(job: Job | None) -> tuple[SpecProblem, ...]:
    try:
        parse_mapping(job)
    except SpecError as refused:
        return refused.problems
    return ()


def refused(mistake: Job) -> tuple[Job, tuple[SpecProblem, ...]]:
    job = {"run": "x.py"} | mistake
    problems = problems_of(job)
    assert problems, f"{job} is accepted"
    return job, problems


def corrected(job: Job, problem: SpecProblem) -> Iterator[Job]:
    """The job after each of the corrections that the hint offers."""
    fragments = re.findall(r"`((?:\\`|[^`])*)`", problem.hint)
    if problem.hint.startswith("leave it out") and problem.field != "run":
        yield {key: value for key, value in job.items() if key != problem.field}
        return
    together = "` and `" in problem.hint
    meant = [text for text in fragments if text not in FORMS]
    for chosen in [meant] if together else [[text] for text in meant]:
        made: Job = copy.deepcopy(job)
        for text in chosen:
            made = put(made, problem, text)
        yield made
    if not meant:
        left = leave_out(job, problem)
        if left is not None:
            yield left


def put(job: Job, problem: SpecProblem, text: str) -> Job:
    """Do what the hint says with one text in backticks."""
    field = problem.field
    if text in ("\\'", '\\"', "\\\\"):
        run = job["run"]
        return job | {"run": run + "\\" if text == "\\\\" else run.replace(text[1], text)}
    if problem.hint.startswith("leave it out"):
        return job | {"run": without(job["run"], problem.message)}
    if text.startswith("./") and field == "run":
        words = job["run"] if isinstance(job["run"], list) else shlex.split(job["run"])
        return job | {"run": [text, *words[1:]]}
    if problem.hint.startswith("leave out `") or "instead" in problem.hint:
        job = job | {"run": strip_variables(job["run"])}
        if not text.startswith("env:"):
            return job
    if problem.hint.startswith("keep `"):
        other = {"resources.gpu": "accelerators", "nodes": "num_nodes"}[text]
        return {key: value for key, value in job.items() if key != other}
    if text == "-m" or text.startswith("--mixed_precision"):
        return job | {"run": text if " " in text else "-m package.module"}
    if text == "- KEY=value":
        return job | {"env": ["KEY=value"]}
    tree = read_yaml(text).tree
    *_, section = ["", *field.split(".")[:-1]]
    if isinstance(tree, dict) and not text.startswith("{"):
        if section and not (tree.keys() & {"run", "resources", "roles", "idle", "stop"}):
            within = ".".join(field.split(".")[:-1])
            for key, value in tree.items():
                own = field.rpartition(".")[2] == key or "retry" in within
                path = f"{within}.{key}" if own else key
                job = apply_overrides(job, [], options={path: value})
            return job
        return job | tree
    if field.startswith("nproc_per_node."):
        return job | {"nproc_per_node": {text: 2}}
    if not field:
        return job | {"run": "train.py"}
    path = re.sub(r"\[0\]$", "", field)
    value = [tree] if path != field else tree
    return apply_overrides(job, [], options={path: value})  # type: ignore[dict-item]


def without(run: str, message: str) -> str:
    """The line without the option that the message names, and without its value."""
    words = shlex.split(run)
    at = words.index(message.partition("`")[2].partition("`")[0])
    alone = "=" in words[at] or words[at].startswith("--same")
    return shlex.join(words[:at] + words[at + (1 if alone else 2) :])


def strip_variables(run: str | list[str]) -> str | list[str]:
    words = run if isinstance(run, list) else shlex.split(run)
    rest = list(itertools.dropwhile(lambda word: re.match(r"\w+=", word), words))
    return rest if isinstance(run, list) else shlex.join(rest)


def leave_out(job: Job, problem: SpecProblem) -> Job | None:
    """The job without the field, where the hint says to leave that out."""
    if "leave it out" not in problem.hint and "leave the key out" not in problem.hint:
        return None
    if problem.field == "run":
        return job | {"run": without(job["run"], problem.message)}
    return {key: value for key, value in job.items() if key != problem.field}


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_correction_passes_the_check_that_made_it(mistake: Job) -> None:
    job, problems = refused(mistake)
    several = [problem for problem in problems if problem.hint.startswith("leave it out")]
    if len(several) > 1:  # options of one line: all of them are left out
        made = job
        for problem in several:
            made = made | {"run": without(made["run"], problem.message)}
        assert not problems_of(made), made
        return
    for problem in problems:
        for made in corrected(job, problem):
            again = [(p.field, p.message) for p in problems_of(made)]
            mine = [one for one in again if one not in [(p.field, p.message) for p in problems]]
            assert (problem.field, problem.message) not in again, (made, problem.hint)
            assert not mine, (made, problem.hint, mine)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (MISTAKES[0]["run"], ("-m", "pkg.train", "a b")),
        ("torchrun x.py --name 'a: b' ' #1'", ("x.py", "--name", "a: b", " #1")),
        ("accelerate launch --num_machines 2 --cpu x.py -a", ("--cpu", "x.py", "-a")),
        ("deepspeed --hostfile /job/hostfile x.py -a", ("x.py", "-a")),
        (["python", "x.py", "a, b", "", "c: d"], ("x.py", "a, b", "", "c: d")),
    ],
)
def test_a_correction_keeps_the_words_of_the_command(run: object, words: tuple[str, ...]) -> None:
    job, (problem,) = refused({"run": run})
    (made,) = corrected(job, problem)
    assert parse_mapping(made).run == Argv(words)


def test_a_count_of_accelerate_is_that_of_one_node() -> None:
    job, (problem,) = refused({"run": "accelerate launch --num_machines 2 --num_processes 16 x.py"})
    (made,) = corrected(job, problem)
    spec = parse_mapping(made)
    assert (spec.nodes, spec.nproc_per_node) == (2, 8)


def hints() -> Iterator[tuple[str, str]]:
    """Yield each place where a text of the checks suggests a value, and its pattern."""
    folder = Path(muster.spec.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if path.stem in ("update", "overrides", "sbatch"):
            continue  # these read the command line and batch scripts
        tree = ast.parse(path.read_text())
        inner = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.expr) or id(node) in inner or id(node) in documentation:
                continue
            parts: list[ast.expr] = []
            if isinstance(node, ast.JoinedStr):
                parts = node.values
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node]
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in parts)
            if WRITES.search(text):
                pattern = re.escape(text).replace("\0", "(.|\n)*").replace("\\\0", "(.|\n)*")
                yield f"{path.name}:{node.lineno}", pattern


def test_every_correction_has_a_case() -> None:
    said = [problem.hint for mistake in MISTAKES for problem in refused(mistake)[1]]
    said += [p.hint for job in ({}, {"run": None}, None) for p in problems_of(job)]
    found = dict(hints())
    assert len(found) > 30
    missing = [
        (where, pattern)
        for where, pattern in found.items()
        if not any(re.search(pattern, hint) for hint in said)
    ]
    assert not missing


def test_a_key_that_is_meant_is_one_of_the_section() -> None:
    for section, keys in _ELSEWHERE.items():
        for key in keys:
            inner: Any = {key: "x"}
            for name in reversed([name for name in section.split(".") if name]):
                inner = {name: inner}
            job, problems = refused(inner)
            (problem,) = [p for p in problems if p.message.startswith("there is no key")]
            path = re.findall(r"`([^`]*)`", problem.hint)[0]
            made = apply_overrides(
                {"run": "x.py"},
                [],
                options={path if not section or "." in path else f"{section}.{path}": "x"},
            )
            again = problems_of(made)
            assert not [p for p in again if "no key" in p.message], (job, problem.hint)
            if not section and path in unsupported.LATER_KEYS[""]:
                assert unsupported.LATER_KEYS[""][path] in problem.hint


def test_a_key_of_another_system_has_its_replacement() -> None:
    for key in (*_REPLACED, "large-shm", "extended-resource"):
        _, (problem,) = refused({key: "x"})
        assert problem.hint == _REPLACED[key.replace("-", "_")]
        for fragment in re.findall(r"`([^`]*: [^`]*)`", problem.hint):
            if fragment != "workers: 3":
                tree = read_yaml(fragment).tree
                assert isinstance(tree, dict)
                assert not problems_of({"run": "x.py", **tree}), fragment


def test_options_that_replace_slurm_headers_exist_in_submit() -> None:
    from muster.cli.jobs.submit import command

    names = {option for parameter in command.params for option in parameter.opts}
    for header, instead in _INSTEAD.items():
        if "#SBATCH" in instead:
            made = from_sbatch(f"#!/bin/bash\n#{instead.partition('#')[2]}\nsrun python x.py\n")
            assert not [note for note in made.notes if "is ignored" in note]
            continue
        for option in re.findall(r"(?<!\S)(--?[a-z-]+)", instead):
            assert option in names, header
        for path in re.findall(r"--set '([\w.]+)=\[\.\.\.\]'", instead):
            parse_mapping(apply_overrides({"run": "x.py"}, [f"{path}=[gpu-01]"]))


def test_a_script_of_another_interpreter_is_submitted_as_a_command() -> None:
    with pytest.raises(SpecError) as caught:
        from_sbatch("#!/usr/bin/env python3\nprint(1)\n")
    (problem,) = caught.value.problems
    assert "muster submit --nodes 2 -- python3 FILE" in problem.hint


@pytest.mark.parametrize(
    "line", ["python x.py", "a | b", "A=1 python x.py", "x.py 'a b'", "bash -c 'a; b'"]
)
def test_a_line_in_quotes_is_taken_as_it_is_suggested(line: str) -> None:
    meant = meant_for_a_shell((line,))
    assert meant is not None
    words = tuple(shlex.split(meant))
    assert meant_for_a_shell(words) is None
    assert not looks_like_a_file(words)
    assert "=" not in words[0]


@pytest.mark.parametrize(
    "key",
    [
        "workers",
        "pvc",
        "large-shm",
        "annotation",
        "extended-resource",
        "volumes",
        "array",
        "partition",
        "account",
        "qos",
        "reservation",
        "gpus_per_node",
        "ntasks_per_node",
        "output",
        "constraint",
        "import",
        "export",
        "image",
        "cpus_per_task",
        "mail-type",
        "mail_user",
        "nproc",
    ],
)
def test_a_key_of_another_system_is_answered_with_what_to_write(key: str) -> None:
    """Keys of Slurm, dstack, SkyPilot, Run:ai and VESSL."""
    _, (problem,) = refused({key: "x"})
    assert problem.hint
    assert not problem.hint.startswith("known keys")
