"""Rules for `run` and `setup`, and job names made from them.

Under torchrun the command is a Python script or `-m module` with arguments, because Muster writes
the torchrun line itself. Users paste whole torchrun and python lines; these are corrected, or
refused with the exact line to write.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from muster.spec.env import MAX_STRING_BYTES, check_name
from muster.spec.errors import InvalidValueError, raise_refused
from muster.spec.model import Argv, Command, Launcher, Shell
from muster.spec.slurm.shell_words import base_name, first_words, stem, suffix
from muster.spec.yaml.loader import scalar_text

DEFAULT_NAME: Final = "job"
MAX_NAME_CHARS: Final = 63

PLAIN_PYTHON: Final = ("python", "python3")
_PYTHON: Final = re.compile(r"python(3(\.[0-9]+)?)?")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_PYTHON_SUFFIXES: Final = (".py", ".pyc", ".pyz")
_TORCHRUN_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
_NOT_PYTHON: Final = frozenset(
    {"bash", "conda", "env", "mpirun", "nsys", "poetry", "sh", "srun", "sudo", "uv", "zsh"}
)

# Only torch.distributed.launch has it. Without it, each rank gets `--local-rank`.
USE_ENV: Final = "--use-env"
# torchrun's options without a value; all others take one.
_TORCHRUN_SWITCHES: Final = frozenset(
    {
        "--standalone",
        "-m",
        "--module",
        "--no-python",
        "--run-path",
        "--virtual-local-rank",
        USE_ENV,
    }
)
_TORCHRUN_KEYS: Final = {"--nnodes": "nodes", "--nproc-per-node": "nproc_per_node"}


def read_run(value: object, launcher: Launcher) -> Command:
    """Parse `run`: a list is argv verbatim; a string is a script under `none`, and split otherwise.

    Raises `InvalidValueError`.
    """
    if launcher is Launcher.NONE:
        return read_script(value)
    if launcher is Launcher.PROCESSES:
        return _checked(Argv(tuple(_rank_words(value))))
    if launcher is Launcher.ACCELERATE:
        return _checked(Argv(tuple(_accelerate_words(value))))
    if isinstance(value, list | tuple):
        words = _argv(value)
        corrected = _training_words(words)
        if corrected != words:
            raise InvalidValueError(
                "a list is taken verbatim, and torchrun starts Python itself",
                f"write `run: {_listed(corrected)}`",
            )
    else:
        empty = "write the script and its arguments: `run: train.py --lr 1`"
        words = _read_line(_text(value), _training_words, empty)
    return _checked(Argv(tuple(words)))


def _read_line(text: str, check: Callable[[list[str]], list[str]], empty: str) -> list[str]:
    """Split a line into words and pass them through `check`. Raises RefusedError with all
    mistakes.
    """
    refused: list[InvalidValueError] = []
    words = first_words(text, refused)
    variables = list(itertools.takewhile(_ASSIGNMENT.fullmatch, words))
    words = words[len(variables) :]
    if variables:
        refused.append(_variables_refused(variables))
    if words:
        try:
            words = check(words)
        except InvalidValueError as wrong:
            refused.append(wrong)
    elif not refused:
        refused.append(InvalidValueError("is empty", empty))
    raise_refused(refused)
    return words


def read_script(value: object) -> Command:
    """Parse a script: a string is for bash, a list is argv. Raises `InvalidValueError`."""
    if isinstance(value, list | tuple):
        return _checked(Argv(tuple(_argv(value))))
    script = _text(value)
    if not script.strip():
        raise InvalidValueError("is empty", "write a command")
    return _checked(Shell(script))


def _text(value: object) -> str:
    if isinstance(value, dict):
        raise InvalidValueError("must be a string or a list", "one `run` serves every node")
    return scalar_text(value)


def _argv(items: Sequence[object]) -> list[str]:
    words = [scalar_text(item) for item in items]
    if not words or not words[0]:
        raise InvalidValueError(
            "names no program", "write the program first: `[train.py, --lr, '1']`"
        )
    return words


def _checked(command: Command) -> Command:
    strings = command.argv if isinstance(command, Argv) else (command.script,)
    if any(len(string.encode()) > MAX_STRING_BYTES for string in strings):
        raise InvalidValueError(
            f"is longer than the {MAX_STRING_BYTES // 1024 + 1} KiB that Linux takes",
            "put it in a file on the nodes",
        )
    return command


def _training_words(words: list[str]) -> list[str]:
    """Return the script or `-m module` with its arguments; removes a leading `python`."""
    first = words[0]
    program = base_name(first)
    if program == "torchrun":
        raise _torchrun_refused(words[1:])
    if program in ("accelerate", "deepspeed"):
        raise _launcher_refused(program, words[1:])
    if _PYTHON.fullmatch(program):
        return _after_python(words)
    if first == "-m":
        return _module_words(words)
    if first.startswith("-"):
        raise InvalidValueError(
            f"`{first}` is an option, not a script", "begin with the script or `-m`"
        )
    if _ASSIGNMENT.fullmatch(first):
        raise _variables_refused(list(itertools.takewhile(_ASSIGNMENT.fullmatch, words)))
    if not is_python_script(first):
        bare = "/" not in first and is_python_script(f"./{first}")
        raise InvalidValueError(
            f"`{first}` is not a Python script, and torchrun starts only Python",
            "add `launcher: none`" + (f", or write `./{first}` if it is one" if bare else ""),
        )
    return words


def _rank_words(value: object) -> list[str]:
    """Return the words of one rank's program, which may be any."""
    if isinstance(value, list | tuple):
        return _argv(value)
    return _read_line(_text(value), _of_rank, "write the program of a rank: `run: train.py --lr 1`")


