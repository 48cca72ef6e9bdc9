"""This process as the shim of a task: its children are processes of the task."""

from __future__ import annotations

import os
from pathlib import Path

from agent.shim import exit_record
from agent.taskdirs.taskdirs import SCRATCH


def be_shim_of(folder: Path, uid: int | None = None) -> None:
    """`uid`: the user of the task, if it is not this process's."""
    scratch = folder / SCRATCH
    scratch.mkdir(parents=True, exist_ok=True)
    if uid is not None:
        os.chown(scratch, uid, uid)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        exit_record.write_identity(fd, folder.name, f"{folder.name}:{os.getpid()}:0", None)
    finally:
        os.close(fd)
