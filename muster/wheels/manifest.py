"""The manifest of a folder of wheels: the only names that the coordinator serves."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec

from muster.daemon.errors import FileError

MANIFEST: Final = "manifest.json"
TARGET: Final = r"^3\.[1-9][0-9]-[a-z0-9_]{1,32}(?!\n)$"
CURL_LIMITS: Final = "--proto =https --connect-timeout 10 --speed-limit 1024 --speed-time 30"
"""Options of curl for downloads from a coordinator: no call waits for ever."""
_BYTES_MAX: Final = 1 << 20
_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._+]{0,99}"
# Name, version, perhaps a build number, three tags. Nothing in it is special to a shell.
_WHEEL: Final = rf"^({_PART}-){{4,5}}{_PART}\.whl(?!\n)$"

_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]
_Wheels = Annotated[
    dict[Annotated[str, msgspec.Meta(pattern=_WHEEL)], _Sha256], msgspec.Meta(max_length=200)
]
_Targets = Annotated[
    dict[Annotated[str, msgspec.Meta(pattern=TARGET)], _Wheels], msgspec.Meta(max_length=32)
]


class WheelManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wheels of each target, such as `3.12-aarch64`, with their SHA-256. `requirements` is the
    SHA-256 of the requirements from which the folder was filled.
    """

    requirements: _Sha256
    targets: _Targets

    def wheels(self) -> frozenset[str]:
        """Return the names of all wheels."""
        return frozenset(name for wheels in self.targets.values() for name in wheels)


def read_manifest(folder: Path) -> WheelManifest | None:
    """Return the manifest of a folder, or None if there is none. Raises FileError."""
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if len(data) > _BYTES_MAX:
            raise ValueError(f"has more than {_BYTES_MAX} bytes")
        return msgspec.json.decode(data, type=WheelManifest)
    except ValueError as error:
        raise FileError(f"{path} is not a manifest of wheels: {error}") from error


def own_target() -> str:
    """Return the target of this interpreter and machine."""
    return f"{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}"
