"""Readers of single values of a job.

Each reader takes text as typed, and returns the value or raises `InvalidValueError`.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.observations.hangs import Hang
from muster.spec import units
from muster.spec.command import sanitised_name
from muster.spec.errors import InvalidValueError, printable
from muster.spec.model import (
    SAME,
    SCHEMA_VERSION,
    IdleAction,
    Launcher,
    NumaBinding,
    Preflight,
    Rdma,
    Rendezvous,
    StartMethod,
    Warn,
)
from muster.spec.suggestions import nearest
from muster.spec.yaml.mapping_reader import seconds, whole_number

MAX_NODES: Final = 4096  # MUSTER_NODE_NAMES lists them all, within Linux's limit of a variable
DAY: Final = 86400.0
SPREAD: Final = rf"{SAME}[A-Za-z0-9_]([A-Za-z0-9_./-]{{0,61}}[A-Za-z0-9_])?"
MAX_PRELOAD: Final = 16
MODULE_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
_GIT_URL: Final = re.compile(r"[a-z+]+://|git@")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_MODULE_CHARS: Final = 256
_MAX_PATH_CHARS: Final = 4096
_MAX_URL_CHARS: Final = 2000
_MAX_CPUS: Final = 65536
_MAX_LABEL_CHARS: Final = 256
_WARN_BEFORE_S: Final = 60.0  # as in Slurm

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_NODE_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_SPREAD: Final = re.compile(SPREAD)
_WEBHOOK: Final = re.compile(r"[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")
_DOTS: Final = re.compile(r"(^|/)(\.|%2e){1,2}(/|%2f|$)|%2f|%5c")
_COMMAND_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_RANGE: Final = re.compile(r"([0-9]*)\s*(\.\.\.?|-|:)\s*([0-9]*)")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


_RDMA_MEANT: Final = {
    **dict.fromkeys(("true", "yes", "on", "require", "must", "best"), "required"),
    **dict.fromkeys(("auto", "default", "optional", "prefer"), "preferred"),
    **dict.fromkeys(("false", "no", "none", "never", "disabled", "tcp"), "off"),
}

ANY_OOM: Final = "OOM"
_OOM: Final = (
    FailureKind.OOM_KILLED,
    FailureKind.CUDA_OUT_OF_MEMORY,
    FailureKind.HOST_OUT_OF_MEMORY,
)


def failures(text: str) -> tuple[FailureKind, ...]:
    """Parse a failure class as shown by `muster show`, or OOM for every kind of memory
    exhaustion.
    """
    name = text.strip()
    if name == ANY_OOM:
        return _OOM
    known = [kind.value for kind in FailureKind]
    if name not in known:
        meant = nearest(name, [ANY_OOM, *known])
        hint = (
            f"did you mean `{meant}`?" if meant else f"write one of {ANY_OOM}, {', '.join(known)}"
        )
        raise InvalidValueError("is not a failure class", hint)
    return (FailureKind(name),)


def cpus(text: str) -> int:
    """Parse the minimum number of CPUs: `16`, `16..` or `16+`."""
    return whole_number(1, _MAX_CPUS)(_at_least(text))


def memory(text: str) -> int:
    """Parse the minimum memory in bytes: `200GB`, `200GB..` or `200GB+`."""
    found = units.size(_at_least(text))
    if found == 0:
        raise InvalidValueError("is nothing", "leave the key out: then any memory will do")
    return found


def _at_least(text: str) -> str:
    """Remove the open end of a range, which other systems use. Here a number is a minimum."""
    typed = text.strip()
    return typed.removesuffix("+") if typed.endswith("+") else typed.removesuffix("..")


def label(text: str) -> str:
    """Parse the value of a node label, with the rules of the agent's configuration."""
    if not text.isprintable() or len(text) > _MAX_LABEL_CHARS:
        raise InvalidValueError(
            "is not a valid label value",
            f"use printable text of at most {_MAX_LABEL_CHARS} characters",
        )
    return text


def spread(text: str) -> str:
    """Parse the placement constraint of a gang: `same-switch`, or `same-` and another label's
    name."""
    typed = text.strip()
    if not _SPREAD.fullmatch(typed):
        raise InvalidValueError(
            "is not a valid placement constraint",
            "write `same-switch`: nodes whose agents' configurations have the same `switch` in "
            "`labels`; any other label works",
        )
    return typed


def webhook(text: str) -> str:
    """Parse a webhook URL. Because the coordinator has an allowlist of URLs, refuses URLs that two
    programs could parse differently."""
    typed = text.strip()
    try:
        parts = urlsplit(typed)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    hint = "write it as https://hooks.example.com/path"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidValueError("is not a webhook address", hint)
    if not _WEBHOOK.fullmatch(typed) or len(typed) > _MAX_URL_CHARS:
        said = f"is more than {_MAX_URL_CHARS} characters, or has invalid characters"
        raise InvalidValueError(said, hint)
    if parts.username is not None or parts.fragment or "#" in typed:
        raise InvalidValueError("has a user or a fragment in it", hint)
    if _DOTS.search(parts.path.lower()):
        raise InvalidValueError("has `.` or `..` in its path", hint)
    return typed


