"""Quantities as users type them: durations, sizes, signals, GPUs.

Every quantity carries its unit (`24h`, `200GB`), because a bare `90` is seconds to one user and
minutes to the next. All functions are pure and raise `InvalidValueError` with a hint.
"""

from __future__ import annotations

import re
from typing import Final

from muster.spec.errors import InvalidValueError, ProblemKind

_SECONDS: Final = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_UNITS: Final = tuple(_SECONDS)
_PART: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(ms|[wdhms])")
_CLOCK: Final = re.compile(r"([0-9]{1,6}):([0-5][0-9]):([0-5][0-9])")
_DAYS_CLOCK: Final = re.compile(
    r"([0-9]{1,6})-([01]?[0-9]|2[0-3])(?::([0-5][0-9])(?::([0-5][0-9]))?)?"
)
_BARE: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_MINUTES_SECONDS: Final = re.compile(r"([0-9]{1,6}):([0-5][0-9])")

_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGTP]?)(i?)B")
_SIZE_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}

_GPU: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9_.-]{0,63}):)?([0-9]{1,4})")
_GPU_WITH_MEMORY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*:[0-9]+[KMGT]i?B(:[0-9]+)?")
# Common forms `H100x8` and `8xH100`. Two digits are needed: `rtx4090` in lower case is not `rt`
# times 4090.
_GPU_TIMES: Final = re.compile(
    r"(?P<model>[A-Za-z][A-Za-z0-9_.-]{0,60})[x*](?P<count>[1-9][0-9]?)"
    r"|(?P<before>[1-9][0-9]?)[x*](?P<after>[A-Za-z][A-Za-z0-9_.-]{0,60})"
)
MAX_GPUS_PER_NODE: Final = 1024
_NO_MODELS: Final = ("gpu", "gpus")

# Linux numbers on x86 and arm; spelled out because the host that reads a job need not be Linux.
SIGNALS: Final = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGTRAP": 5,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGUSR1": 10,
    "SIGSEGV": 11,
    "SIGUSR2": 12,
    "SIGPIPE": 13,
    "SIGALRM": 14,
    "SIGTERM": 15,
    "SIGCHLD": 17,
    "SIGCONT": 18,
    "SIGSTOP": 19,
    "SIGTSTP": 20,
    "SIGTTIN": 21,
    "SIGTTOU": 22,
    "SIGURG": 23,
    "SIGXCPU": 24,
    "SIGXFSZ": 25,
    "SIGVTALRM": 26,
    "SIGPROF": 27,
    "SIGWINCH": 28,
    "SIGIO": 29,
    "SIGPWR": 30,
    "SIGSYS": 31,
}
_SIGNAL_OF_NUMBER: Final = {str(number): name for name, number in SIGNALS.items()}

_DURATION_HINT: Final = "write `24h`, `90m`, `1d12h`, `1-00:00:00` or `HH:MM:SS`"


def duration(text: str) -> float:
    """Parse a duration to seconds (to the millisecond): `24h`, `1d12h`, `1.5h`, `500ms`, `36:00:00`
    or Slurm's `D-HH[:MM[:SS]]`.
    """
    typed = text.strip()
    if clock := _CLOCK.fullmatch(typed):
        hours, minutes, seconds = (int(part) for part in clock.groups())
        return float(hours * 3600 + minutes * 60 + seconds)
    if clock := _DAYS_CLOCK.fullmatch(typed):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    return _sum_of_parts(typed)


def _sum_of_parts(typed: str) -> float:
    total, at, last = 0.0, 0, -1
    while at < len(typed):
        part = _PART.match(typed, at)
        if part is None:
            raise _not_a_duration(typed)
        rank = _UNITS.index(part.group(2))
        if rank <= last:
            raise InvalidValueError("units must fall and not repeat", "write `1d12h30m`")
        total += float(part.group(1)) * _SECONDS[part.group(2)]
        at, last = part.end(), rank
    if last < 0:
        raise _not_a_duration(typed)
    return round(total, 3)


def _not_a_duration(typed: str) -> InvalidValueError:
    if _BARE.fullmatch(typed):
        return InvalidValueError(
            "needs a unit, as every duration does", f"write `{typed}s`, `{typed}m` or `{typed}h`"
        )
    if two := _MINUTES_SECONDS.fullmatch(typed):
        first, second = two.groups()
        return InvalidValueError(
            "may mean minutes and seconds or hours and minutes",
            f"write `{first}m{second}s` or `{first}h{second}m`",
        )
    return InvalidValueError("is not a duration", _DURATION_HINT)