def _of_rank(words: list[str]) -> list[str]:
    program = base_name(words[0])
    if program in ("torchrun", "accelerate", "deepspeed"):
        raise InvalidValueError(
            f"`{program}` starts ranks, and `launcher: processes` starts one of it for each",
            "write the command of a rank, or use `launcher: none`",
        )
    return _module_words(words) if words[0] == "-m" else of_python(words)


def of_python(words: list[str]) -> list[str]:
    """Return `x.py` for `python x.py`, so that the job's own interpreter runs it."""
    rest = python_words(words) if words[0] in PLAIN_PYTHON else None
    return rest if rest is not None and needs_interpreter(rest) else words


def needs_interpreter(argv: Sequence[str]) -> bool:
    """True if, under `processes`, these words are for the job's interpreter and name no program."""
    return argv[0] == "-m" or suffix(argv[0]) in _PYTHON_SUFFIXES


def is_python_script(word: str) -> bool:
    """True if `word` can be a script for torchrun: `train.py`, or a path without a suffix."""
    if suffix(word) in _PYTHON_SUFFIXES:
        return True
    return "/" in word and not suffix(word) and base_name(word) not in _NOT_PYTHON


def is_python(word: str) -> bool:
    """True if a program is an interpreter of Python 3, by its name."""
    return _PYTHON.fullmatch(base_name(word)) is not None


def python_words(words: Sequence[str]) -> list[str] | None:
    """Return the script or `-m module` and arguments of `python ...`, or None for other lines."""
    if not is_python(words[0]):
        return None
    # Ranks run unbuffered anyway.
    rest = list(words[1:])
    while rest and rest[0] == "-u":
        rest = rest[1:]
    return rest if rest and (rest[0] == "-m" or not rest[0].startswith("-")) else None


def _after_python(words: list[str]) -> list[str]:
    rest = python_words(words)
    if rest is None:
        raise InvalidValueError(
            "starts Python without a script, or with options that torchrun does not pass on",
            "write the script alone (`run: train.py`), or use `launcher: none`",
        )
    rest = _module_words(rest) if rest[0] == "-m" else rest
    if words[0] not in PLAIN_PYTHON:
        relative = "/" in words[0] and not words[0].startswith("/")
        path = f"/path/on/the/nodes/{words[0].removeprefix('./')}" if relative else words[0]
        # Without a suffix, only `python` shows that it is a script.
        known = rest[0] == "-m" or is_python_script(rest[0])
        run = _as_run(rest) if known else f"run: {shlex.join([PLAIN_PYTHON[0], *rest])}"
        raise InvalidValueError("names the interpreter", f"write `python: {path}` and `{run}`")
    return rest


def _module_words(words: list[str]) -> list[str]:
    if len(words) < 2 or not _MODULE.fullmatch(words[1]):
        raise InvalidValueError(
            "`-m` is not followed by a module", "write `run: -m package.module`"
        )
    if words[1] in _TORCHRUN_MODULES:
        raise _torchrun_refused(words[2:])
    return words


# Options of accelerate launch that Muster sets, and the job's key for each.
_ACCELERATE_KEYS: Final = {
    "--num-machines": "nodes",
    "--num-processes": "nproc_per_node",
    "--machine-rank": "",
    "--main-process-ip": "",
    "--main-process-port": "",
    "--rdzv-backend": "rendezvous",
    "--rdzv-conf": "",
    "--same-network": "",
    "--max-restarts": "retry",
}
_ACCELERATE_SWITCHES: Final = frozenset({"--same-network"})
# Options of deepspeed without a value, and those with a key in the job.
_DEEPSPEED_SWITCHES: Final = frozenset(
    {
        "--module",
        "--no_python",
        "--no_local_rank",
        "--no_ssh",
        "--no_ssh_check",
        "--force_multi",
        "--elastic_training",
        "--bind_cores_to_rank",
    }
)
_DEEPSPEED_KEYS: Final = {"--num_nodes": "nodes", "--num_gpus": "nproc_per_node"}


