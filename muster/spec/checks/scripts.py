"""Files of a job's folder that its commands start, as far as their text shows it. No I/O.

What a command may make first, or find in another folder, is not among them: a wrong warning costs
more trust than a missing one.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from muster.spec.command import is_python
from muster.spec.model import Argv, Command, JobSpec, Launcher, Shell, run_on_node
from muster.spec.slurm.shell_words import base_name, suffix

_SUFFIXES: Final = (".py", ".sh")
_SHELLS: Final = ("bash", "dash", "sh", "zsh")
# They start the script that follows their options, some of which have a value.
_STARTERS: Final = ("accelerate", "deepspeed", "torchrun")
# Words that may precede a command on its line.
_BEFORE: Final = frozenset(
    {"!", "do", "elif", "else", "exec", "if", "nohup", "then", "time", "until", "while", "{"}
)
# After these the folder is another, or a file may be a new one.
_OTHER_FOLDER: Final = ("cd", "pushd", "popd", "eval", "source", ".", "function")
_MAKES_FILES: Final = (
    *("aws", "cargo", "cc", "cmake", "cp", "curl", "g++", "gcc", "git", "gsutil", "hf"),
    *("huggingface-cli", "ln", "make", "mv", "ninja", "nvcc", "rsync", "tar", "unzip", "wget"),
)
_ENDS: Final = frozenset(_OTHER_FOLDER + _MAKES_FILES)
_OPERATORS: Final = ";&|()<>"
_EXPANDED: Final = frozenset("$*?[]{}~`")
# Options of Python after which the next word is the script.
_PLAIN_OPTIONS: Final = re.compile(r"-[bBdEiIOPqRsSuvx]+")
_LINES_MAX: Final = 2000


def scripts(spec: JobSpec) -> tuple[str, ...]:
    """Return the paths, relative to the job's folder, of the scripts that its commands start. With
    `setup`, which may make any of them, there are none."""
    if spec.setup is not None:
        return ()
    found: dict[str, None] = {}
    for command in (spec.run, spec.roles.launcher.run, spec.roles.worker.run):
        for path in _of_command(command, spec.launcher):
            if not path.startswith("/") and not _EXPANDED.intersection(path):
                found[posixpath.normpath(path)] = None
    return tuple(path for path in found if not path.startswith(".."))


def needed_scripts(spec: JobSpec) -> tuple[str, ...]:
    """Return those without which the job cannot run, because they are the program of its nodes and
    no command runs before it."""
    found = scripts(spec)
    commands = [run_on_node(spec, rank) for rank in range(min(spec.nodes, 2))]
    programs = {_program(command, spec.launcher) for command in commands}
    programs = {posixpath.normpath(program) for program in programs if program}
    return tuple(path for path in found if path in programs)


def _program(command: Command, launcher: Launcher) -> str:
    """Return the Python script that a list of words runs; empty if that is uncertain."""
    if not isinstance(command, Argv):
        return ""
    words = command.argv
    if launcher is not Launcher.NONE:
        return words[0] if suffix(words[0]) == ".py" else ""
    first = next((word for word in words[1:] if not word.startswith("-")), "")
    options = words[1 : words.index(first)] if first else ()
    plain = is_python(words[0]) and all(map(_PLAIN_OPTIONS.fullmatch, options))
    return first if plain and suffix(first) == ".py" else ""


def _of_command(command: Command | None, launcher: Launcher) -> Iterator[str]:
    if isinstance(command, Shell):
        yield from _of_script(command.script)
    elif isinstance(command, Argv):
        # Without a launcher, a plain name may be a program on the nodes' PATH.
        if launcher is not Launcher.NONE and suffix(command.argv[0]) == ".py":
            yield command.argv[0]
        else:
            yield from _of_words(command.argv)


def _of_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the script that a simple command starts, if it is one of the job's folder."""
    program = words[0]
    if "/" in program and suffix(program) in ("", *_SUFFIXES):
        yield program
    known = base_name(program)
    if is_python(program) or known in _SHELLS:
        first = next((word for word in words[1:] if not word.startswith("-")), "")
        inline = {"-c", "-m", "-s"}.intersection(words[1 : words.index(first) if first else None])
        if suffix(first) in _SUFFIXES and not inline:
            yield first
    elif known in _STARTERS and not {"-m", "--module"}.intersection(words):
        yield from [word for word in words[1:] if suffix(word) == ".py"][:1]


def _of_script(text: str) -> Iterator[str]:
    """Yield the scripts that a shell script starts before anything that may change its folder."""
    before = ""
    for line in text.replace("\\\n", " ").split("\n")[:_LINES_MAX]:
        words = _shell_words(line)
        if words is None:
            return
        for command in _commands(words):
            if base_name(command[0]) in _ENDS:
                return
            for path in _of_words(command):
                # Earlier commands may have made what they name.
                if posixpath.normpath(path).partition("/")[0] not in before:
                    yield path
            before = f"{before} {' '.join(command)}"
        if any(word.startswith("<<") for word in words) or _begins_array(words):
            return  # the lines that follow are no commands
        before = f"{before} {line}"


def _shell_words(line: str) -> list[str] | None:
    """Split a line into words and operators; None if the line does not end all of its quotes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return list(lexer)
    except ValueError:
        return None


def _commands(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the simple commands of a line, without what precedes them."""
    if any(two.startswith("(") and one.endswith(("$", "=")) for one, two in pairwise(words)):
        return  # an expansion or an array, whose words are no commands
    command: list[str] = []
    names_file = False
    for word in (*words, ";"):
        if word and not set(word) <= set(_OPERATORS):
            if not names_file and (command or not (word in _BEFORE or _is_assignment(word))):
                command.append(word)
            names_file = False
        elif set("<>").intersection(word) and "(" not in word:
            names_file = True
        else:
            names_file = False
            if command:
                yield command
            command = []


def _begins_array(words: Sequence[str]) -> bool:
    """True if the line begins an array that it does not end."""
    opened = any(two == "(" and one.endswith("=") for one, two in pairwise(words))
    return opened and not any(word.startswith(")") for word in words)


def _is_assignment(word: str) -> bool:
    name, sign, _ = word.partition("=")
    return bool(sign) and name.removesuffix("+").isidentifier()
