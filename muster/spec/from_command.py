"""A job from a bare command, as in `muster submit -- COMMAND`.

The words are argv, passed on unchanged. Because torchrun can start only Python scripts, any other
command runs once per node, and the user gets a note.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muster.spec.command import PLAIN_PYTHON, is_python, of_python, python_words
from muster.spec.errors import SpecError, SpecProblem, printable
from muster.spec.slurm.shell_words import base_name, suffix


class FromCommand(msgspec.Struct, frozen=True):
    """Keys of a job file (`run`, possibly `launcher`), and a note for the user, if any."""

    mapping: dict[str, object]
    note: str | None = None


def from_command(argv: Sequence[str], launcher: str | None = None) -> FromCommand:
    """Return the job's keys for `argv`. `launcher` is the user's choice elsewhere, if any.

    `python x.py` is `x.py` under torchrun. Raises `SpecError` if there is no command.
    """
    words = list(argv)
    if not words or not words[0]:
        raise SpecError([SpecProblem("run", None, "there is no command after `--`", "write one")])
    if launcher == "processes":
        return FromCommand({"run": of_python(words)})
    if launcher == "deepspeed":
        return FromCommand({"run": _training_words(words) or words})
    if launcher is not None and launcher != "torchrun":
        return FromCommand({"run": words})
    trained = _training_words(words)
    if trained is not None or launcher == "torchrun":
        return FromCommand({"run": trained or words})
    program = printable(base_name(words[0]))
    if is_python(words[0]):
        shown = " ".join([program, *map(printable, words[1:2])])
        why = f"torchrun starts scripts and modules, not `{shown}`"
    else:
        why = f"`{program}` is not a Python script"
    return FromCommand(
        {"run": words, "launcher": "none"}, f"{why}: running it once per node (launcher: none)"
    )


def _training_words(words: list[str]) -> list[str] | None:
    """Return the words for torchrun, or for the parser to correct; None if the command is not
    Python.
    """
    script = python_words(words)
    if script is not None:
        return script if words[0] in PLAIN_PYTHON else words
    is_script = words[0] == "-m" or suffix(words[0]) in (".py", ".pyz")
    is_launcher = base_name(words[0]) in ("torchrun", "accelerate", "deepspeed")
    return words if is_script or is_launcher else None