def _accelerate_words(value: object) -> list[str]:
    """Return the words for `accelerate launch`: options, then a script or `-m module` with
    arguments.
    """
    if isinstance(value, list | tuple):
        return _accelerate_checked(_argv(value))
    empty = "write the script and its arguments: `run: --mixed_precision bf16 train.py --lr 1`"
    return _read_line(_text(value), _accelerate_checked, empty)


def _accelerate_checked(words: list[str]) -> list[str]:
    if base_name(words[0]) == "accelerate":
        raise _launcher_refused("accelerate", words[1:])
    refused = []
    for word in itertools.takewhile(lambda word: not _begins_program(word), words):
        option = word.partition("=")[0].replace("_", "-")
        if option in _ACCELERATE_KEYS:
            key = _ACCELERATE_KEYS[option]
            hint = f"leave it out, and write `{key}`" if key else "leave it out"
            refused.append(InvalidValueError(f"`{word}` is set by Muster", hint))
    raise_refused(refused)
    if not any(_begins_program(word) for word in words):
        raise InvalidValueError(
            "names no Python script",
            "write it after the options: `--mixed_precision bf16 train.py`",
        )
    return words


def _begins_program(word: str) -> bool:
    """True if accelerate's options end at this word."""
    return is_python_script(word) or word in ("-m", "--module")


def _launcher_refused(program: str, words: list[str]) -> InvalidValueError:
    """Return the correction of `accelerate launch WORDS` or `deepspeed WORDS`."""
    said = f"Muster starts the ranks instead of {program}"
    read = _of_accelerate if program == "accelerate" else _of_deepspeed
    try:
        rest, keys = read(words)
    except InvalidValueError:
        # `accelerate config`, or a script named by a shell variable.
        return InvalidValueError(
            said, f"name the script; for anything else use `launcher: {_NO_RANKS}`"
        )
    counts = [f"`{key}: {count}`" for key, count in keys.items() if 0 < count <= _MOST]
    return InvalidValueError(
        said, " and ".join([f"write `launcher: {program}`", f"`{_as_run(rest)}`", *counts])
    )


_NO_RANKS: Final = Launcher.NONE.value
_MOST: Final = 1024  # upper limit of all keys for counts


def _of_accelerate(words: list[str]) -> tuple[list[str], dict[str, int]]:
    """Return the rest of `accelerate WORDS` to run, and the job's keys for its options. Raises
    `InvalidValueError`."""
    if words[:1] != ["launch"]:
        raise InvalidValueError("starts no ranks")
    rest: list[str] = []
    taken: dict[str, str] = {}
    at = 1
    while at < len(words) and not _begins_program(words[at]):
        option, equals, value = words[at].partition("=")
        option = option.replace("_", "-")
        at += 1
        if option not in _ACCELERATE_KEYS:
            rest.append(words[at - 1])
            continue
        if not equals and option not in _ACCELERATE_SWITCHES:
            value = words[at] if at < len(words) else ""
            at += 1
        taken[option] = value
    rest += words[at:]
    nodes = _count(taken.get("--num-machines", "1"))
    processes = _count(taken.get("--num-processes", ""))
    keys = {"nodes": nodes} if "--num-machines" in taken else {}
    if nodes and processes % nodes == 0:
        # accelerate counts the processes of all machines together.
        keys["nproc_per_node"] = processes // nodes
    return _accelerate_checked(rest or [""]), keys


def _of_deepspeed(words: list[str]) -> tuple[list[str], dict[str, int]]:
    """Like `_of_accelerate`, for `deepspeed WORDS`."""
    keys: dict[str, int] = {}
    module, at = False, 0
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        at += 1
        module = module or option == "--module"
        if not equals and option not in _DEEPSPEED_SWITCHES:
            value = words[at] if at < len(words) else ""
            at += 1
        if option in _DEEPSPEED_KEYS:
            keys[_DEEPSPEED_KEYS[option]] = _count(value)
    rest = ["-m", *words[at:]] if module else words[at:]
    return _training_words(rest or [""]), keys


