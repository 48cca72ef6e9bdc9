"""Warnings in the log that the coordinator's own certificate or its CA ends soon."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Never

import structlog

from muster.daemon.clock import Clock
from muster.protocol.certificate_ends import end_warning

_LOOK_EVERY_S: Final = 86400.0

_log = structlog.get_logger("coordinator.certificates")


async def watch_ends(files: Mapping[str, Path], clock: Clock) -> Never:
    """Log a warning at once and then daily for each file (by its setting) that ends soon."""
    while True:
        for why in await asyncio.to_thread(ending, files, clock.now().wall):
            _log.warning("certificate_ends", why=why)
        await asyncio.sleep(_LOOK_EVERY_S)


def ending(files: Mapping[str, Path], now: float) -> list[str]:
    """Return a warning for each file whose certificate ends soon. `now` is UTC seconds. A file that
    cannot be read is reported elsewhere.
    """
    # Imported late, because only a coordinator with TLS needs it.
    from muster.daemon.certificates import validity

    found = []
    for setting, path in files.items():
        try:
            begins, expires = validity(path.read_bytes())
        except (OSError, ValueError):
            continue
        found.append(end_warning(f"{setting} {path}", begins, expires, now))
    return [why for why in found if why]
