"""Batch scripts of Slurm: headers become keys, bodies become commands, the rest is said."""

import subprocess
from pathlib import Path

import pytest

from muster.spec.errors import SpecError
from muster.spec.model import Argv, Launcher
from muster.spec.parse import parse_mapping
from muster.spec.slurm.sbatch import FromSbatch, from_sbatch

TORCHRUN = """#!/bin/bash
#SBATCH --job-name=LLaMA_7b
#SBATCH -N 4 --gpus-per-node=h100:8
#SBATCH --time=1-00:00:00
#SBATCH --chdir=/shared/llama
#SBATCH --output=slurm-%j.out
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
# a comment
set -euo pipefail
export OMP_NUM_THREADS=8 NCCL_IB_HCA="mlx5_0,mlx5_1"
srun --label torchrun --nnodes 4 --nproc_per_node=8 --rdzv_backend c10d \\
    --rdzv_endpoint=$HEAD:29500 train.py --lr 1e-5 --name 'a b'
"""


def made(*headers: str, body: str = "srun python train.py") -> FromSbatch:
    lines = [f"#SBATCH {header}" for header in headers]
    return from_sbatch("\n".join(["#!/bin/bash", *lines, body, ""]))


def test_a_torchrun_script_becomes_the_job_that_one_would_write() -> None:
    found = from_sbatch(TORCHRUN)
    assert found.mapping == {
        "name": "llama-7b",
        "nodes": "4",
        "resources": {"gpu": "h100:8"},
        "time_limit": "1-00:00:00",
        "workdir": "/shared/llama",
        "stop": {"warn": "USR1@300s"},
        "run": ["train.py", "--lr", "1e-5", "--name", "a b"],
        "nproc_per_node": "8",
        "env": {"OMP_NUM_THREADS": "8", "NCCL_IB_HCA": "mlx5_0,mlx5_1"},
    }
    assert found.notes == (
        "the name LLaMA_7b becomes llama-7b",
        "output for slurm-%j.out is available with `muster logs`, separately for each rank",
        "--signal=B:USR1@300 reaches the ranks, not the script",
        "run: train.py --lr 1e-5 --name 'a b' (launcher: torchrun)",
    )
    spec = parse_mapping(found.mapping)
    assert (spec.nodes, spec.time_limit_s, spec.resources.gpu) == (4, 86400, 8)


def test_a_folder_and_an_environment_are_keys() -> None:
    found = made(body="cd /shared/llama\nsource venv/bin/activate\nsrun python train.py")
    assert found.mapping["workdir"] == "/shared/llama"
    assert found.mapping["python"] == "/shared/llama/venv"
    assert not [note for note in found.notes if "is ignored" in note]
    found = made("--chdir=/x", body=". /opt/venv/bin/activate\nsrun python train.py")
    assert (found.mapping["workdir"], found.mapping["python"]) == ("/x", "/opt/venv")


@pytest.mark.parametrize(
    "line", ["cd $HOME", "cd x", "source ~/.bashrc", "source venv/bin/activate", "source a b"]
)
def test_a_folder_that_is_not_the_same_everywhere_is_named(line: str) -> None:
    found = made(body=f"{line}\nsrun python train.py")
    assert not {"workdir", "python"} & found.mapping.keys()
    assert any(line in note for note in found.notes)


def test_a_script_that_is_run_whole_goes_where_it_says_by_itself() -> None:
    found = made(body="mkdir -p /x\ncd /x\nfor i in 1 2; do srun python train.py; done")
    assert found.mapping["launcher"] == "none"
    assert "workdir" not in found.mapping


def test_python_under_srun_is_ranks_that_we_start() -> None:
    found = made("--ntasks-per-node=2", body="srun -u --mpi=none python -u train.py --x")
    spec = parse_mapping({**found.mapping, "workdir": "/x"})
    assert (spec.launcher, spec.run, spec.nproc_per_node) == (
        Launcher.PROCESSES,
        Argv(("train.py", "--x")),
        2,
    )