def duration_text(seconds: float) -> str:
    """Return the canonical spelling of a duration: `1d12h`, `90.5s`, `0s`."""
    millis = round(seconds * 1000)
    if millis % 1000:
        return f"{millis / 1000:.3f}".rstrip("0") + "s"
    left, parts = millis // 1000, ""
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_SECONDS[unit]))
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


def size(text: str) -> int:
    """Parse a size to bytes: `200GB` (powers of 1000) or `200GiB` (powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError("is not a size", "write `200GB`, `512MiB` or `100B`")
    amount, prefix, binary = match.groups()
    if binary and not prefix:
        units = [f"`{amount}{unit}`" for unit in ("KiB", "MiB", "GiB")]
        raise InvalidValueError("is not a size", f"write {', '.join(units)} or `{amount}B`")
    base: int = 1024 if binary else 1000
    return round(float(amount) * float(base ** _SIZE_POWER[prefix]))


def size_text(size_bytes: int) -> str:
    """Return the shortest spelling that `size` parses to these bytes."""
    exact = [
        f"{size_bytes // base**power}{prefix}{binary}B"
        for prefix, power in _SIZE_POWER.items()
        for base, binary in ((1000, ""), (1024, "i" if prefix else ""))
        if size_bytes % base**power == 0
    ]
    return min(exact, key=len)


def signal_name(text: str) -> str:
    """Return the canonical name (`SIGTERM`) of `SIGTERM`, `TERM`, `term` or `15`."""
    typed = text.strip()
    if typed in _SIGNAL_OF_NUMBER:
        return _SIGNAL_OF_NUMBER[typed]
    name = typed.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name not in SIGNALS:
        raise InvalidValueError(
            "is not a signal", "write a name such as `SIGTERM`, `USR1`, or its number"
        )
    return name


def gpu(text: str) -> tuple[int, str | None]:
    """Parse the count per node and the model (None for any): `8` or `H100:8`."""
    typed = text.strip()
    match = _GPU.fullmatch(typed)
    if match is None:
        raise _gpu_advice(typed)
    model, digits = match.groups()
    count = int(digits)
    if str(count) != digits:
        raise InvalidValueError("begins with a zero", f"write `{gpu_text(count, model)}`")
    if model is not None and model.lower() in _NO_MODELS:
        raise InvalidValueError(
            "`gpu:` is not a model", f"write `{count}`, or a model as in `H100:{count or 8}`"
        )
    if model is not None and count == 0:
        raise InvalidValueError("asks for no GPU of a model", "write `0`, or a count of at least 1")
    if count > MAX_GPUS_PER_NODE:
        raise InvalidValueError(
            f"is more than {MAX_GPUS_PER_NODE} GPUs per node", "this counts one node"
        )
    return count, model


def _gpu_advice(typed: str) -> InvalidValueError:
    if _GPU_WITH_MEMORY.fullmatch(typed):
        parts = typed.split(":")
        asked = min(int(parts[2][:9]) if len(parts) > 2 else 1, MAX_GPUS_PER_NODE) or 1
        return InvalidValueError(
            "GPU memory in `gpu` is not supported yet by this release",
            f"write `{gpu_text(asked, _model(parts[0]))}`",
            ProblemKind.LATER,
        )
    if times := _GPU_TIMES.fullmatch(typed):
        model, count = times["model"] or times["after"], times["count"] or times["before"]
        meant = gpu_text(int(count), _model(model))
        return InvalidValueError("is not a model and count", f"write `{meant}`")
    if typed.lower() in _NO_MODELS:
        return InvalidValueError("does not say how many", "write `8`, a count per node")
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", typed):
        return InvalidValueError(
            "is a model without a count", f"write `{typed}:8`, a count per node"
        )
    return InvalidValueError(
        "is not a number of GPUs", "write the count per node, `8`, or model and count, `H100:8`"
    )


def _model(name: str) -> str | None:
    """Return a model name; None for a word that cannot be one."""
    return None if name.lower() in _NO_MODELS else name


def gpu_text(count: int, model: str | None) -> str | int:
    """Return the canonical spelling of a parsed GPU request."""
    return count if model is None else f"{model}:{count}"


def integer(text: str) -> int:
    """Parse a whole number in plain decimal digits, with an optional minus."""
    typed = text.strip()
    if not re.fullmatch(r"-?[0-9]{1,18}", typed):
        raise InvalidValueError("is not a whole number", "write plain digits, such as `4`")
    number = int(typed)
    if str(number) != typed:
        raise InvalidValueError("begins with a zero, which some read as octal", f"write `{number}`")
    return number
