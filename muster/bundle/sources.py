"""Memory of the folder from which a bundle was sent, for sending it again with its changes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".folder"
_KEPT: Final = 1000


def remember(cache: Path, sha256: str, folder: Path) -> None:
    """Note the folder of a bundle. Best effort; the oldest notes are dropped."""
    new = cache / f"{sha256}.{os.urandom(4).hex()}"
    with contextlib.suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            new.write_bytes(os.fsencode(folder))
            new.replace(cache / f"{sha256}{_SUFFIX}")
        finally:
            new.unlink(missing_ok=True)
        notes = sorted(cache.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for path in notes[:-_KEPT]:
            path.unlink()


def folder_of(cache: Path, sha256: str) -> Path | None:
    """Return the folder from which this machine has sent a bundle, or None."""
    try:
        folder = Path(os.fsdecode((cache / f"{sha256}{_SUFFIX}").read_bytes()))
    except OSError:
        return None
    return folder if folder.is_absolute() else None
