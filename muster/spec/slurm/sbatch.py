"""Conversion of a Slurm batch script to a job, for `muster submit --from-sbatch`.

The `#SBATCH` lines become keys of the job. If the body only starts the training (`srun torchrun ...
train.py`, `srun python train.py`), it becomes `run`; otherwise it is a bash script on every node.
Everything that is not converted is reported.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from muster.spec.checks.gpus import VISIBLE
from muster.spec.command import sanitised_name
from muster.spec.env import check_name
from muster.spec.errors import InvalidValueError, SpecError, SpecProblem, printable
from muster.spec.slurm.shell_words import base_name, script_words
from muster.spec.slurm.srun import Start, read_start

_HEADER: Final = re.compile(r"#SBATCH\s+(.*)")
_SHORT: Final = {
    "-J": "--job-name",
    "-N": "--nodes",
    "-t": "--time",
    "-o": "--output",
    "-e": "--error",
    "-D": "--chdir",
    "-p": "--partition",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-G": "--gpus",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    "-A": "--account",
    "-a": "--array",
    "-d": "--dependency",
    "-q": "--qos",
}
_SWITCHES: Final = frozenset(
    {"--requeue", "--no-requeue", "--exclusive", "--overcommit", "--parsable", "--wait", "--hold"}
)
# Known headers that are not converted, and alternatives.
_INSTEAD: Final = {
    "--partition": "name a pool with --pool",
    "--nodelist": "name nodes with --set 'placement.include=[...]'",
    "--exclude": "name nodes with --set 'placement.exclude=[...]'",
    "--array": "submit once for each index",
    "--dependency": "wait for the other job first: muster wait ID",
    "--gpus": "say how many per node: #SBATCH --gpus-per-node=8",
    "--ntasks": "say how many per node: #SBATCH --ntasks-per-node=8",
    "--export": "the environment is not inherited; pass variables with -e",
}
_TASKS_PER_NODE: Final = "--ntasks-per-node"
_VARIABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# Commands after such a word run conditionally, repeatedly or later; lines after `<<` are text.
_CONTROL: Final = re.compile(
    r"(if|for|while|until|case|select|function|trap|exec)\b|[({]|.*<<"
    # A function, or a line whose rest is the next one.
    r"|[^\s()]+\s*\(\s*\)|.*(&&|\||[({])\s*$"
)
_TIME: Final = re.compile(r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}")
_TIME_OF_BOTH: Final = re.compile(r"([0-9]+-)?[0-9]{1,4}:[0-5][0-9]:[0-5][0-9]")
_SHELLS: Final = ("bash", "sh", "dash")
# Under Slurm a script continues after an error. A script in `run` stops.
_AS_UNDER_SLURM: Final = "set +euo pipefail"
_WARN_S: Final = 60  # Slurm's default of --signal


class FromSbatch(msgspec.Struct, frozen=True):
    """Keys of a job file, and notes for the user, one sentence each."""

    mapping: dict[str, object]
    notes: tuple[str, ...]


def from_sbatch(text: str) -> FromSbatch:
    """Convert a batch script. Raises `SpecError` if it has no command."""
    _refuse_interpreter(text)
    reader = _Reader()
    body: list[str] = []
    for line in _joined(text.splitlines()):
        header = _HEADER.match(line)
        # Slurm, too, ignores headers after the first command.
        if header is not None and not body:
            reader.header(header[1].rstrip("\\ "))
        elif line.strip() and not line.lstrip().startswith("#"):
            body.append(line.strip())
    if not body:
        raise SpecError([SpecProblem("run", None, "the batch script has no command", "add one")])
    reader.body(body, text)
    return FromSbatch(reader.mapping, tuple(reader.notes))


def _joined(lines: Sequence[str]) -> list[str]:
    """Join continued lines; comments are never continued."""
    made: list[str] = []
    begun = ""
    for line in lines:
        goes_on = line.endswith("\\") and (begun or not line.lstrip().startswith("#"))
        begun += line[:-1] + " " if goes_on else line
        if not goes_on:
            made.append(begun)
            begun = ""
    return [*made, begun]


def _refuse_interpreter(text: str) -> None:
    """Raise SpecError for a script of another interpreter than a shell."""
    first = text.partition("\n")[0]
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if words and base_name(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if words and base_name(words[0]) not in _SHELLS:
        program = base_name(words[0])
        said = f"is a script of {printable(program)}, and Muster runs scripts with bash"
        hint = f"submit the program itself: muster submit --nodes 2 -- {printable(program)} FILE"
        raise SpecError([SpecProblem("run", None, said, hint)])


class _Reader:
    def __init__(self) -> None:
        self.mapping: dict[str, object] = {}
        self.notes: list[str] = []
        self._tasks = ""
        self._takes: dict[str, Callable[[str], None]] = {
            "--job-name": self._name,
            "--nodes": self._nodes,
            "--gpus-per-node": self._gpus,
            "--gres": self._gres,
            "--time": self._time,
            "--output": self._output,
            "--error": self._output,
            "--chdir": lambda value: self._set("workdir", value),
            "--requeue": lambda _: None,  # retry.infra does so anyway
            "--no-requeue": lambda _: self._set("retry", {"infra": "0"}),
            "--signal": self._signal,
            _TASKS_PER_NODE: self._ntasks,
        }

    def header(self, text: str) -> None:
        """Convert a `#SBATCH` line, which may have several options."""
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            self._not_understood(text, "its quotes do not match")
            return
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if not name.startswith("--") and len(name) > 2 and name[:2] in _SHORT:
                name, equals, value = name[:2], "=", word[2:].removeprefix("=")
            name = _SHORT.get(name, name)
            if not equals and name not in _SWITCHES and words and not words[0].startswith("-"):
                value = words.pop(0)
            self._option(name, value)

    def _option(self, name: str, value: str) -> None:
        take = self._takes.get(name)
        if take is None:
            self._not_understood(f"{name}={value}" if value else name, _INSTEAD.get(name, ""))
        elif not value and name not in _SWITCHES:
            self._not_understood(name, "it has no value")
        else:
            take(value)

    def _not_understood(self, what: str, instead: str) -> None:
        self.notes.append(
            f"#SBATCH {printable(what)} is ignored" + (f": {instead}" if instead else "")
        )

    def _set(self, key: str, value: object) -> None:
        self.mapping[key] = value

    def _name(self, value: str) -> None:
        name = sanitised_name(value)
        if name != value:
            self.notes.append(f"the name {printable(value)} becomes {name}")
        self._set("name", name)

    def _nodes(self, value: str) -> None:
        self._set("nodes", value.replace("-", "..") if re.fullmatch(r"\d+-\d+", value) else value)

    def _gpus(self, value: str) -> None:
        value = value.partition("(")[0]  # `8(S:0-1)` includes their sockets
        counted = value.isdecimal() or ":" in value
        self._set("resources", {"gpu": value if counted else f"{value}:1"})

    def _gres(self, value: str) -> None:
        for resource in value.split(","):
            kind, _, count = resource.partition(":")
            if kind == "gpu":
                self._gpus(count or "1")
            else:
                self._not_understood(f"--gres={resource}", "")

    def _time(self, value: str) -> None:
        if value.upper() in ("UNLIMITED", "INFINITE") or not value.strip("0:-"):
            return
        self._set("time_limit", _duration(value))

    def _output(self, value: str) -> None:
        self.notes.append(
            f"output for {printable(value)} is available with `muster logs`, separately for each "
            "rank"
        )

    def _signal(self, value: str) -> None:
        flags, _, rest = value.rpartition(":")
        name, _, before = rest.partition("@")
        self._set("stop", {"warn": f"{name}@{before or _WARN_S}s"})
        if "B" in flags:
            self.notes.append(f"--signal={printable(value)} reaches the ranks, not the script")

    def _ntasks(self, value: str) -> None:
        if value.isdecimal():
            self._tasks = value
        else:
            self._not_understood(f"{_TASKS_PER_NODE}={value}", "it is not a number")

    def body(self, lines: Sequence[str], text: str) -> None:
        """Convert the commands: one that starts the training, or a script."""
        env: dict[str, str] = {}
        place: dict[str, object] = {}
        starts: list[Start] = []
        others: list[str] = []
        for line in lines:
            words = _words(line)
            if line.startswith("set -"):
                continue
            variables = _variables(words)
            where = _place(words, str(place.get("workdir", self.mapping.get("workdir", ""))))
            start = read_start(words, self._tasks) if words else None
            if start is not None:
                starts.append(start)
            elif where and not starts:
                place.update(where)
            elif variables and not starts:
                env.update(variables)
            else:
                others.append(line)
        plain = not any(_CONTROL.match(line) for line in others)
        if len(starts) == 1 and plain and not _expands(starts[0].rest):
            self._training(starts[0])
            self.mapping.update(place)
            self._env(env)
            for line in others:
                self.notes.append(
                    f"this line of the script is ignored: {printable(line)}{_key_for(line)}"
                )
            return
        self._set("launcher", "none")
        self._set("run", _whole(text))
        if self._tasks and self._tasks != "1":
            self._set("nproc_per_node", self._tasks)
        self.notes.append("the script runs once on every node (launcher: none), not on the first")
        if len(starts) == 1 and plain:
            words = [word for word in starts[0].rest if _expands([word])]
            self.notes.append(
                f"{printable(', '.join(words))} needs a shell: write values there, or "
                "let the program read its environment, and the line that starts it becomes `run`"
            )
        for word in ("srun", "scontrol", "SLURM_"):
            if any(word in line for line in lines):
                self.notes.append(
                    f"there is no {word} in Muster: docs/how-to/from-slurm.md has what to write"
                )

    def _training(self, start: Start) -> None:
        self._set("run", start.rest)
        if start.launcher == "processes":
            self._set("launcher", start.launcher)
        if start.nproc.isdecimal():
            self._set("nproc_per_node", start.nproc)
        self.notes.append(f"run: {printable(shlex.join(start.rest))} (launcher: {start.launcher})")
        self.notes += start.notes
        if start.launcher == "torchrun" and self._tasks not in ("", "1"):
            self._not_understood(
                f"{_TASKS_PER_NODE}={self._tasks}",
                "torchrun starts the ranks of a node (another number: --nproc-per-node)",
            )

    def _env(self, given: dict[str, str]) -> None:
        """Add the variables that a job may set."""
        env = {}
        for name, value in given.items():
            try:
                check_name(name)
            except InvalidValueError as refused:
                why = refused.message.removeprefix(f"`{name}` ")
                self.notes.append(f"{name} is ignored: it {why}")
                continue
            if name == VISIBLE and "resources" in self.mapping:
                self.notes.append(f"{name} is ignored: it is set to the job's GPUs")
                continue
            env[name] = value
        if env:
            self._set("env", env)


def _duration(value: str) -> str:
    """A time of Slurm as a job file has it; what is no time stays as it is."""
    if not _TIME.fullmatch(value) or _TIME_OF_BOTH.fullmatch(value):
        return value
    days, dash, clock = value.rpartition("-")
    numbers = clock.split(":")
    # Without days a lone number is minutes, and two are minutes and seconds.
    units = "hms" if dash or len(numbers) == 3 else "ms"
    parts = [f"{int(number)}{unit}" for number, unit in zip(numbers, units, strict=False)]
    return "".join([f"{days}d" if dash else "", *parts])


def _whole(text: str) -> str:
    """Return the script with Slurm's error handling, unless it sets its own."""
    first, newline, rest = text.partition("\n")
    if not first.startswith("#!"):
        first, newline, rest = "#!/bin/bash", "\n", text
    return f"{first}{newline}{_AS_UNDER_SLURM}\n{rest}"


