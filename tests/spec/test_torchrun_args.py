"""`torchrun_args`: options of torchrun that Muster does not set."""

from __future__ import annotations

import subprocess
import sys

import pytest

from muster.spec.errors import InvalidValueError, SpecError
from muster.spec.parse import parse_mapping
from muster.spec.serialize import to_mapping
from muster.spec.torchrun_args import _SET_BY_MUSTER, ALLOWED, read_torchrun_args


def test_a_value_is_joined_to_its_option() -> None:
    assert read_torchrun_args(["--role", "train.py", "--monitor_interval=1"]) == (
        "--role=train.py",
        "--monitor-interval=1",
    )


@pytest.mark.parametrize("option", sorted(_SET_BY_MUSTER))
def test_options_that_muster_sets_are_refused_with_the_reason(option: str) -> None:
    for word in (option, f"{option}=x", option[:2] + option[2:].replace("-", "_")):
        with pytest.raises(InvalidValueError, match="is set by Muster") as caught:
            read_torchrun_args([word, "x"])
        assert caught.value.hint == _SET_BY_MUSTER[option]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py"], "`train.py` is not an option"),
        (["--rol", "x"], "`--rol` is not an option"),
        (["--role", "a", "train.py"], "`train.py` is not an option"),
        (["--role"], "`--role` has no value"),
        (["--"], "`--` is not an option"),
    ],
)
def test_a_word_that_could_become_the_program_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        read_torchrun_args(words)


def test_a_job_file_has_them() -> None:
    spec = parse_mapping({"run": "x.py", "torchrun_args": ["--monitor-interval", 1]})
    assert spec.torchrun_args == ("--monitor-interval=1",)
    assert parse_mapping(to_mapping(spec)) == spec
    for job in (
        {"run": "x.py", "torchrun_args": "--role a"},
        {"run": "x.py", "launcher": "processes", "torchrun_args": ["--role", "a"]},
    ):
        with pytest.raises(SpecError) as caught:
            parse_mapping(job)
        assert [problem.field for problem in caught.value.problems] == ["torchrun_args"]


@pytest.mark.torch
def test_every_option_of_torchrun_is_decided_and_exists() -> None:
    """A new option of torchrun fails this test until it is passed on or refused."""
    script = (
        "from torch.distributed.run import get_args_parser\n"
        "for action in get_args_parser()._actions: print(*action.option_strings)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    options = {word.replace("_", "-") for word in done.stdout.split()} - {"-h", "--help"}
    assert options == {*ALLOWED, *_SET_BY_MUSTER}