@pytest.mark.parametrize(
    ("header", "keys"),
    [
        ("--nodes=2-4", {"nodes": "2..4"}),
        ("-N2", {"nodes": "2"}),
        ("-J x", {"name": "x"}),
        ("--gres=gpu:8", {"resources": {"gpu": "8"}}),
        ("--gres=gpu:a100:4", {"resources": {"gpu": "a100:4"}}),
        ("--gres=gpu", {"resources": {"gpu": "1"}}),
        ("--time=90", {"time_limit": "90m"}),
        ("-t 30:05", {"time_limit": "30m5s"}),
        ("--time=02:00:00", {"time_limit": "02:00:00"}),
        ("--time=UNLIMITED", {}),
        ("--time=infinite", {}),
        ("--time=0:00", {}),
        ("--gres=gpu:a100", {"resources": {"gpu": "a100:1"}}),
        ("--gpus-per-node=v100", {"resources": {"gpu": "v100:1"}}),
        ("--gres=gpu:8(S:0-1)", {"resources": {"gpu": "8"}}),
        ("--no-requeue", {"retry": {"infra": "0"}}),
        ("--signal=TERM", {"stop": {"warn": "TERM@60s"}}),
        ("--requeue   # again", {}),
    ],
)
def test_headers_become_keys(header: str, keys: dict[str, object]) -> None:
    found = made(header)
    assert {**keys, "run": ["train.py"], "launcher": "processes"} == found.mapping
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("--partition=gpu", "#SBATCH --partition=gpu is ignored: name a pool with --pool"),
        ("-p gpu", "#SBATCH --partition=gpu is ignored"),
        ("--mail-type=END", "#SBATCH --mail-type=END is ignored"),
        ("--array=0-9", "submit once for each index"),
        ("--exclusive", "#SBATCH --exclusive is ignored"),
        ("--gres=gpu:2,license:1", "#SBATCH --gres=license:1 is ignored"),
        ("--nodes", "#SBATCH --nodes is ignored: it has no value"),
        ("--job-name='x", "its quotes do not match"),
        ("-Z", "#SBATCH -Z is ignored"),
    ],
)
def test_options_that_are_not_understood_are_named(header: str, said: str) -> None:
    assert any(said in note for note in made(header).notes)


@pytest.mark.parametrize(
    "body",
    [
        "./a.sh\n./b.sh",
        "srun python a.py\nsrun python b.py",
        "for lr in 1 2; do\nsrun python a.py\ndone",
        "srun python a.py --id $SLURM_JOB_ID",
        "srun python a.py > out.txt",
        "srun ./bench.sh",
        "python a.py",
    ],
)
def test_any_other_body_is_a_script_on_every_node(body: str) -> None:
    found = made("--nodes=2", body=body)
    assert found.mapping["launcher"] == "none"
    assert body in str(found.mapping["run"])
    assert any("once on every node" in note for note in found.notes)
    assert ("srun" in body) == any("there is no srun in Muster" in note for note in found.notes)


def test_lines_beside_the_training_are_named() -> None:
    found = made(body="module load cuda\nsource /site/env.sh\nsrun python train.py")
    assert any("is ignored: module load cuda" in note for note in found.notes)
    assert "this line of the script is ignored: source /site/env.sh" in found.notes


def test_variables_that_muster_sets_are_named_and_left_out() -> None:
    body = """export MASTER_ADDR=head MASTER_PORT=29500 WORLD_SIZE=16 OMP_NUM_THREADS=8
export CUDA_VISIBLE_DEVICES=0,1
srun torchrun --nnodes 2 train.py"""
    found = made("--nodes=2", "--gpus-per-node=2", body=body)
    assert found.mapping["env"] == {"OMP_NUM_THREADS": "8"}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES"):
        assert any(note.startswith(f"{name} is ignored: it is ") for note in found.notes)
    assert parse_mapping({**found.mapping, "workdir": "/x"}).nodes == 2
    whole = made(body="export CUDA_VISIBLE_DEVICES=0,1\nsrun torchrun train.py")
    assert whole.mapping["env"] == {"CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--max-restarts=3", "--max-restarts=3"),
        ("--log_dir /x", "--log-dir=/x"),
        ("--nproc_per_node $NPROC", "--nproc-per-node=$NPROC"),
    ],
)
def test_options_of_torchrun_that_are_not_taken_over_are_named(options: str, said: str) -> None:
    ours = "--nnodes 2 --rdzv_backend c10d --rdzv-endpoint=$HEAD:1 --master_port 1 --node-rank 0"
    found = made(body=f"srun torchrun {ours} {options} train.py")
    assert found.mapping == {"run": ["train.py"]}
    assert f"of torchrun, this is ignored: {said}" in found.notes
    assert made(body=f"torchrun {ours} --nproc-per-node=gpu a.py").notes == (
        "run: a.py (launcher: torchrun)",
    )


@pytest.mark.parametrize("start", ["srun torchrun --nproc-per-node=8", "torchrun", "srun torchrun"])
def test_ranks_per_node_of_slurm_that_torchrun_does_not_use_are_named(start: str) -> None:
    found = made("--ntasks-per-node=4", body=f"{start} train.py")
    said = "#SBATCH --ntasks-per-node=4 is ignored: torchrun starts the ranks of a node"
    assert [note for note in found.notes if note.startswith(said)]
    # As most scripts for torchrun have it: one torchrun for each node.
    one = made("--ntasks-per-node=1", body=f"{start} train.py")
    assert not [note for note in one.notes if "ignored" in note]


