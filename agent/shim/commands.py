"""The commands from an agent to a shim, parsed and checked.

Every command states a desired result, so repeating it does no harm.
"""

from __future__ import annotations

import signal

TORCHRUN = "torchrun"
PROCESSES = "processes"
NONE = "none"
LAUNCHERS = (TORCHRUN, PROCESSES, NONE)
SETUP_TIMEOUT_S = 3600.0
# A cold torch on a network file system has been seen to take minutes.
BOOTSTRAP_TIMEOUT_S = 600.0
GRACE_S = 30.0
RANKS_MAX = 1024


class Malformed(Exception):
    """A command that this shim cannot parse; the text names the field."""


class Prepare:
    """Make everything ready that may be slow or fail, but start no program."""

    def __init__(self, document: dict[str, object]) -> None:
        self.launcher = _text(document, "launcher") or NONE
        if self.launcher not in LAUNCHERS:
            raise Malformed(f"launcher {self.launcher!r} is not one of {', '.join(LAUNCHERS)}")
        self.cwd = _text(document, "cwd")
        self.python = _text(document, "python")
        self.setup = _words(document, "setup")
        self.env = _environment(document)
        self.user = _user(document)
        self.allow_root = document.get("allow_root") is True
        self.no_new_privileges = document.get("no_new_privileges") is True
        self.setup_timeout_s = _seconds(document, "setup_timeout_s", SETUP_TIMEOUT_S)
        self.hosts = _hosts(document)
        self.bootstrap_timeout_s = _seconds(document, "bootstrap_timeout_s", BOOTSTRAP_TIMEOUT_S)


class Hosts:
    """Bind mount for the job: `source` appears at `target`."""

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target


class Start:
    """Open the gate."""

    def __init__(self, document: dict[str, object]) -> None:
        self.argv = _words(document, "argv") or []
        self.env = _environment(document)
        self.ranks = _ranks(document)
        self.ranks_at_once, self.ranks_in_all = _planned(self.argv)
        self.interpreter = document.get("interpreter") is True
        self.grace_s = _seconds(document, "grace_s", GRACE_S)
        self.stop_signal = _signal(document, "stop_signal")
        port = document.get("listen_port")
        if port is not None and not (isinstance(port, int) and 0 < port < 65536):
            raise Malformed(f"listen_port {port!r} is not a port")
        self.listen_port = port


class Hostfile:
    """Write the task's host file. Sent before the start command."""

    def __init__(self, document: dict[str, object]) -> None:
        self.text = _text(document, "text") or ""


class Stop:
    """Signal, grace period, kill."""

    def __init__(self, document: dict[str, object]) -> None:
        self.signal = _signal(document, "signal")
        self.grace_s = _seconds(document, "grace_s", GRACE_S)


class Signal:
    """Signal `ranks` (default all) without ending them; each `number` only once. `late`: also ranks
    that start later.
    """

    def __init__(self, document: dict[str, object]) -> None:
        self.signal = _signal(document, "signal")
        number = document.get("number")
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise Malformed(f"number {number!r} is not a whole number from 1")
        self.number = number
        ranks = document.get("ranks") or []
        if not isinstance(ranks, list) or not all(isinstance(rank, int) for rank in ranks):
            raise Malformed(f"ranks {ranks!r} is not a list of ranks")
        self.ranks = frozenset(ranks)
        self.late = document.get("late") is not False

    def for_rank(self, rank: int) -> bool:
        return not self.ranks or rank in self.ranks


class Kill:
    """Kill the whole tree at once."""


class Lease:
    """The right to run for `ttl_s` from now (0: without limit).

    When it expires, the shim stops the job with the job's stop signal and `grace_s`.
    """

    def __init__(self, document: dict[str, object]) -> None:
        self.ttl_s = _seconds(document, "ttl_s", 0.0)
        self.grace_s = _seconds(document, "grace_s", GRACE_S)


class Release:
    """The coordinator has the exit record, so the shim may end."""


Command = Prepare | Hostfile | Start | Stop | Signal | Kill | Lease | Release


