"""A wheel of the Muster that runs, made from its own files.

In an installation and in a source tree the packages lie side by side, so one walk serves both, and
neither a compiler nor a build backend is needed. Equal files give an equal wheel.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import muster
from muster.daemon.errors import FileError

_DISTRIBUTION: Final = "muster-cluster"
_PACKAGES: Final = ("agent", "muster", "orchestrator")
_SHARED: Final = (
    "requirements.txt",
    "systemd/muster-agent.service",
    "systemd/muster-coordinator.service",
)
_ROOT: Final = Path(muster.__file__).resolve().parents[1]


class Wheel(NamedTuple):
    """The file name of a wheel and its content."""

    name: str
    data: bytes


def shared_file(name: str) -> bytes:
    """Return the content of a file that comes with the packages. Raises FileError."""
    tree = (_ROOT / "pyproject.toml").is_file()
    path = (_ROOT if tree else Path(sys.prefix) / "share" / "muster") / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error


def pack() -> Wheel:
    """Make the wheel. Raises FileError."""
    try:
        found = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise FileError(f"{_DISTRIBUTION} is not installed in {sys.prefix}") from error
    base = f"{_DISTRIBUTION.replace('-', '_')}-{found.version}"
    info = f"{base}.dist-info"
    files = {
        path.relative_to(_ROOT).as_posix(): path.read_bytes()
        for package in _PACKAGES
        for path in sorted((_ROOT / package).rglob("*"))
        if path.suffix == ".py" or path.name == "py.typed"
    }
    files |= {f"{base}.data/data/share/muster/{name}": shared_file(name) for name in _SHARED}
    files[f"{info}/METADATA"] = (found.read_text("METADATA") or "").encode()
    files[f"{info}/entry_points.txt"] = (found.read_text("entry_points.txt") or "").encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    lines = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return Wheel(f"{base}-py3-none-any.whl", made.getvalue())


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
