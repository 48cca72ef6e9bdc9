"""Installation of Muster's systemd units by `muster up` and `muster join`, and of the command."""

import os
import secrets
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError

COORDINATOR: Final = "muster-coordinator.service"
AGENT: Final = "muster-agent.service"
_UNITS: Final = Path("/etc/systemd/system")
_PROGRAM: Final = "/opt/muster/bin/muster"
_COMMANDS: Final = Path("/usr/local/bin")
_CONFIGS: Final = {
    COORDINATOR: "/etc/muster/coordinator.yaml",
    AGENT: "/etc/muster/agent.yaml",
}


def systemd_runs() -> bool:
    """True if systemd is this machine's service manager and this process may install units."""
    return Path("/run/systemd/system").is_dir() and os.geteuid() == 0


def program() -> str:
    """Return the path of `muster` in this interpreter's environment."""
    return str(Path(sys.prefix) / "bin" / "muster")


def link_program(folder: Path = _COMMANDS) -> str:
    """Link `muster` from a folder of the PATH, as the nodes' script does: another program of that
    name stays. Returns what was done, or empty if nothing. Raises FileError.
    """
    link, target = folder / "muster", program()
    try:
        if link.is_symlink():
            if os.readlink(link) == target:
                return ""
        elif link.exists():
            return f"warning: {link} is another program and stays; use {target}"
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".muster.{secrets.token_hex(8)}.tmp"
        temporary.symlink_to(target)
        temporary.replace(link)
    except OSError as error:
        raise FileError(f"{link} cannot be linked to {target}: {error.strerror}") from error
    return f"linked {link} to {target}"


def make_readable(folder: Path) -> bool:
    """Let all users read what this user has in a folder, and run its programs, as if it had been
    made with the usual umask. Returns True if anything was changed. Raises OSError.
    """
    changed = False
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(place, name)
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
                continue
            runs = stat.S_ISDIR(found.st_mode) or found.st_mode & 0o100
            wanted = stat.S_IMODE(found.st_mode) | (0o555 if runs else 0o444)
            if wanted != stat.S_IMODE(found.st_mode):
                os.chmod(path, wanted)
                changed = True
    return changed


def why_not_run_by(user: str) -> str:
    """Return why a user cannot run this installation's `muster`, else "". Needs root."""
    try:
        done = subprocess.run(
            [program(), "join", "--help"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=60,
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
        )
    except OSError as error:
        return error.strerror or str(error)
    return done.stderr.strip()[-500:] if done.returncode else ""


def unit_text(name: str, config: Path) -> str:
    """Return the shipped unit, for this installation and configuration. Raises FileError."""
    # A wheel has the units in its environment, a source tree beside the packages.
    places = (
        Path(sys.prefix) / "share" / "muster" / "systemd" / name,
        Path(__file__).resolve().parents[2] / "systemd" / name,
    )
    for place in places:
        try:
            text = place.read_text("utf-8")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FileError(f"{place} cannot be read: {error.strerror}") from error
        return text.replace(_PROGRAM, program()).replace(_CONFIGS[name], str(config))
    raise FileError(f"{name} is not part of this installation: {places[0]} is missing")


def install_unit(name: str, config: Path, *, restart: bool = False) -> None:
    """Write, enable and start a unit, or restart one that runs. Raises FileError."""
    write_atomic(_UNITS / name, unit_text(name, config).encode(), 0o644)
    start = [["enable", name], ["restart", name]] if restart else [["enable", "--now", name]]
    for words in (["daemon-reload"], *start):
        done = subprocess.run(
            ["systemctl", *words], capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            raise FileError(f"systemctl {' '.join(words)}: {done.stderr.strip()}")
