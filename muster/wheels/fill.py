"""Filling of a folder with wheels of Muster and of all that it needs."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.wheels.manifest import MANIFEST, WheelManifest, own_target, read_manifest
from muster.wheels.pack import Wheel, pack, shared_file

_PUBLIC: Final = 0o644
_DOWNLOAD_S: Final = 900.0
# pip takes a platform literally: for an old C library as well as for a newer one.
_GLIBC: Final = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(5, 29)))
_BROKEN: Final = re.compile(r"connection broken by '(.+)'")
_MARKER: Final = re.compile(r"^(\S+==\S+)\s*;[^\\\n]*", re.MULTILINE)


class NoWheelsError(Exception):
    """The wheels cannot be had. The message is for users."""


def fill(folder: Path, targets: Iterable[str], requirements: str = "") -> WheelManifest:
    """Fill a folder for this machine's target, those given, and those that it has, and return its
    manifest. A folder that is up to date is left as it is. The requirements, with hashes, are by
    default those of Muster. Raises NoWheelsError, and then the folder still serves what it had.
    """
    try:
        known = read_manifest(folder)
        own = pack()
        requirements = locked(requirements or shared_file("requirements.txt").decode())
        digest = hashlib.sha256(requirements.encode()).hexdigest()
        wanted = {own_target(), *targets, *(known.targets if known else ())}
        if known is not None and _is_current(folder, known, own, digest, wanted):
            return known
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        with tempfile.TemporaryDirectory(prefix="new-", dir=folder) as scratch:
            new = Path(scratch)
            (new / "requirements.txt").write_text(requirements)
            made = {target: _download(new, target) for target in sorted(wanted)}
            for target, names in made.items():
                for name in names:
                    (new / target / name).chmod(_PUBLIC)
                    (new / target / name).replace(folder / name)
        write_atomic(folder / own.name, own.data, _PUBLIC)
        mine = {own.name: hashlib.sha256(own.data).hexdigest()}
        manifest = WheelManifest(
            digest, {target: {**names, **mine} for target, names in made.items()}
        )
        write_atomic(folder / MANIFEST, msgspec.json.encode(manifest), _PUBLIC)
        for path in folder.glob("*.whl"):
            if path.name not in manifest.wheels():
                path.unlink()
    except (OSError, FileError, subprocess.TimeoutExpired) as error:
        raise NoWheelsError(str(error)) from error
    return manifest


def locked(requirements: str) -> str:
    """Return requirements without their markers: pip compares these with its own interpreter, not
    with that of the target, and what a target does not need does no harm there."""
    return _MARKER.sub(r"\1 ", requirements)


def _is_current(
    folder: Path, known: WheelManifest, own: Wheel, requirements: str, wanted: set[str]
) -> bool:
    sha256 = hashlib.sha256(own.data).hexdigest()
    return (
        known.requirements == requirements
        and known.targets.keys() == wanted
        and all(wheels.get(own.name) == sha256 for wheels in known.targets.values())
        and all((folder / name).is_file() for name in known.wheels())
    )


def _why(stderr: str) -> str:
    """Return why pip failed. Without a network, its errors name a package and no cause, which is in
    the warnings before."""
    lines = stderr.splitlines()
    errors = [line.strip() for line in lines if "ERROR" in line or "No module" in line]
    broken = [found[1] for line in lines if (found := _BROKEN.search(line))]
    return " because of ".join([*errors[-1:], *broken[-1:]]) or "pip failed"


def _download(folder: Path, target: str) -> dict[str, str]:
    """Download the wheels of a target by their hashes. Returns their names and SHA-256. Settings of
    pip in the environment apply, such as an index or a folder of wheels.
    """
    python, _, machine = target.partition("-")
    platforms = [f"--platform={libc}_{machine}" for libc in _GLIBC]
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries=1"]
    which = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"]
    argv = [sys.executable, "-I", "-m", "pip", "download", *options, *which, *platforms]
    done = subprocess.run(
        [
            *argv,
            f"--python-version={python}",
            f"--dest={folder / target}",
            f"--requirement={folder / 'requirements.txt'}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_DOWNLOAD_S,
        check=False,
    )
    if done.returncode:
        raise NoWheelsError(f"{target}: {_why(done.stderr)}")
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / target).iterdir())
    }
