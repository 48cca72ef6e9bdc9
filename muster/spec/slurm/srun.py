"""Parser of the line in a batch script that starts the training: `srun torchrun ... train.py`,
`srun python train.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from muster.spec.command import USE_ENV, python_words, torchrun_words
from muster.spec.errors import printable
from muster.spec.slurm.shell_words import base_name

# Options without a value; all others take one.
_SWITCHES: Final = frozenset(
    {
        "-l",
        "--label",
        "-u",
        "--unbuffered",
        "-K",
        "--kill-on-bad-exit",
        "-k",
        "--no-kill",
        "-E",
        "--preserve-env",
        "-O",
        "--overcommit",
        "-s",
        "--oversubscribe",
        "-X",
        "--disable-status",
        "-Q",
        "--quiet",
        "-v",
        "--verbose",
        "--exclusive",
        "--overlap",
        "--exact",
        "--contiguous",
        "--pty",
        "--spread-job",
        "--use-min-nodes",
    }
)
_TASKS_PER_NODE: Final = "--ntasks-per-node"
# Options that decide where and how often a command runs. The effect of the others (labels, buffers,
# MPI, binding of ranks) is provided by Muster.
_MATTERS: Final = frozenset(
    {
        "-n",
        "--ntasks",
        "-N",
        "--nodes",
        "-G",
        "--gpus",
        "--gpus-per-node",
        "--gpus-per-task",
        "--gres",
        "-w",
        "--nodelist",
        "-x",
        "--exclude",
        "-D",
        "--chdir",
        "-t",
        "--time",
        "--export",
        "-c",
        "--cpus-per-task",
    }
) | {_TASKS_PER_NODE}
# Options of the gang, which Muster sets.
_OF_THE_GANG: Final = re.compile(r"--(nnodes|node-rank|local-addr|rdzv-.*|master-.*)")
_RANKS_PER_NODE: Final = "--nproc-per-node"
_ONE_PER_GPU: Final = ("gpu", "auto")


class Start(NamedTuple):
    """A rank's command, its launcher, the ranks per node (empty: unknown), and messages about
    ignored words.
    """

    rest: list[str]
    launcher: str
    nproc: str
    notes: tuple[str, ...]


class _Srun(NamedTuple):
    rest: list[str]
    tasks: str
    left: list[str]


def read_start(words: list[str], tasks: str) -> Start | None:
    """Parse the line; None if it starts something else. `tasks` per node come from the headers."""
    srun = _taken_apart(words)
    if not srun.rest:
        return None
    notes = [_left("srun", srun.left)] if srun.left else []
    found = torchrun_words(srun.rest)
    if found is not None:
        options = dict(found.options)
        nproc = options.pop(_RANKS_PER_NODE, "")
        left = [f"{name}={value}" for name, value in options.items() if _is_left(name)]
        if nproc and not nproc.isdecimal():
            left += [] if nproc in _ONE_PER_GPU else [f"{_RANKS_PER_NODE}={nproc}"]
            nproc = ""
        notes += [_left("torchrun", left)] if left else []
        options_given = {word.partition("=")[0].replace("_", "-") for word in srun.rest}
        if "torch.distributed.launch" in srun.rest and USE_ENV not in options_given:
            notes.append("no rank gets --local-rank here: read LOCAL_RANK in its environment")
        return Start(found.rest, "torchrun", nproc, tuple(notes))
    rest = python_words(srun.rest) if srun.rest is not words else None
    return None if rest is None else Start(rest, "processes", srun.tasks or tasks, tuple(notes))


def _taken_apart(words: list[str]) -> _Srun:
    if base_name(words[0]) != "srun":
        return _Srun(words, "", [])
    tasks, left, at = "", [], 1
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            name, equals, value = word[:2], word[2:], word[2:].removeprefix("=")
        alone = bool(equals) or name in _SWITCHES
        given = words[at : at + (1 if alone else 2)]
        at += len(given)
        value = value if alone else "".join(given[1:])
        if name == _TASKS_PER_NODE and value.isdecimal():
            tasks = value
        elif name in _MATTERS:
            left += given
    return _Srun(words[at:], tasks, left)


def _is_left(option: str) -> bool:
    return _OF_THE_GANG.fullmatch(option) is None


def _left(program: str, words: Sequence[str]) -> str:
    return f"of {program}, this is ignored: {printable(' '.join(words))}"