def _place(words: Sequence[str], folder: str) -> dict[str, str]:
    """Return the job's key for `cd /abs`, `conda activate /abs` or, in a directory, `source
    venv/bin/activate`; {} for other commands.
    """
    match words:
        case ["cd", there] if there.startswith("/") and not _expands(words):
            return {"workdir": there}
        case ["conda" | "mamba" | "micromamba", "activate", there] if there.startswith("/"):
            return {} if _expands(words) else {"python": there}
        case ["source" | ".", script] if not _expands(words):
            prefix = _prefix(script, folder)
            return {"python": prefix} if prefix else {}
        case _:
            return {}


def _key_for(line: str) -> str:
    """Return the replacement for a line that changes the environment of later ones; "" for other
    lines.
    """
    match line.split():
        case ["conda" | "mamba" | "micromamba", "activate", *_]:
            return "; name the folder of the environment with `python`"
        case ["module" | "ml", *_]:
            return "; name what it sets in `env`"
        case _:
            return ""


def _prefix(script: str, folder: str) -> str:
    """Return the virtual environment that `source SCRIPT` activates in a directory; "" unless its
    path is the same on every node.
    """
    if base_name(script) != "activate":
        return ""
    path = posixpath.normpath(posixpath.join(folder, script))
    prefix, slash, _ = path.rpartition("/bin/activate")
    return prefix if slash and prefix.startswith("/") else ""


def _words(line: str) -> list[str]:
    """Return the words of a plain command; none if it needs a shell."""
    try:
        return script_words(line)
    except InvalidValueError:
        return []


def _expands(words: Sequence[str]) -> bool:
    """True if a shell would expand a word."""
    return any(set(word) & set("$`*?~") for word in words)


def _variables(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of `export A=1 B=2`, or without the export; empty for other commands."""
    given = words[1:] if words[:1] == ["export"] else words
    pairs = [_VARIABLE.fullmatch(word) for word in given]
    if _expands(given) or any(pair and pair[2].startswith("(") for pair in pairs):
        return {}
    return {pair[1]: pair[2] for pair in pairs if pair} if all(pairs) else {}
