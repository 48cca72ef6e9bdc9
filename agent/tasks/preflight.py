"""`preflight: quick`: check the disks and mounts that a task needs before it starts.

A file system that hangs may block a caller forever. So each check has a thread of its own, which is
abandoned on timeout. Paths that the job names are checked with the rights of the job's user.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Final

from agent.monitors.checkpoints import become
from agent.taskdirs.taskdirs import Owner, TaskUser
from muster.daemon.errors import DaemonError
from muster.protocol.link.control_channel import PrepareTask

ANSWER_S: Final = 1.0
FREE_BYTES: Final = 1 << 30


class PreflightError(DaemonError):
    """Something is wrong with this node; the text is a sentence."""


async def look(
    prepare: PrepareTask,
    state_dir: Path,
    owner: Owner | None = None,
    *,
    answer_s: float = ANSWER_S,
) -> None:
    """Check the node if the job asks for it. `owner`: the job's user, None for the agent's own.
    Raises PreflightError with everything found."""
    if not prepare.preflight:
        return
    asked = [state_dir, *(Path(path) for path in (prepare.workdir, prepare.python) if path)]
    places = [place for place in dict.fromkeys(asked) if place.is_absolute()]
    found = await asyncio.gather(
        *(
            _wrong(place, answer_s, FREE_BYTES, None)
            if place == state_dir
            else _wrong(place, answer_s, 0, owner)
            for place in places
        )
    )
    if problems := [text for text in found if text]:
        raise PreflightError("preflight: " + "; ".join(problems))


async def _wrong(place: Path, answer_s: float, least: int, owner: Owner | None) -> str:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[os.statvfs_result | OSError] = loop.create_future()
    threading.Thread(
        target=_ask, args=(place, owner, loop, answer), name="preflight", daemon=True
    ).start()
    try:
        disk = await asyncio.wait_for(asyncio.shield(answer), answer_s)
    except TimeoutError:
        return f"the file system of {place} does not answer within {answer_s:g} s"
    if isinstance(disk, FileNotFoundError | PermissionError):
        return ""  # the step that needs the path reports it
    if isinstance(disk, OSError):
        return f"{place} cannot be examined: {disk.strerror}"
    free = disk.f_bavail * disk.f_frsize
    if free < least:
        return f"{free >> 20} MiB are free on the disk of {place}, and a start wants {least >> 20}"
    return ""


def _ask(
    place: Path,
    owner: Owner | None,
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[os.statvfs_result | OSError],
) -> None:
    found: os.statvfs_result | OSError
    try:
        if owner is not None and os.geteuid() == 0:
            become(TaskUser(owner.uid, owner.gid))
        found = os.statvfs(place)
    except OSError as error:
        found = error

    def finish() -> None:
        if not answer.done():
            answer.set_result(found)

    try:
        loop.call_soon_threadsafe(finish)
    except RuntimeError:
        return  # the agent has ended meanwhile
