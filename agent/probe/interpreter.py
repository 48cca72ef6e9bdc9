"""The interpreter of jobs that name none: whether it has torch.

A child process looks for torch without importing it, as the user of the jobs.
"""

from __future__ import annotations

import os
import pwd
import selectors
import subprocess
import time
from pathlib import Path
from typing import Final, NamedTuple

TIMEOUT_S: Final = 30.0
_NOBODY: Final = 65534
_LAST_BYTES: Final = 300
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_FIND: Final = """\
import importlib.util, site
found = importlib.util.find_spec("torch")
print(found is not None and found.origin is not None, site.ENABLE_USER_SITE is True)
"""
_FOUND: Final = frozenset({b"True", b"False"})
_STAYS: Final = "jobs that need torch and name no `python` do not run here"
_SET: Final = "set `python` of agent.yaml to an environment with torch, and restart the agent"
_FIX: Final = f"{_STAYS}: {_SET}"


class UnknownError(Exception):
    """Nobody knows now whether the interpreter has torch."""


class NoTorch(NamedTuple):
    """Jobs that name no interpreter have no torch: what is missing, and what to do."""

    what: str
    fix: str


def look_for_torch(
    python: Path, user: str | None, *, submitters: bool = False, timeout_s: float = TIMEOUT_S
) -> NoTorch | None:
    """Return why jobs that name no interpreter have no torch here, None if they have. `user` is
    the account of all jobs, None if they run as this process's, or with `submitters` as their
    own. Blocks. Raises UnknownError.
    """
    program = interpreter_of(python)
    uid, gid, groups, home = _account(user, submitters=submitters)
    try:
        process = subprocess.Popen(
            [str(program), "-c", _FIND],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": _PATH, "HOME": home, "LANG": "C.UTF-8"},
            user=uid,
            group=gid,
            extra_groups=groups,
        )
        code, out, err = _ended(process, timeout_s)
    except subprocess.TimeoutExpired:
        raise UnknownError(f"{program} gave no answer within {timeout_s:g} s") from None
    except OSError as error:
        if submitters and isinstance(error, PermissionError):
            # Some users may be let in.
            raise UnknownError(f"{program}: {error.strerror}") from error
        lack = _cannot_run(program, error.strerror or str(error))
        if program.exists():
            return lack
        fix = f"{_STAYS}: make one with torch at {python}, which needs no restart, or {_SET}"
        return lack._replace(fix=fix)
    if code:
        last = err.decode(errors="replace").strip().splitlines()
        return _cannot_run(program, last[-1] if last else f"exit code {code}")
    words = out.split()[-2:]
    if len(words) < len(_FOUND) or not _FOUND.issuperset(words):
        raise UnknownError(f"{program} gave no answer that can be read")
    torch, user_site = (word == b"True" for word in words)
    if torch:
        return None
    if user_site and submitters:
        raise UnknownError(f"users of {program} may have torch of their own")
    return NoTorch(f"no torch in {program}", _FIX)


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, bytes, bytes]:
    """Return the exit code and the ends of both outputs. The process is killed after the timeout.
    Raises TimeoutExpired.

    A home may have code that every interpreter of its user runs, so no more of the output is kept.
    """
    deadline = time.monotonic() + timeout_s
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    with process.stdout, process.stderr, selectors.DefaultSelector() as readable:
        for fd in kept:
            readable.register(fd, selectors.EVENT_READ)
        try:
            while readable.get_map():
                for key, _ in readable.select(max(0.0, deadline - time.monotonic())):
                    data = os.read(key.fd, 65536)
                    kept[key.fd] = (kept[key.fd] + data)[-_LAST_BYTES:]
                    if not data:
                        readable.unregister(key.fd)
                if readable.get_map() and time.monotonic() >= deadline:
                    raise subprocess.TimeoutExpired(process.args, timeout_s)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            process.kill()
            process.wait()
    out, err = kept.values()
    return code, out, err


def interpreter_of(python: Path) -> Path:
    """Return the interpreter; `python` may name a virtual environment or a prefix."""
    if not python.is_dir():
        return python
    found = (python / "bin" / name for name in ("python3", "python"))
    return next((path for path in found if path.exists()), python / "bin" / "python3")


def _cannot_run(program: Path, why: str) -> NoTorch:
    return NoTorch(f"no torch, because {program} cannot run ({why})", _FIX)


def _account(
    name: str | None, *, submitters: bool
) -> tuple[int | None, int | None, list[int] | None, str]:
    """Return as whom to ask, and the home of this user."""
    if os.geteuid() != 0 or (name is None and not submitters):
        return None, None, None, os.path.expanduser("~")
    if submitters:
        # The groups of the submitters are unknown at this point.
        return _NOBODY, _NOBODY, [_NOBODY], "/"
    try:
        found = pwd.getpwnam(name or "")
    except KeyError:
        raise UnknownError(f"there is no user {name}") from None
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    return found.pw_uid, found.pw_gid, groups, found.pw_dir
