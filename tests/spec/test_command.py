"""Forms of `run`, and the exact corrections."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.spec.command import name_of, read_run, sanitised_name
from muster.spec.errors import InvalidValueError, SpecError
from muster.spec.from_command import from_command
from muster.spec.model import Argv, Launcher, Shell
from muster.spec.parse import parse_mapping
from muster.spec.slurm.shell_words import split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b  c", ["a", "b", "c"]),
        ("a 'b c' d", ["a", "b c", "d"]),
        ('a "b \\" c" \'\'', ["a", 'b " c', ""]),
        ('"\\$x" "\\n" a\\ b', ["$x", "\\n", "a b"]),
        ("train.py \\\n  --lr 1\n", ["train.py", "--lr", "1"]),
        ("x.py $HOME ~ *.txt a=(b)", ["x.py", "$HOME", "~", "*.txt", "a=(b)"]),
        ("x.py 'a|b' a#b", ["x.py", "a|b", "a#b"]),
        ("--x='a b'c", ["--x=a bc"]),
        ("", []),
    ],
)
def test_split(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    "text", ["a 'b", 'a "b', "a\\", "a\nb", "a | b", "a && b", "a > b", "a; b", "a # b"]
)
def test_split_refuses(text: str) -> None:
    with pytest.raises(InvalidValueError):
        split_words(text)


@given(st.lists(st.text(min_size=0, max_size=8), max_size=6))
def test_split_undoes_shell_quoting(words: list[str]) -> None:
    assert split_words(shlex.join(words)) == words


@pytest.mark.parametrize(
    ("run", "argv"),
    [
        ("train.py --lr 1", ("train.py", "--lr", "1")),
        ("python train.py --lr 1", ("train.py", "--lr", "1")),
        ("python3 -u src/train.py", ("src/train.py",)),
        ("python -m pkg.train -v", ("-m", "pkg.train", "-v")),
        ("-m pkg.train", ("-m", "pkg.train")),
        ("./train --x", ("./train", "--x")),
        (["train.py", "a b", "$X"], ("train.py", "a b", "$X")),
        (["-m", "pkg"], ("-m", "pkg")),
        (["train.py", 1, True, 0.5], ("train.py", "1", "true", "0.5")),
    ],
)
def test_torchrun_takes(run: object, argv: tuple[str, ...]) -> None:
    assert read_run(run, Launcher.TORCHRUN) == Argv(argv)


@pytest.mark.parametrize(
    ("run", "hint"),
    [
        ("torchrun train.py --lr 1", "write `run: train.py --lr 1`"),
        (
            "torchrun --nproc_per_node=8 --nnodes 2 --rdzv-id x --standalone -m pkg.train 'a b'",
            "write `run: -m pkg.train 'a b'` and `nproc_per_node: 8` and `nodes: 2`",
        ),
        ("/venv/bin/torchrun --nproc-per-node gpu x.py", "write `run: x.py`"),
        ("python -m torch.distributed.run --nnodes=2 x.py", "write `run: x.py` and `nodes: 2`"),
        ("-m torch.distributed.launch x.py", "write `run: x.py`"),
        ("torchrun", "the program for torchrun"),
        ("/venv/bin/python x.py -a", "write `python: /venv/bin/python` and `run: x.py -a`"),
        ("python3.11 -m pkg", "write `python: python3.11` and `run: -m pkg`"),
        ("python -c 'print(1)'", "launcher: none"),
        ("python", "launcher: none"),
        ("sleep infinity", "`launcher: none`, or write `./sleep`"),
        ("bash run.sh", "launcher: none"),
        ("./run.sh", "launcher: none"),
        ("CUDA_LAUNCH_BLOCKING=1 x.py", "write `env: [CUDA_LAUNCH_BLOCKING=1]`"),
        ("--lr 1", "begin with the script"),
        ("-m", "-m package.module"),
        ("-m a/b.py", "-m package.module"),
        ("accelerate launch x.py -a", "write `launcher: accelerate` and `run: x.py -a`"),
        ("deepspeed --hostfile h x.py -a", "write `launcher: deepspeed` and `run: x.py -a`"),
        ("x.py | tee log", "launcher: none"),
        ("pip install y\nx.py", "end a line"),
        (["python", "x.py"], "write `run: [x.py]`"),
        (["torchrun", "x.py"], "write `run: x.py`"),
        ([], "names no program"),
        ("", "write the script"),
        ({"a": "b"}, "one `run`"),
        (["x.py", None], "give a value"),
        (["x.py", ["y"]], "must be text"),
    ],
)
def test_torchrun_refuses_with_the_correction(run: object, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read_run(run, Launcher.TORCHRUN)
    assert hint in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("train.py --lr 1", ["train.py", "--lr", "1"]),
        ("--mixed_precision bf16 train.py", ["--mixed_precision", "bf16", "train.py"]),
        ("--config_file=x.yaml -m pkg.train", ["--config_file=x.yaml", "-m", "pkg.train"]),
        (["--cpu", "x.py", 1], ["--cpu", "x.py", "1"]),
    ],
)
def test_accelerate_takes_its_options_before_the_script(run: object, words: list[str]) -> None:
    assert read_run(run, Launcher.ACCELERATE) == Argv(tuple(words))
    assert name_of(Argv(("--mixed_precision", "bf16", "x/train.py"))) == "train"


@pytest.mark.parametrize(
    ("run", "hint"),
    [
        ("accelerate launch --cpu x.py", "write `launcher: accelerate` and `run: --cpu x.py`"),
        ("--num_machines 2 x.py", "leave it out, and write `nodes`"),
        ("--num-processes=8 x.py", "leave it out, and write `nproc_per_node`"),
        ("--main_process_ip 10.0.0.1 x.py", "leave it out"),
        ("--cpu", "write it after the options"),
    ],
)
def test_accelerate_refuses_what_is_for_muster_to_say(run: object, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read_run(run, Launcher.ACCELERATE)
    assert hint in f"{caught.value.message} {caught.value.hint}"


def test_deepspeed_takes_what_torchrun_takes() -> None:
    assert read_run("python x.py -a", Launcher.DEEPSPEED) == Argv(("x.py", "-a"))
    with pytest.raises(InvalidValueError, match="instead"):
        read_run("deepspeed x.py", Launcher.DEEPSPEED)


def test_none_takes_scripts_and_argv_verbatim() -> None:
    script = "set -x\ntorchrun x.py | tee log # note\n"
    assert read_run(script, Launcher.NONE) == Shell(script)
    assert read_run(["torchrun", "x.py"], Launcher.NONE) == Argv(("torchrun", "x.py"))
    for empty in (" \n", [], [""]):
        with pytest.raises(InvalidValueError):
            read_run(empty, Launcher.NONE)


def test_no_string_longer_than_linux_takes() -> None:
    longest = "x" * (128 * 1024 - 1)
    assert read_run(longest, Launcher.NONE) == Shell(longest)
    with pytest.raises(InvalidValueError, match="128 KiB"):
        read_run(longest + "x", Launcher.NONE)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (Argv(("src/Train_SFT.py", "--x")), "train-sft"),
        (Argv(("-m", "pkg.train")), "train"),
        (Argv(("-m", "pkg.__main__")), "pkg"),
        (Argv(("01-train.py",)), "job-01-train"),
        (Argv(("last.py",)), "job-last"),
        (Argv(("训练.py",)), "job"),
        (Shell("nvidia-smi | head"), "nvidia-smi"),
        (Shell("{ true; }"), "job"),
    ],
)
def test_names(command: Argv | Shell, name: str) -> None:
    assert name_of(command) == name


@given(st.text())
def test_sanitised_names_are_names(text: str) -> None:
    name = sanitised_name(text)
    assert parse_mapping({"run": "x.py", "name": name}).name == name


@pytest.mark.parametrize(
    ("argv", "launcher", "command"),
    [
        (["python", "train.py", "-x"], Launcher.TORCHRUN, ("train.py", "-x")),
        (["python", "-u", "-m", "pkg"], Launcher.TORCHRUN, ("-m", "pkg")),
        (["train.py", "a b"], Launcher.TORCHRUN, ("train.py", "a b")),
        (["sleep", "infinity"], Launcher.NONE, ("sleep", "infinity")),
        (["./train.sh"], Launcher.NONE, ("./train.sh",)),
        (["python", "-c", "print(1)"], Launcher.NONE, ("python", "-c", "print(1)")),
    ],
)
def test_from_command(argv: list[str], launcher: Launcher, command: tuple[str, ...]) -> None:
    made = from_command(argv)
    spec = parse_mapping(made.mapping)
    assert (spec.launcher, spec.run) == (launcher, Argv(command))
    assert (made.note is not None) == (launcher is Launcher.NONE)


def test_from_command_says_what_it_implied() -> None:
    note = from_command(["sleep", "infinity"]).note
    assert note is not None
    assert "`sleep`" in note
    assert "launcher: none" in note


def test_from_command_of_python_without_a_script() -> None:
    note = from_command(["/v/bin/python3", "-c", "print(1)"]).note
    assert note == (
        "torchrun starts scripts and modules, not `python3 -c`: running it once per node "
        "(launcher: none)"
    )
    alone = from_command(["python"]).note
    assert alone is not None
    assert "not `python`: running" in alone


def test_from_command_with_a_launcher_of_the_user() -> None:
    assert from_command(["train.py"], "none").mapping == {"run": ["train.py"]}
    assert from_command(["sleep"], "torchrun").mapping == {"run": ["sleep"]}


@pytest.mark.parametrize("argv", [["torchrun", "--nnodes", "2", "x.py"], ["/v/bin/python", "x.py"]])
def test_from_command_leaves_corrections_to_the_parser(argv: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping(from_command(argv).mapping)
    assert "`run: x.py`" in caught.value.problems[0].hint


def test_from_command_without_words() -> None:
    with pytest.raises(SpecError):
        from_command([])


def test_all_mistakes_of_a_line_are_reported_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping({"run": "A=1 B=2 torchrun --nnodes 2 train.py 2>&1 | tee log # slow"})
    problems = [(problem.field, problem.message, problem.hint) for problem in caught.value.problems]
    assert [message for _, message, _ in problems] == [
        "`>` is a shell operator",
        "`&` is a shell operator",
        "`|` is a shell operator",
        "`#` begins a comment in a shell",
        "begins by setting a variable",
        "Muster writes the torchrun line itself",
    ]
    assert {field for field, _, _ in problems} == {"run"}
    assert problems[4][2] == "write `env: [A=1, B=2]` instead"
    assert problems[5][2] == "write `run: train.py` and `nodes: 2`"


def test_a_quote_that_is_never_closed_is_reported_beside_what_stands_before_it() -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping({"run": "A=1 ./bench.sh 'x", "launcher": "processes"})
    messages = [problem.message for problem in caught.value.problems]
    assert messages == ["has a quote ' that is never closed", "begins by setting a variable"]


@pytest.mark.parametrize(
    "run",
    [
        Shell("WANDB_API_KEY=0123456789abcdef python train.py"),
        Shell("HF_TOKEN='a b' torchrun train.py"),
        Argv(("WANDB_API_KEY=0123456789abcdef", "python", "train.py")),
        Argv(("-m", "pkg.KEY=0123456789abcdef")),
    ],
)
def test_a_word_that_may_assign_a_secret_names_no_job(run: Argv | Shell) -> None:
    assert name_of(run) == "job"