def parse(document: dict[str, object]) -> Command:
    """Parse a command. Raises Malformed."""
    match document.get("cmd"):
        case "prepare":
            return Prepare(document)
        case "hostfile":
            return Hostfile(document)
        case "start":
            return Start(document)
        case "stop":
            return Stop(document)
        case "signal":
            return Signal(document)
        case "kill":
            return Kill()
        case "lease":
            return Lease(document)
        case "release":
            return Release()
        case other:
            raise Malformed(f"command {other!r} is not known to this shim")


def _text(document: dict[str, object], field: str) -> str | None:
    value = document.get(field)
    if value is None or (isinstance(value, str) and "\0" not in value):
        return value or None
    raise Malformed(f"{field} {value!r} is not text without NUL")


def _words(document: dict[str, object], field: str) -> list[str] | None:
    value = document.get(field)
    if value is None:
        return None
    if not isinstance(value, list):
        raise Malformed(f"{field} is not a list of words")
    words = []
    for word in value:
        if not isinstance(word, str) or "\0" in word:
            raise Malformed(f"{field} holds {word!r}, which is not a word without NUL")
        words.append(word)
    return words


def _ranks(document: dict[str, object]) -> list[dict[str, str]]:
    value = document.get("ranks") or []
    if not isinstance(value, list) or len(value) > RANKS_MAX:
        raise Malformed(f"ranks is not a list of at most {RANKS_MAX} environments")
    ranks = [_variables(item) for item in value]
    if not all(rank.get("RANK", "").isdecimal() for rank in ranks):
        raise Malformed("ranks holds an environment without a RANK")
    return ranks


def _planned(argv: list[str]) -> tuple[int, int]:
    """The number of ranks torchrun may run here at one time, and of different ranks in all.

    Muster's arguments contain both, and precede those of the job. An elastic gang (`--nnodes 1:4`)
    numbers its ranks anew when its nodes change.
    """
    at_once = min(_number(_option("--nproc-per-node", argv), RANKS_MAX), RANKS_MAX)
    nodes = _number(_option("--nnodes", argv).partition(":")[2], 1)
    return at_once, min(at_once * nodes, RANKS_MAX)


def _option(name: str, argv: list[str]) -> str:
    at = argv.index(name) + 1 if name in argv else len(argv)
    return argv[at] if at < len(argv) else ""


def _number(text: str, default: int) -> int:
    return max(1, int(text)) if text.isdecimal() and len(text) < 8 else default


def _environment(document: dict[str, object]) -> dict[str, str]:
    return _variables(document.get("env") or {})


def _variables(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Malformed("env is not a map of texts")
    for name, content in value.items():
        if not name or "=" in name or "\0" in name:
            raise Malformed(f"env holds the name {name!r}, which is invalid in an environment")
        if not isinstance(content, str) or "\0" in content:
            raise Malformed(f"env {name} is not text without NUL")
    return value


def _user(document: dict[str, object]) -> str | None:
    value = document.get("user")
    if value is None:
        return None
    if isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"]:
        name: str = value["name"]
        return name
    raise Malformed(f"user {value!r} has no name")


def _hosts(document: dict[str, object]) -> Hosts | None:
    value = document.get("hosts")
    if value is None:
        return None
    if isinstance(value, dict):
        source, target = _text(value, "source"), _text(value, "target")
        if source and target and source.startswith("/") and target.startswith("/"):
            return Hosts(source, target)
    raise Malformed(f"hosts {value!r} is not a source and a target, both absolute paths")


def _seconds(document: dict[str, object], field: str, default: float) -> float:
    value = document.get(field)
    if value is None:
        return default
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    raise Malformed(f"{field} {value!r} is not a number of seconds")


def _signal(document: dict[str, object], field: str) -> int:
    value = document.get(field) or "SIGTERM"
    name = value if str(value).startswith("SIG") else f"SIG{value}"
    try:
        return signal.Signals[str(name)].value
    except KeyError:
        raise Malformed(f"{field} {value!r} is not a name such as SIGTERM") from None
