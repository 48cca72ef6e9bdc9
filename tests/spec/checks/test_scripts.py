"""The scripts of a job's folder that its commands start."""

from __future__ import annotations

import pytest

from muster.spec.checks.scripts import needed_scripts, scripts
from muster.spec.parse import parse_mapping


def started(**job: object) -> list[str]:
    return list(scripts(parse_mapping({"run": "x.py", **job})))


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("python train.py", ["train.py"]),
        ("A=1 exec python3 -u ./src/train.py > out.log", ["src/train.py"]),
        ("./run.sh --lr 1", ["run.sh"]),
        ("bash -e run.sh && python eval.py | tee x", ["run.sh", "eval.py"]),
        ("torchrun --nproc-per-node 8 \\\n  train.py", ["train.py"]),
        ("accelerate launch --config_file a.yaml train.py b.py", ["train.py"]),
        ("if true; then python a.py; fi", ["a.py"]),
        ("export A=1  # python b.py\n\npython a.py", ["a.py"]),
        # Programs of the nodes, modules, and texts that are no path.
        ("hostname; /opt/x.sh; python /opt/x.py; python -m train; python -c x.py", []),
        ("torchrun -m a.b x.py; python $SCRIPT.py; python ~/x.py; ./$RUN", []),
        ("python ../x.py; echo ./x.py; train.py", []),
        # Files that another command may have made, and other folders.
        ("cd src\npython train.py", []),
        ("git clone https://host/repo && python repo/train.py", []),
        ("cat > made.py <<EOF\npython other.py\nEOF\npython made.py", []),
        ("curl -o made.py https://host/x\npython made.py", []),
        ("[ -e a.py ] && python a.py", []),
        ("python 'a\npython b.py", []),
        ("git clone https://host/repo . && python train.py", []),
        ("curl https://host/x | tar xz && python train.py", []),
        ("make && ./build/prog", []),
        # Redirections, arrays and expansions start nothing.
        ("exec > >(tee -a log.txt) 2>&1\npython a.py", ["a.py"]),
        ("> out/x\n<\n> >(cat) python b.py\npython a.py &> logs/out", ["b.py", "a.py"]),
        ("ARGS=(\n --data=data/train\n)\npython a.py", []),
        ("ARGS=(--data data/train)\npython a.py", ["a.py"]),
        ('ARGS+=" --data data/train"\npython a.py', ["a.py"]),
        ("x=$((8/2))\ny=$(date)\npython a.py", ["a.py"]),
    ],
)
def test_a_shell_script(script: str, found: list[str]) -> None:
    assert started(launcher="none", run=script) == found


@pytest.mark.parametrize(
    ("job", "found"),
    [
        ({"run": "./src/../train.py --lr 1"}, ["train.py"]),
        ({"run": "-m train"}, []),
        ({"run": "/opt/train.py"}, []),
        ({"launcher": "none", "run": ["python", "train.py"]}, ["train.py"]),
        ({"launcher": "none", "run": ["bash", "run.sh"]}, ["run.sh"]),
        ({"launcher": "none", "run": ["./run.sh"]}, ["run.sh"]),
        # Perhaps a program in the PATH of the nodes.
        ({"launcher": "none", "run": ["train.py"]}, []),
        ({"launcher": "processes", "run": ["train.py"]}, ["train.py"]),
        (
            {"roles": {"launcher": {"run": "a.py"}, "worker": {"run": "b.py"}}},
            ["x.py", "a.py", "b.py"],
        ),
        # It may make any of them.
        ({"setup": "make"}, []),
    ],
)
def test_a_list_of_words_and_roles(job: dict[str, object], found: list[str]) -> None:
    assert started(**job) == found


@pytest.mark.parametrize(
    ("job", "found"),
    [
        ({"run": "./src/../train.py --lr 1"}, ["train.py"]),
        ({"launcher": "processes", "run": "train.py"}, ["train.py"]),
        ({"launcher": "none", "run": ["python3", "-uO", "train.py", "x"]}, ["train.py"]),
        ({"run": "a.py", "roles": {"worker": {"run": "b.py"}}}, ["a.py"]),
        ({"run": "a.py", "roles": {"worker": {"run": "b.py"}}, "nodes": 2}, ["a.py", "b.py"]),
        ({"run": "a.py", "roles": {"launcher": {"run": "b.py"}}, "nodes": "1..4"}, ["b.py"]),
        # A command may have made it, or the word may be another program's.
        ({"setup": "make", "run": "train.py"}, []),
        ({"launcher": "none", "run": "python train.py"}, []),
        ({"launcher": "none", "run": "make x; python x.py"}, []),
        ({"launcher": "none", "run": ["bash", "run.sh"]}, []),
        ({"launcher": "none", "run": ["python", "-um", "tool", "out.py"]}, []),
        ({"launcher": "none", "run": ["python", "-W", "x.py", "train.py"]}, []),
        ({"launcher": "none", "run": ["./tool", "train.py"]}, []),
        ({"run": "/opt/train.py"}, []),
        ({"run": "-m train"}, []),
        ({"run": "./bin/train"}, []),
    ],
)
def test_a_script_is_needed_if_it_is_the_program(job: dict[str, object], found: list[str]) -> None:
    assert list(needed_scripts(parse_mapping(job))) == found
