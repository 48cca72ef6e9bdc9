"""Check of the commands from an agent (agent/shim/messages.py), before the shim acts on them."""

from __future__ import annotations

import signal

from agent.shim.messages import (
    NONE,
    PROCESSES,
    TORCHRUN,
    ShimCommand,
    ShimFetch,
    ShimHostfile,
    ShimHosts,
    ShimKill,
    ShimLease,
    ShimLimit,
    ShimPlaces,
    ShimPrepare,
    ShimRelease,
    ShimSignal,
    ShimStart,
    ShimStop,
    ShimUser,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

LAUNCHERS = (TORCHRUN, PROCESSES, NONE)
RANKS_MAX = 1024


class Malformed(Exception):
    """A command that this shim cannot parse; the text names the field."""


def parse(document: dict[str, object]) -> ShimCommand:
    """Parse a command. Fields of a newer agent are ignored. Raises Malformed."""
    kind = _KINDS.get(str(document.get("cmd")))
    if kind is None:
        raise Malformed(f"command {document.get('cmd')!r} is not known to this shim")
    fields = {}
    for field, check in _CHECKS[kind].items():
        value = document.get(field)
        if value is not None:
            fields[field] = check(field, value)
        elif not hasattr(kind, field):
            raise Malformed(f"{field} is missing")
    command: ShimCommand = kind(**fields)
    return command


def planned(argv: Sequence[str]) -> tuple[int, int]:
    """The number of ranks torchrun may run here at one time, and of different ranks in all.

    Muster's arguments contain both, and precede those of the job. An elastic gang (`--nnodes 1:4`)
    numbers its ranks anew when its nodes change.
    """
    at_once = min(_count(_option("--nproc-per-node", argv), RANKS_MAX), RANKS_MAX)
    nodes = _count(_option("--nnodes", argv).partition(":")[2], 1)
    return at_once, min(at_once * nodes, RANKS_MAX)


def _option(name: str, argv: Sequence[str]) -> str:
    at = argv.index(name) + 1 if name in argv else len(argv)
    return argv[at] if at < len(argv) else ""


def _count(text: str, default: int) -> int:
    return max(1, int(text)) if text.isdecimal() and len(text) < 8 else default


def signal_number(name: str) -> int:
    """The number of a signal. Raises KeyError if no signal has this name."""
    return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value


def _launcher(field: str, value: object) -> str:
    if value and value not in LAUNCHERS:
        raise Malformed(f"{field} {value!r} is not one of {', '.join(LAUNCHERS)}")
    return str(value) or NONE


def _text(field: str, value: object) -> str:
    if isinstance(value, str) and "\0" not in value:
        return value
    raise Malformed(f"{field} {value!r} is not text without NUL")


def _text_or_none(field: str, value: object) -> str | None:
    return _text(field, value) or None


def _flag(_field: str, value: object) -> bool:
    return value is True


def _unless_false(_field: str, value: object) -> bool:
    return value is not False


def _words(field: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise Malformed(f"{field} is not a list of words")
    for word in value:
        if not isinstance(word, str) or "\0" in word:
            raise Malformed(f"{field} holds {word!r}, which is not a word without NUL")
    return value


def _environments(field: str, value: object) -> list[dict[str, str]]:
    if not isinstance(value, list) or len(value) > RANKS_MAX:
        raise Malformed(f"{field} is not a list of at most {RANKS_MAX} environments")
    ranks = [_variables("env", item) for item in value]
    if not all(rank.get("RANK", "").isdecimal() for rank in ranks):
        raise Malformed(f"{field} holds an environment without a RANK")
    return ranks


def _variables(field: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Malformed(f"{field} is not a map of texts")
    for name, content in value.items():
        if not name or "=" in name or "\0" in name:
            raise Malformed(f"{field} holds the name {name!r}, which is invalid in an environment")
        if not isinstance(content, str) or "\0" in content:
            raise Malformed(f"{field} {name} is not text without NUL")
    return value


def _user(field: str, value: object) -> ShimUser:
    if isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"]:
        uid = value.get("uid")
        if uid is None or (type(uid) is int and uid >= 0):
            return ShimUser(value["name"], uid)
    raise Malformed(f"{field} {value!r} has no name, or a uid that is none")


def _hosts(field: str, value: object) -> ShimHosts:
    if isinstance(value, dict):
        paths = [_text(name, value.get(name) or "") for name in ("source", "target")]
        if all(path.startswith("/") for path in paths):
            return ShimHosts(*paths)
    raise Malformed(f"{field} {value!r} is not a source and a target, both absolute paths")


def _places(field: str, value: object) -> ShimPlaces:
    if not isinstance(value, dict):
        raise Malformed(f"{field} {value!r} is not a map of places")
    folder = _text("folder", value.get("folder") or "")
    shown, made = (_words(name, value.get(name) or []) for name in ("shown", "made"))
    return ShimPlaces(folder, shown, made, value.get("hide") is True)


def _fetch(field: str, value: object) -> ShimFetch:
    if not isinstance(value, dict) or not value.get("argv"):
        raise Malformed(f"{field} {value!r} is not a program")
    argv = _words("argv", value["argv"])
    return ShimFetch(argv, _variables("env", value.get("env") or {}), str(value.get("what") or ""))


def _port(field: str, value: object) -> int:
    if isinstance(value, int) and 0 < value < 65536:
        return value
    raise Malformed(f"{field} {value!r} is not a port")


def _number(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Malformed(f"{field} {value!r} is not a whole number from 1")
    return value


def _rank_numbers(field: str, value: object) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(rank, int) for rank in value):
        raise Malformed(f"{field} {value!r} is not a list of ranks")
    return value


def _seconds(field: str, value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    raise Malformed(f"{field} {value!r} is not a number of seconds")


def _signal(field: str, value: object) -> str:
    try:
        signal_number(str(value))
    except KeyError:
        raise Malformed(f"{field} {value!r} is not a name such as SIGTERM") from None
    return str(value)


_CHECKS: dict[type[Any], dict[str, Callable[[str, object], object]]] = {
    ShimPrepare: {
        "launcher": _launcher,
        "cwd": _text_or_none,
        "python": _text_or_none,
        "setup": _words,
        "env": _variables,
        "user": _user,
        "allow_root": _flag,
        "no_new_privileges": _flag,
        "setup_timeout_s": _seconds,
        "bootstrap_timeout_s": _seconds,
        "hosts": _hosts,
        "places": _places,
        "fetch": _fetch,
    },
    ShimHostfile: {"text": _text},
    ShimStart: {
        "argv": _words,
        "env": _variables,
        "listen_port": _port,
        "grace_s": _seconds,
        "stop_signal": _signal,
        "ranks": _environments,
        "interpreter": _flag,
    },
    ShimStop: {"signal": _signal, "grace_s": _seconds},
    ShimSignal: {
        "signal": _signal,
        "number": _number,
        "ranks": _rank_numbers,
        "late": _unless_false,
    },
    ShimKill: {},
    ShimLease: {"ttl_s": _seconds, "grace_s": _seconds, "until": _seconds},
    ShimLimit: {
        "number": _number,
        "limit_s": _seconds,
        "warn_s": _seconds,
        "warn_signal": _signal,
    },
    ShimRelease: {},
}
_KINDS = {kind.cmd: kind for kind in _CHECKS}