def _count(text: str) -> int:
    """Parse the number of an option; 0 if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


class Torchrun(NamedTuple):
    """A parsed torchrun line: the command to start, and the options that take a value."""

    rest: list[str]
    options: dict[str, str]


def torchrun_words(words: Sequence[str]) -> Torchrun | None:
    """Parse `torchrun ...` or `python -m torch.distributed.run ...`; None if it is neither."""
    if words and base_name(words[0]) == "torchrun":
        return _torchrun(words[1:])
    rest = python_words(words) if words else None
    if rest is not None and rest[:1] == ["-m"] and rest[1:2] and rest[1] in _TORCHRUN_MODULES:
        return _torchrun(rest[2:])
    return None


def _torchrun(words: Sequence[str]) -> Torchrun:
    options: dict[str, str] = {}
    at, module = 0, False
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        option = option.replace("_", "-")
        at += 1
        if option in _TORCHRUN_SWITCHES:
            module = module or option in ("-m", "--module")
            continue
        if not equals:
            value = words[at] if at < len(words) else ""
            at += 1
        options[option] = value
    rest = list(words[at:])
    return Torchrun(["-m", *rest] if module and rest else rest, options)


def _torchrun_refused(words: list[str]) -> InvalidValueError:
    """Return the correction of `torchrun WORDS`: the text for `run` and for the keys of the job."""
    rest, options = _torchrun(words)
    said = "Muster writes the torchrun line itself"
    if not rest:
        return InvalidValueError(said, "write the program for torchrun: `run: train.py`")
    try:
        rest = _training_words(rest)
    except InvalidValueError as refused:
        return refused  # torchrun's program is no script either
    keys = [
        f"`{_TORCHRUN_KEYS[option]}: {_count(value)}`"
        for option, value in options.items()
        if option in _TORCHRUN_KEYS and 0 < _count(value) <= _MOST
    ]
    return InvalidValueError(said, " and ".join([f"write `{_as_run(rest)}`", *keys]))


def _variables_refused(variables: Sequence[str]) -> InvalidValueError:
    """Return the correction of a command that begins with `variables`, each `NAME=value`."""
    allowed: list[str] = []
    left: list[str] = []
    for variable in variables:
        name = variable.partition("=")[0]
        try:
            check_name(name)
        except InvalidValueError:
            left.append(f"`{name}`")
        else:
            allowed.append(variable)
    hints = [f"write `env: {_listed(allowed)}` instead"] if allowed else []
    hints += [f"leave out {', '.join(left)}, which is set for each rank or node"] if left else []
    return InvalidValueError("begins by setting a variable", " and ".join(hints))


_PLAIN_WORD: Final = re.compile(r"-*[A-Za-z0-9_./][A-Za-z0-9_./+=@%~^-]*")
_INDICATORS: Final = "'\"[]{}&*!|>%@`#,?:"


def _listed(words: Sequence[str]) -> str:
    """Return a YAML list, quoting words that YAML would split."""
    quoted = (
        word if _PLAIN_WORD.fullmatch(word) else json.dumps(word, ensure_ascii=False)
        for word in words
    )
    return "[" + ", ".join(quoted) + "]"


def _as_run(words: Sequence[str]) -> str:
    """Return the line of a job file that runs `words`: text, or a list if YAML would change the
    text.
    """
    text = shlex.join(words)
    misread = text[:1] in _INDICATORS or text.endswith(":") or ": " in text or " #" in text
    return f"run: {_listed(words) if misread or not text.isprintable() else text}"


def sanitised_name(text: str) -> str:
    """Return the nearest valid job name: `[a-z][a-z0-9-]{0,62}`; `job` if nothing is left of
    `text`.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text[: 4 * MAX_NAME_CHARS].lower()).strip("-")
    if not plain:
        return DEFAULT_NAME
    if not plain[0].isalpha() or plain == "last":
        plain = f"{DEFAULT_NAME}-{plain}"
    return plain[:MAX_NAME_CHARS].rstrip("-")


def name_of(command: Command) -> str:
    """Return a job name derived from the command, like Slurm's from the script.

    Everybody sees the name, so a word with `=`, which may assign a secret, gives none.
    """
    match command:
        case Argv(argv=("-m", module, *_)):
            parts = [part for part in module.split(".") if part != "__main__"]
            return _name_from(parts[-1] if parts else "", module)
        case Argv(argv=argv):
            # accelerate's options precede the script.
            script = (word for word in argv if is_python_script(word))
            word = next(script, "") if argv[0].startswith("-") else argv[0]
            return _name_from(stem(word), word)
        case Shell(script=script):
            first = script.split(maxsplit=1)[0]
            return _name_from(stem(first) if first[0].isalnum() else "", first)


def _name_from(part: str, word: str) -> str:
    return sanitised_name("" if "=" in word else part)