def test_a_number_of_ranks_that_is_none_is_named() -> None:
    found = made("--ntasks-per-node=x", body="srun python train.py")
    assert "nproc_per_node" not in found.mapping
    assert "#SBATCH --ntasks-per-node=x is ignored: it is not a number" in found.notes


def test_srun_options_for_ranks_and_nodes_are_translated_or_named() -> None:
    found = made("--ntasks-per-node=8", body="srun --ntasks-per-node=4 --mpi=pmix python train.py")
    assert found.mapping["nproc_per_node"] == "4"
    assert len(found.notes) == 1
    found = made(body="srun -N1 -n 8 --export=ALL,A=1 python train.py")
    assert "of srun, this is ignored: -N1 -n 8 --export=ALL,A=1" in found.notes


@pytest.mark.parametrize("switch", ["--kill-on-bad-exit", "-v", "--pty", "--overcommit", "-K1"])
def test_switches_of_srun_take_no_word_with_them(switch: str) -> None:
    assert made(body=f"srun {switch} python train.py").mapping["run"] == ["train.py"]


def test_a_comment_does_not_go_on_in_the_next_line() -> None:
    found = from_sbatch("#SBATCH -N 2 \\\n#SBATCH -t 5\n# srun \\\nsrun python \\\n a.py\n")
    assert (found.mapping["nodes"], found.mapping["time_limit"]) == ("2", "5m")
    assert found.mapping["run"] == ["a.py"]


def test_a_text_within_the_script_is_no_command_of_it() -> None:
    found = made(body="cat > run.cfg <<EOF\nA=1\ncd /x\nEOF\nsrun python train.py")
    assert found.mapping["launcher"] == "none"
    assert not {"env", "workdir"} & found.mapping.keys()


def test_commands_after_the_training_are_named() -> None:
    found = made(body="export A=1\nsrun python train.py\nexport B=2\ncd /x")
    assert found.mapping["env"] == {"A": "1"}
    assert "workdir" not in found.mapping
    for line in ("export B=2", "cd /x"):
        assert f"this line of the script is ignored: {line}" in found.notes


def test_a_script_goes_on_after_an_error_as_under_slurm(tmp_path: Path) -> None:
    run = made(body='grep -q x /dev/null\necho "$UNSET_VARIABLE"done').mapping["run"]
    assert isinstance(run, str)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", run], cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"done\n")
    run = made(body="set -e\nfalse\necho on").mapping["run"]
    assert isinstance(run, str)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", run], cwd=tmp_path, check=False)
    assert done.returncode == 1


def test_a_script_of_another_interpreter_is_refused_with_what_to_do() -> None:
    with pytest.raises(SpecError, match="is a script of python3") as caught:
        from_sbatch("#!/usr/bin/env -S python3 -u\n#SBATCH --nodes=4\nimport os\n")
    assert "muster submit --nodes" in caught.value.problems[0].hint
    assert from_sbatch("#! /usr/bin/env bash\nsrun python a.py\n").mapping["run"] == ["a.py"]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("conda activate train", "`python`"),
        ("micromamba activate train", "`python`"),
        ("module load cuda/12.4", "`env`"),
        ("ml cuda", "`env`"),
    ],
)
def test_lines_that_change_the_environment_say_which_key_does(line: str, hint: str) -> None:
    found = made(body=f"{line}\nsrun python train.py")
    (note,) = [note for note in found.notes if f"is ignored: {line}" in note]
    assert hint in note


def test_a_conda_environment_that_is_named_by_its_folder_is_the_jobs_python() -> None:
    found = made(body="conda activate /shared/envs/train\nsrun python train.py")
    assert found.mapping["python"] == "/shared/envs/train"
    assert not [note for note in found.notes if "is ignored" in note]


def test_values_that_need_a_shell_are_named() -> None:
    found = made(body="srun torchrun train.py --out ckpt/$SLURM_JOB_ID --lr 1")
    assert found.mapping["launcher"] == "none"
    assert any("ckpt/$SLURM_JOB_ID" in note and "`run`" in note for note in found.notes)
    other = made(body="srun python a.py\nsrun python b.py $HOME")
    assert not any("$HOME" in note for note in other.notes)


def test_headers_behind_the_first_command_are_none() -> None:
    found = from_sbatch("srun python a.py\n#SBATCH --nodes=4\n")
    assert "nodes" not in found.mapping


