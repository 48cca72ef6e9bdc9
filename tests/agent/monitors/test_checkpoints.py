"""The folder of a job's checkpoints, watched: real files, a real thread."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.core.inputs import Input, TaskChanges, TaskObserved
from agent.monitors import checkpoints
from agent.monitors.checkpoints import (
    LOG_LOOKS,
    CheckpointFile,
    CheckpointMonitor,
    CheckpointWatch,
    become,
    changed,
    printable,
)
from agent.taskdirs.taskdirs import TaskUser
from muster.protocol.ids import TaskId

TASK = TaskId("1.1.0")


def write(path: Path, text: str = "x", *, at: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if at is not None:
        os.utime(path, (at, at))


def test_files_are_found_wherever_they_are(tmp_path: Path) -> None:
    assert changed(str(tmp_path)) == []
    write(tmp_path / "a", at=100)
    write(tmp_path / "step-2" / "model.pt", "weights", at=300)
    write(tmp_path / "b", at=200)
    assert max(changed(str(tmp_path))) == CheckpointFile(300 * 10**9, "step-2/model.pt", 7)
    assert {f.name for f in changed(str(tmp_path), CheckpointFile(100 * 10**9, "a", 1))} == {
        "b",
        "step-2/model.pt",
    }


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside / "secret", at=900)
    folder = tmp_path / "folder"
    write(folder / "a", at=100)
    (folder / "link").symlink_to(outside)
    os.utime(folder / "link", (500, 500), follow_symlinks=False)
    assert [file.name for file in changed(str(folder))] == ["a"]


def test_it_looks_at_so_many_entries_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "ENTRIES_MAX", 10)
    for number in range(50):
        write(tmp_path / f"{number}" / "model.pt")
    looked: list[int] = []
    real = os.scandir

    def counted(path: int) -> object:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", counted)
    changed(str(tmp_path))
    assert 0 < len(looked) <= 11


def test_a_file_still_being_written_counts_once_it_has_settled(tmp_path: Path) -> None:
    write(tmp_path / "old", at=100)
    seen: list[str] = []
    watch = CheckpointWatch(str(tmp_path), seen.append)
    watch.look()
    assert seen == []
    write(tmp_path / "new", "half", at=200)
    watch.look()
    write(tmp_path / "new", "half and the rest", at=201)
    watch.look()
    assert seen == []
    watch.look()
    watch.look()
    assert seen == ["new"]
    write(tmp_path / "new", "again", at=300)
    watch.look()
    watch.look()
    assert seen == ["new", "new"]


def test_a_checkpoint_of_many_files_counts_once_all_are_settled(tmp_path: Path) -> None:
    seen: list[str] = []
    watch = CheckpointWatch(str(tmp_path), seen.append)
    for shard in range(4):
        write(tmp_path / "step-1" / f"{shard}.pt", at=100 + shard)
        watch.look()
    assert seen == []
    watch.look()
    assert seen == ["step-1/3.pt"]


def test_a_busy_file_elsewhere_hides_no_checkpoint(tmp_path: Path) -> None:
    """Trainers may keep their curves beside their checkpoints."""
    seen: list[str] = []
    watch = CheckpointWatch(str(tmp_path), seen.append)
    for number in range(3):
        write(tmp_path / "runs" / "events", at=200 + number)
        write(tmp_path / "step-1" / "model.pt", at=100)
        watch.look()
    assert seen == ["step-1/model.pt"]


def test_a_log_beside_a_checkpoint_hides_it_for_a_while(tmp_path: Path) -> None:
    seen: list[str] = []
    watch = CheckpointWatch(str(tmp_path), seen.append)
    for number in range(LOG_LOOKS):
        assert seen == []
        write(tmp_path / "train.log", at=1000 + number)
        write(tmp_path / "model.pt", at=100)
        watch.look()
    assert seen == ["model.pt"]


def test_a_folder_that_is_made_later_is_watched(tmp_path: Path) -> None:
    seen: list[str] = []
    watch = CheckpointWatch(str(tmp_path / "later"), seen.append)
    watch.look()
    write(tmp_path / "later" / "step-1")
    watch.look()
    watch.look()
    assert seen == ["step-1"]


def test_names_are_shown_as_they_can_be() -> None:
    assert printable("a\x1b[31m\udcff") == "a?[31m?"
    assert len(printable("x" * 1000)) == 200


def test_a_thread_of_its_own_notifies_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    class Begun(CheckpointWatch):
        """Sets the event only after the constructor has read the folder."""

        def __init__(self, folder: str, seen: Callable[[str], None]) -> None:
            super().__init__(folder, seen)
            begun.set()

    monkeypatch.setattr(checkpoints, "CheckpointWatch", Begun)

    async def main() -> list[Input]:
        posted: asyncio.Queue[Input] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        watched = CheckpointMonitor(
            lambda _: TaskUser(os.geteuid(), os.getegid()),
            posted.put_nowait,
            loop.call_soon_threadsafe,
            every_s=0.01,
        )
        watched.begin(TASK, str(tmp_path / "ckpt"))
        watched.begin(TaskId("2.1.0"), None)
        assert await asyncio.to_thread(begun.wait, 60)
        write(tmp_path / "ckpt" / "step-1")
        async with asyncio.timeout(180):
            first = await posted.get()
        watched.end(TASK)
        return [first]

    assert asyncio.run(main()) == [TaskObserved(TASK, TaskChanges(checkpoint="step-1"))]


@pytest.mark.root
def test_it_looks_with_the_rights_of_the_jobs_user(tmp_path: Path) -> None:
    """And only in that thread."""
    secret = tmp_path / "secret"
    write(secret / "a")
    secret.chmod(0o700)
    tmp_path.chmod(0o755)
    assert as_nobody(str(secret)) == "refused"
    assert changed(str(secret))


@pytest.mark.root
def test_the_agents_links_in_proc_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would lead past the permissions of the directories above."""
    write(tmp_path / "secret" / "open" / "a")
    (tmp_path / "secret").chmod(0o700)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path / "secret" / "open")
    assert as_nobody("/proc/self/cwd") == "refused"


def test_proc_has_no_checkpoints() -> None:
    with pytest.raises(PermissionError):
        changed("/proc/self/fdinfo")


def as_nobody(folder: str) -> str:
    """Read a directory with the rights of another user; return what is seen."""
    entry = pwd.getpwnam("nobody")
    seen: list[str] = []

    def look() -> None:
        become(TaskUser(entry.pw_uid, entry.pw_gid))
        try:
            seen.append(", ".join(file.name for file in changed(folder)))
        except PermissionError:
            seen.append("refused")

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(300)
    return seen[0]
