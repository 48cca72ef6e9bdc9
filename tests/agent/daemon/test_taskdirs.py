"""Folders of tasks: whose they are, and how they go."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from agent.core.record import TaskRecord
from agent.taskdirs.rmtree import remove_tree
from agent.taskdirs.taskdirs import MANIFEST, Owner, TaskDirs
from muster.daemon.errors import FileError
from muster.protocol.ids import BadId, TaskId
from muster.protocol.link.control_channel import StopTask
from tests.agent.daemon.test_one_task import TASK, prepare

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")
NOBODY = Owner("nobody", 65534, 65534)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"task":"\xff"}'])
def test_a_damaged_manifest_is_none(tmp_path: Path, damage: bytes) -> None:
    folders = TaskDirs(tmp_path)
    folders.create(prepare(), ())
    (folders.path(TASK) / MANIFEST).write_bytes(damage)
    assert folders.manifest(TASK) is None


def test_a_task_gets_its_folders_and_a_manifest(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    asked = prepare(env={"A": "b"})
    paths = folders.create(asked, (20_000,))
    folder = folders.path(TASK)
    assert paths.workdir == paths.scratch == str(folder / "scratch")
    assert paths.output == str(tmp_path / "output/7/1")
    assert {mode(Path(path)) for path in (folder, paths.scratch, paths.output)} == {0o700}
    assert mode(folder / "task.json") == 0o600
    manifest = folders.manifest(TASK)
    assert manifest is not None
    assert (manifest.prepare, manifest.paths, manifest.ports) == (asked, paths, (20_000,))
    assert folders.found() == [TASK]


def test_a_folder_of_a_job_is_its_cwd_if_it_names_one(tmp_path: Path) -> None:
    assert TaskDirs(tmp_path).create(prepare(workdir="/data"), ()).workdir == "/data"


def test_a_task_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    folders.create(prepare(), (1,))
    with pytest.raises(FileError):
        folders.create(prepare(), (2,))
    manifest = folders.manifest(TASK)
    assert manifest is not None
    assert manifest.ports == (1,)
    assert os.listdir(tmp_path / "tasks") == [TASK]


@pytest.mark.parametrize("name", ["../x", "1.1", "", "1.1.0/..", "01.1.0"])
def test_no_other_text_becomes_a_path(tmp_path: Path, name: str) -> None:
    folders = TaskDirs(tmp_path)
    for act in (folders.path, folders.remove):
        with pytest.raises(BadId):
            act(TaskId(name))


@root_only
def test_a_users_folders_are_the_users_and_the_rest_is_not(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path, others=True)
    paths = folders.create(prepare(), (), NOBODY)
    folder = folders.path(TASK)
    for path in (Path(paths.scratch), Path(paths.output)):
        assert (path.stat().st_uid, mode(path)) == (NOBODY.uid, 0o700)
    for path in (folder, Path(paths.output).parent):
        assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (0, NOBODY.gid, 0o710)
    assert (folder / "task.json").stat().st_uid == 0
    assert mode(tmp_path / "tasks") == 0o711


def test_a_removal_follows_no_link_and_minds_no_depth(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    folders.create(prepare(), ())
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    scratch = folders.path(TASK) / "scratch"
    (scratch / "link").symlink_to(outside)
    (scratch / "closed/inside").mkdir(parents=True)
    (scratch / "closed").chmod(0)
    # Deeper than Python's stack and than any path may be long.
    at = os.open(scratch, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("deeper", dir_fd=at)
        at, above = os.open("deeper", os.O_RDONLY, dir_fd=at), at
        os.close(above)
    os.close(at)
    folders.remove(TASK)
    assert os.listdir(tmp_path / "tasks") == []
    assert (outside / "kept").read_text() == "kept"
    folders.remove(TASK)


def test_a_record_is_kept_with_the_manifest_and_closed_to_the_job(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    folders.create(prepare(env={"A": "b"}), (1,))
    first = folders.manifest(TASK)
    assert first is not None
    assert first.record is None
    for stop in (None, StopTask(TASK)):
        record = TaskRecord("boot", "c1", stop=stop)
        folders.store(TASK, record)
        assert folders.manifest(TASK) == msgspec.structs.replace(first, record=record)
    assert (folders.path(TASK) / "task.json").stat().st_mode & 0o777 == 0o600
    folders.remove(TASK)
    with pytest.raises(FileError):
        folders.store(TASK, TaskRecord("boot", "c1"))


def test_a_removal_of_a_wide_folder_takes_no_memory_for_its_names(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    folders.create(prepare(), ())
    wide = folders.path(TASK) / "scratch/wide"
    wide.mkdir()
    for number in range(10_000):
        (wide / f"{number:0100}").touch()
    tracemalloc.start()
    try:
        folders.remove(TASK)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert os.listdir(tmp_path / "tasks") == []
    assert most < 512 << 10


Mount = Callable[[Path, Path], None]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Puts the first path over the second."""
    done: list[Path] = []

    def bind(source: Path, target: Path) -> None:
        argv = ["mount", "--bind", str(source), str(target)]
        if os.geteuid() != 0 or subprocess.run(argv, check=False, capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
        done.append(target)

    yield bind
    for target in done:
        subprocess.run(["umount", "--lazy", str(target)], check=False, capture_output=True)


@pytest.mark.parametrize("where", ["scratch", "scratch/data", "scratch/deep/er", "scratch/file"])
def test_mounts_of_a_job_are_detached_with_their_content_intact(
    tmp_path: Path, mount: Mount, where: str
) -> None:
    folders = TaskDirs(tmp_path)
    folders.create(prepare(), ())
    outside, target = tmp_path / "outside", folders.path(TASK) / where
    (outside / "below").mkdir(parents=True)
    kept = [outside / "kept", outside / "below/kept"]
    for path in kept:
        path.write_text("kept")
    if where == "scratch/file":
        target.touch()
        mount(outside / "kept", target)
    else:
        target.mkdir(parents=True, exist_ok=True)
        # Twice, as one may be mounted over the other.
        mount(outside, target)
        mount(outside, target)
    folders.remove(TASK)
    assert os.listdir(tmp_path / "tasks") == []
    assert [path.read_text() for path in kept] == ["kept", "kept"]
    assert str(tmp_path / "tasks") not in Path("/proc/self/mountinfo").read_text()


def test_an_agent_starts_despite_folders_it_cannot_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = TaskDirs(tmp_path)
    folders.create(prepare(), ())
    (tmp_path / "tasks/.gone-6.1.0").mkdir()

    def refuse(name: str, above: int) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", name)

    monkeypatch.setattr("agent.taskdirs.taskdirs.remove_tree", refuse)
    folders.remove_left(folders.set_aside())
    assert folders.found() == [TASK]
    assert (tmp_path / "tasks/.gone-6.1.0").exists()


def test_a_removal_that_was_cut_off_is_finished(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    cut_off = tmp_path / "tasks/.gone-6.1.0"
    for number in range(40):
        for name in (f".removed-{number}", f"scratch/{number}"):
            (cut_off / name / "deeper").mkdir(parents=True)
    (tmp_path / "tasks/.new-7.1.0/scratch").mkdir(parents=True)
    left = folders.set_aside()
    assert folders.found() == []
    folders.create(prepare(), ())
    folders.remove_left(left)
    assert os.listdir(tmp_path / "tasks") == [TASK]


def test_a_removal_has_a_bound_and_goes_on_later(tmp_path: Path) -> None:
    """A job may add entries as fast as they are removed."""
    for number in range(10):
        (tmp_path / "task" / str(number) / "deeper").mkdir(parents=True)
    above = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(TimeoutError):
            remove_tree("task", above, seconds=-1.0)
        remove_tree("task", above)
    finally:
        os.close(above)
    assert not (tmp_path / "task").exists()


def test_an_output_stays_unless_it_is_empty(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    folders.create(prepare(), ())
    paths = folders.create(prepare(TaskId("7.2.0")), ())
    (Path(paths.output) / "result").touch()
    folders.remove(TASK)
    assert os.listdir(tmp_path / "output/7") == ["2"]
    folders.remove(TaskId("7.2.0"))
    assert os.listdir(paths.output) == ["result"]
    folders.create(prepare(TaskId("8.1.0")), ())
    folders.remove(TaskId("8.1.0"))
    assert os.listdir(tmp_path / "output") == ["7"]


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (tmp_path / "task").symlink_to(outside)
    above = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Not a directory"):
            remove_tree("task", above)
    finally:
        os.close(above)
    assert (outside / "kept").read_text() == "kept"


def test_an_attempt_can_begin_while_the_one_before_it_is_removed(tmp_path: Path) -> None:
    folders = TaskDirs(tmp_path)
    with ThreadPoolExecutor(2) as both:
        for number in range(1, 200):
            old, new = (TaskId(f"7.{number + more}.0") for more in (0, 1))
            if number == 1:
                folders.create(prepare(old), ())
            begun = both.submit(folders.create, prepare(new), ())
            both.submit(folders.remove, old).result()
            assert Path(begun.result().output).is_dir()


@root_only
def test_the_output_of_one_user_is_not_handed_to_another(tmp_path: Path) -> None:
    """A job of the same number, in a cluster that was set up anew."""
    folders = TaskDirs(tmp_path, others=True)
    output = Path(folders.create(prepare(), (), Owner("ann", 47_111, 47_100)).output)
    (output / "result").touch()
    folders.remove(TASK)
    with pytest.raises(FileError, match="1 belongs to uid 47111"):
        folders.create(prepare(), (), NOBODY)
    assert output.stat().st_uid == 47_111
    assert os.listdir(tmp_path / "tasks") == []
