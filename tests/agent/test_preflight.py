"""Disks and mounts, looked at before a task begins: also one that hangs."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from agent import preflight
from agent.preflight import PreflightError, look
from muster.protocol.ids import TaskId
from muster.protocol.messages import PrepareTask


def order(workdir: Path | None = None, *, asked: bool = True) -> PrepareTask:
    where = None if workdir is None else str(workdir)
    return PrepareTask(TaskId("1.1.0"), "none", where, None, (), {}, 60.0, preflight=asked)


def test_a_sound_node_passes(tmp_path: Path) -> None:
    asyncio.run(look(order(tmp_path), tmp_path))
    asyncio.run(look(order(tmp_path / "told by whoever needs it"), tmp_path))


def test_a_file_system_that_hangs_is_named_and_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, real = threading.Event(), os.statvfs
    hung = tmp_path / "hung"

    def statvfs(place: Any) -> os.statvfs_result:
        if place == hung:
            answer.wait()
        return real(tmp_path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    try:
        with pytest.raises(PreflightError, match=f"file system of {hung} does not answer"):
            asyncio.run(look(order(hung), tmp_path, answer_s=0.1))
        asyncio.run(look(order(hung, asked=False), tmp_path))
    finally:
        answer.set()


def test_a_disk_that_is_nearly_full_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "FREE_BYTES", 1 << 60)
    with pytest.raises(PreflightError, match=f"MiB are free on the disk of {tmp_path}"):
        asyncio.run(look(order(), tmp_path))