def test_a_script_without_a_command_is_refused() -> None:
    with pytest.raises(SpecError, match="no command"):
        from_sbatch("#!/bin/bash\n#SBATCH --nodes=4\n")


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("srun torchrun --role $(hostname -s): --tee 3 x.py", "--role=$(hostname -s): --tee=3"),
        ("srun torchrun --role `hostname -s` --tee 3 x.py", "--role=`hostname -s` --tee=3"),
        (
            'torchrun --rdzv_endpoint "$(scontrol show hostnames "$L" | head -n 1)":29500 x.py',
            "",
        ),
        (
            "torchrun --role $(basename $(pwd) ')') --rdzv-id ${SLURM_JOB_ID:-no id} x.py",
            "--role=$(basename $(pwd) ')')",
        ),
        ("torchrun --role $((1 + (2 * 3))) x.py", "--role=$((1 + (2 * 3)))"),
        ("srun --chdir $(dirname `pwd -P`) torchrun x.py", "--chdir $(dirname `pwd -P`)"),
    ],
)
def test_a_command_substitution_is_one_word(line: str, left: str) -> None:
    found = made(body=line)
    assert found.mapping["run"] == ["x.py"]
    ignored = [note for note in found.notes if "is ignored" in note]
    assert [note.partition("is ignored: ")[2] for note in ignored] == ([left] if left else [])


@pytest.mark.parametrize("word", ["$(nproc --all)", "`nproc --all`", '"$(nproc | head -n 1)"'])
def test_a_substitution_among_the_arguments_is_for_a_shell(word: str) -> None:
    found = made(body=f"srun torchrun x.py --workers {word}")
    assert found.mapping["launcher"] == "none"
    assert any("needs a shell" in note for note in found.notes)


def test_a_substitution_that_is_never_closed_is_a_script() -> None:
    found = made(body="srun torchrun --role $(hostname -s x.py")
    assert found.mapping["launcher"] == "none"


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("1:2:3", 3723),
        ("1:2", 62),
        ("90:5", 5405),
        ("0:90", 90),
        ("1-2", 93600),
        ("1-2:3", 93780),
        ("1-2:3:4", 93784),
        ("0-0:5", 300),
        ("5-0", 432000),
        ("01:02:03", 3723),
        ("1-02:03:04", 93784),
        ("100:00:00", 360000),
    ],
)
def test_every_form_of_slurm_s_times_is_read(time: str, seconds: int) -> None:
    """The forms of sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours,
    days-hours:minutes and days-hours:minutes:seconds."""
    found = made(f"-t {time}")
    assert parse_mapping({"name": "x", **found.mapping}).time_limit_s == seconds


@pytest.mark.parametrize(
    ("line", "run"),
    [
        ("python -m torch.distributed.launch --use_env x.py", ("x.py",)),
        ("srun python -m torch.distributed.launch --use-env x.py --a 1", ("x.py", "--a", "1")),
        ("python -u -m torch.distributed.launch --use_env x.py", ("x.py",)),
        ("python3 -m torch.distributed.launch --use_env -m pkg.mod", ("-m", "pkg.mod")),
        ("python -m torch.distributed.launch --use_env --nnodes=2 x.py", ("x.py",)),
        ("torchrun --virtual_local_rank --standalone x.py", ("x.py",)),
        ("python -m torch.distributed.launch x.py", ("x.py",)),
    ],
)
def test_a_switch_of_a_launcher_takes_no_word_of_the_program(
    line: str, run: tuple[str, ...]
) -> None:
    found = made(body=line)
    assert parse_mapping({"name": "x", **found.mapping}).run == Argv(run)
    assert any("--local-rank" in note for note in found.notes) == (
        "launch" in line and "use" not in line
    )


@pytest.mark.parametrize(
    "body",
    [
        "f() {\n  srun python x.py\n}\nf",
        "f () {\n  srun python x.py\n}\nf",
        "my-f() {\n  srun python x.py\n}\nmy-f",
        "f() (\n  srun python x.py\n)\nf",
        "f()\n{\n  srun python x.py\n}\nf",
        "function f {\n  srun python x.py\n}\nf",
        "[[ -n $X ]] && {\n  srun python x.py\n}",
        "test -d /data &&\nsrun python x.py",
        "test -d /data ||\nsrun python x.py",
        "cat list |\nsrun python x.py",
        "time {\n  srun python x.py\n}",
    ],
)
def test_a_start_in_a_function_or_behind_a_condition_stays_in_the_script(body: str) -> None:
    found = made(body=body)
    assert found.mapping["launcher"] == "none"
    assert body in str(found.mapping["run"])


def test_an_array_of_several_lines_is_no_variable() -> None:
    found = made(body="a=(1\n2)\nsrun python x.py")
    assert "env" not in found.mapping
    assert any("a=(1" in note for note in found.notes)