def preflight(text: str) -> Preflight:
    """Parse the preflight mode. There is only one."""
    if text.strip() != Preflight.QUICK.value:
        raise InvalidValueError(
            "is not a preflight mode of this release", "write `preflight: quick`"
        )
    return Preflight.QUICK


def schema_version(text: str) -> int:
    """Parse the version of the format, which is 1."""
    if text.strip() != str(SCHEMA_VERSION):
        raise InvalidValueError(
            "is not a version that this release reads", f"write `schema_version: {SCHEMA_VERSION}`"
        )
    return SCHEMA_VERSION


def launcher(text: str) -> Launcher | None:
    """Parse the launcher, which starts the ranks."""
    name = text.strip()
    known = [launcher.value for launcher in Launcher]
    if name not in known:
        meant = nearest(name, known)
        hint = f"did you mean `{meant}`?" if meant else f"write {' or '.join(known)}"
        raise InvalidValueError("is not a launcher", hint)
    return Launcher(name)


def nodes(text: str) -> tuple[int, int | None]:
    """Parse the number of nodes, or the bounds of `2..4` (the second is None if not elastic)."""
    count = whole_number(1, MAX_NODES)
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return count(text), None
    low, dots, high = match.groups()
    if dots != ".." or not low or not high:
        least, most = sorted(min(max(int(n[:9]), 1), MAX_NODES) for n in (low or "1", high or "4"))
        raise InvalidValueError("is not a range of nodes", f"write both bounds: `{least}..{most}`")
    least, most = count(low), count(high)
    if least > most:
        raise InvalidValueError("ends before it begins", f"write `{most}..{least}`")
    return least, most if most > least else None


def rendezvous(text: str) -> Rendezvous:
    """Parse the rendezvous of the torchruns."""
    known = [known.value for known in Rendezvous]
    if text.strip() not in known:
        raise InvalidValueError("is not a supported rendezvous", f"write {' or '.join(known)}")
    return Rendezvous(text.strip())


def numa_binding(text: str) -> NumaBinding:
    """Parse the NUMA binding of ranks, in torchrun's terms."""
    name = text.strip()
    known = [known.value for known in NumaBinding]
    if name not in known:
        meant = nearest(name.replace("_", "-").lower(), known)
        hint = f"did you mean `{meant}`?" if meant else f"write {', '.join(known)}"
        raise InvalidValueError("is not a NUMA binding of torchrun", hint)
    return NumaBinding(name)


def rdma(text: str) -> Rdma:
    """Parse the RDMA mode for the traffic between nodes."""
    name = text.strip()
    known = [known.value for known in Rdma]
    if name not in known:
        meant = _RDMA_MEANT.get(name.lower()) or nearest(name, known)
        hint = f"did you mean `{meant}`?" if meant else f"write {', '.join(known)}"
        raise InvalidValueError("is neither required, preferred nor off", hint)
    return Rdma(name)


def start_method(text: str) -> StartMethod:
    """Parse the start method of ranks."""
    name = text.strip()
    known = [known.value for known in StartMethod]
    if name not in known:
        raise InvalidValueError("is not a start method of ranks", f"write {' or '.join(known)}")
    return StartMethod(name)


def module_name(text: str) -> str:
    """Parse the name of a Python module."""
    name = text.strip()
    if not re.fullmatch(MODULE_NAME, name) or len(name) > _MAX_MODULE_CHARS:
        raise InvalidValueError(
            "is not the name of a Python module", "write it as `transformers.models`"
        )
    return name


LEAST_LEASE_S: Final = 15.0
MOST_LEASE_S: Final = 30 * DAY


def hang(text: str) -> Hang:
    """Parse the action on a hang."""
    name = text.strip()
    known = [known.value for known in Hang]
    if name not in known:
        meant = nearest(name.lower(), known)
        hint = f"did you mean `{meant}`?" if meant else f"write {', '.join(known)}"
        raise InvalidValueError("is neither notify, dump nor restart", hint)
    return Hang(name)


LEAST_IDLE_S: Final = 60.0


def idle_action(text: str) -> IdleAction:
    """Parse the action on idle GPUs."""
    name = text.strip()
    known = [known.value for known in IdleAction]
    if name not in known:
        meant = nearest(name.lower(), known)
        hint = f"did you mean `{meant}`?" if meant else f"write {', '.join(known)}"
        raise InvalidValueError("is neither notify nor stop", hint)
    return IdleAction(name)


