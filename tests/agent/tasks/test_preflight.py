"""Disks and mounts, looked at before a task begins: also one that hangs."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
from pathlib import Path
from typing import Any

import pytest

from agent.taskdirs.taskdirs import Owner
from agent.tasks import preflight
from agent.tasks.preflight import PreflightError, look
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import PrepareTask


def order(workdir: Path | None = None, *, asked: bool = True) -> PrepareTask:
    where = None if workdir is None else str(workdir)
    return PrepareTask(TaskId("1.1.0"), "none", where, None, (), {}, 60.0, preflight=asked)


def test_a_sound_node_passes(tmp_path: Path) -> None:
    asyncio.run(look(order(tmp_path), tmp_path))
    asyncio.run(look(order(tmp_path / "refused by the task that needs it"), tmp_path))


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


def test_a_disk_that_is_nearly_full_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "FREE_BYTES", 1 << 60)
    with pytest.raises(PreflightError, match=f"MiB are free on the disk of {tmp_path}"):
        asyncio.run(look(order(), tmp_path))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user's rights")
def test_paths_of_the_job_are_checked_with_the_rights_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = pwd.getpwnam("nobody")
    owner = Owner(entry.pw_name, entry.pw_uid, entry.pw_gid)
    hidden = tmp_path / "hidden" / "folder"
    hidden.mkdir(parents=True)
    hidden.parent.chmod(0o700)
    answers: list[str] = []
    real = os.statvfs

    def statvfs(place: Any) -> os.statvfs_result:
        try:
            found = real(place)
        except OSError as error:
            answers.append(f"{place}: {error.strerror}")
            raise
        answers.append(f"{place}: seen")
        return found

    monkeypatch.setattr(os, "statvfs", statvfs)
    # The start itself reports a folder that the user cannot enter, as if it were missing.
    asyncio.run(look(order(hidden), tmp_path, owner))
    assert sorted(answers) == sorted([f"{tmp_path}: seen", f"{hidden}: Permission denied"])
