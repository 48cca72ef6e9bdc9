"""The interpreter of jobs that name none: whether it has torch.

A child process looks for torch without importing it, as the user of the jobs.
"""

from __future__ import annotations

import os
import pwd
import subprocess
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
_FIX: Final = (
    "jobs that name no `python` do not run here: set `python` of agent.yaml to an environment with "
    "torch, and restart the agent"
)


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
        done = subprocess.run(
            [str(program), "-c", _FIND],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env={"PATH": _PATH, "HOME": home, "LANG": "C.UTF-8"},
            check=False,
            timeout=timeout_s,
            user=uid,
            group=gid,
            extra_groups=groups,
        )
    except subprocess.TimeoutExpired:
        raise UnknownError(f"{program} gave no answer within {timeout_s:g} s") from None
    except OSError as error:
        if submitters and isinstance(error, PermissionError):
            # Some users may be let in.
            raise UnknownError(f"{program}: {error.strerror}") from error
        return _cannot_run(program, error.strerror or str(error))
    if done.returncode:
        last = done.stderr[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
        return _cannot_run(program, last[-1] if last else f"exit code {done.returncode}")
    torch, user_site = (word == b"True" for word in done.stdout.split()[-2:])
    if torch:
        return None
    if user_site and submitters:
        raise UnknownError(f"users of {program} may have torch of their own")
    return NoTorch(f"no torch in {program}", _FIX)


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
        # Which groups they will have is not known.
        return _NOBODY, _NOBODY, [_NOBODY], "/"
    try:
        found = pwd.getpwnam(name or "")
    except KeyError:
        raise UnknownError(f"there is no user {name}") from None
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    return found.pw_uid, found.pw_gid, groups, found.pw_dir