def time_limit(text: str) -> float | None:
    """Parse a time limit in seconds, at least one."""
    if text.strip().lower() in ("off", "none", "unlimited", "infinite", "infinity"):
        raise InvalidValueError("is not a duration", "leave the key out: then there is no limit")
    return seconds(1.0, 3650 * DAY)(text)


def job_name(text: str) -> str:
    """Parse a job name: `[a-z][a-z0-9-]{0,62}`, except words of the command line."""
    if not _NAME.fullmatch(text):
        raise InvalidValueError(
            "is not a name: a lower-case letter, then up to 62 of a-z, 0-9 and `-`",
            f"write `{sanitised_name(text)}`",
        )
    if text == "last":
        raise InvalidValueError(
            "`last` means the latest job on the command line", "choose another name"
        )
    return text


def pool(text: str) -> str:
    """Parse a pool name, with the rules of a job name."""
    if not _NAME.fullmatch(text):
        raise InvalidValueError(
            "is not a pool name: a lower-case letter, then up to 62 of a-z, 0-9 and `-`",
            "write the name as the cluster's configuration has it",
        )
    return text


def python(text: str, workdir: str | None) -> str:
    """Parse an absolute path or a command name. `workdir` is only for the hint."""
    if text.startswith("/"):
        return absolute_path(text)
    if _COMMAND_NAME.fullmatch(text):
        return text
    base = workdir if workdir and workdir.startswith("/") else "/path/on/the/nodes"
    raise InvalidValueError(
        "is neither an absolute path nor the name of a command",
        f"write `{base}/{printable(text.removeprefix('./').removeprefix('~/'))}`",
    )


def folder(text: str) -> str | None:
    """Parse a `workdir`: a folder of the nodes, or a relative one of the client. Returns None for
    an empty folder."""
    if _GIT_URL.match(text):
        raise InvalidValueError(
            "is the address of a repository and no folder",
            "write `workdir: {git: https://HOST/PATH}`",
        )
    if text.startswith("~"):
        raise InvalidValueError(
            "begins with `~`, which is another folder on each machine",
            "write `workdir: .` to send the folder of the job file, or an absolute path that "
            "exists on the nodes",
        )
    return None if text == "none" else absolute_path(text)


def bundle(text: str) -> str:
    """Parse the hash of code that was sent to the coordinator."""
    if not _SHA256.fullmatch(text):
        raise InvalidValueError(
            "is not a SHA-256", "write `workdir: .`, so that submitting sends the folder"
        )
    return text


def absolute_path(text: str) -> str:
    """Check that the text can be an absolute path."""
    if _CONTROL.search(text) or len(text) > _MAX_PATH_CHARS:
        raise InvalidValueError(
            "is not a path", "no line breaks or control characters, at most 4096 long"
        )
    return text


def node_name(text: str) -> str:
    """Parse a node name: dotted labels, as in DNS."""
    if "[" in text:
        raise InvalidValueError("is a range of names", "write every node by itself")
    if len(text) > 253 or not all(_NODE_LABEL.fullmatch(label) for label in text.split(".")):
        raise InvalidValueError("is not the name of a node", "write it as `muster nodes` shows it")
    return text


def boolean(text: str) -> bool:
    """Parse `true` or `false`."""
    if text not in ("true", "false"):
        raise InvalidValueError("is neither true nor false", "write `true` or `false`")
    return text == "true"


def stop_signal(text: str) -> str:
    """Return the canonical name of a signal that a process can catch or die of."""
    name = units.signal_name(text)
    if name in ("SIGKILL", "SIGSTOP", "SIGCONT", "SIGCHLD", "SIGURG", "SIGWINCH"):
        raise InvalidValueError(
            f"{name} cannot ask a process to end", "write `SIGTERM`, `SIGINT` or `SIGUSR1`"
        )
    return name


def warn(text: str) -> Warn | None:
    """Parse a signal and its time before the time limit: `USR1@5m`. As in Slurm, a bare number is
    seconds, and the default is a minute.
    """
    name, at, before = text.strip().partition("@")
    if name.upper().startswith(("B:", "R:", "RB:")):
        meant = text.partition(":")[2].strip()
        warn(meant)  # refuse any other errors in it
        raise InvalidValueError(
            f"`{printable(name.split(':')[0])}:` is Slurm's",
            f"write `{printable(meant)}`: only the ranks get it",
        )
    signal = units.signal_name(name)
    if signal in ("SIGKILL", "SIGSTOP"):
        raise InvalidValueError(f"{signal} cannot be caught", "write `USR1@5m`")
    if not at:
        return Warn(signal, _WARN_BEFORE_S)
    seconds_typed = f"{before.strip()}s" if before.strip().isdecimal() else before
    return Warn(signal, seconds(1.0, 3650 * DAY)(seconds_typed))
