"""Content of bundles on a node: verified, copied, never shared with a job, cleaned."""

import os
import stat
import subprocess
from functools import partial
from pathlib import Path

import pytest

from agent.code.store import CodeStore, DamagedError
from agent.taskdirs.taskdirs import DiskFullError, Owner, TaskDirs
from muster.bundle.manifest import (
    CHUNK_BYTES,
    BadManifestError,
    CodeManifest,
    File,
    TreeLink,
    digest,
    encode,
)
from muster.bundle.pack import pack, unpack
from muster.daemon.errors import FileError
from tests.agent.daemon.test_one_task import prepare
from tests.small_disk import small_disk

PARTS = (b"a" * CHUNK_BYTES, b"b" * 10)
LARGE = File("d/e/large", CHUNK_BYTES + 10, True, tuple(map(digest, PARTS)))
SMALL = File("small", 5, False, (digest(b"small"),))
TREE = CodeManifest((LARGE, SMALL, File("empty", 0, False, ())), (TreeLink("d/l", "../small"),))
ALL = pack((digest(data), data) for data in (*PARTS, b"small"))


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    made = CodeStore(tmp_path / "code")
    made.prepare()
    return made


def copy(store: CodeStore, folder: Path, owner: Owner | None = None) -> Path:
    folder.mkdir(mode=0o700)
    store.copy(TREE, folder, owner)
    return folder


def test_a_copy_ends_when_its_agent_does(store: CodeStore, tmp_path: Path) -> None:
    store.keep(unpack(ALL))
    (tmp_path / "made").mkdir()
    asked = iter([False, True])
    with pytest.raises(FileError, match="is being stopped"):
        store.copy(TREE, tmp_path / "made", None, stopped=lambda: next(asked))
    found = [path.name for path in (tmp_path / "made").rglob("*") if path.is_file()]
    assert found == ["large"]


def test_a_tree_is_made_of_its_content(store: CodeStore, tmp_path: Path) -> None:
    assert store.missing(TREE) == TREE.chunks()
    assert store.keep(unpack(ALL)) == set(TREE.chunks())
    assert store.missing(TREE) == {}
    old = os.umask(0o077)
    try:
        made = copy(store, tmp_path / "made")
    finally:
        os.umask(old)
    assert (made / "d/e/large").read_bytes() == b"".join(PARTS)
    assert (made / "d/l").read_bytes() == b"small"
    assert (made / "empty").read_bytes() == b""
    modes = {p: stat.S_IMODE((made / p).stat().st_mode) for p in ("d/e/large", "small", "d/e")}
    assert modes == {"d/e/large": 0o755, "small": 0o644, "d/e": 0o755}


def test_a_job_that_edits_its_code_changes_no_other(store: CodeStore, tmp_path: Path) -> None:
    store.keep(unpack(ALL))
    first = copy(store, tmp_path / "first")
    for name in ("small", "d/e/large"):
        assert (first / name).stat().st_nlink == 1
        with (first / name).open("r+b") as file:
            file.write(b"other")
    second = copy(store, tmp_path / "second")
    assert (second / "small").read_bytes() == b"small"
    assert (second / "d/e/large").read_bytes() == b"".join(PARTS)


def test_a_flipped_bit_on_the_disk_is_found_and_removed(store: CodeStore, tmp_path: Path) -> None:
    store.keep(unpack(ALL))
    name = digest(PARTS[1])
    (path,) = (tmp_path / "code").glob(f"chunks/??/{name}")
    path.write_bytes(b"b" * 9 + b"c")
    with pytest.raises(DamagedError, match=name):
        copy(store, tmp_path / "made")
    assert store.missing(TREE) == {name: 10}


def test_manifests_are_verified(store: CodeStore, tmp_path: Path) -> None:
    data = encode(TREE)
    with pytest.raises(BadManifestError):
        store.keep_manifest(digest(b"x"), data)
    name = digest(data)
    made = store.keep_manifest(name, data)
    assert store.manifest(name) == made
    (tmp_path / "code/manifests" / name).write_bytes(data[:-1])
    assert store.manifest(name) is None
    assert store.manifest("0" * 64) is None


def test_half_written_content_is_removed_at_the_start(store: CodeStore, tmp_path: Path) -> None:
    (tmp_path / "code/chunks/ab").mkdir()
    left = [tmp_path / "code/chunks/ab/.new-1", tmp_path / "code/manifests/.new-2"]
    for path in left:
        path.write_bytes(b"x")
    store.prepare()
    assert not any(path.exists() for path in left)


def test_what_was_used_least_recently_is_cleaned(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "code", bytes_max=CHUNK_BYTES + 5)
    store.prepare()
    store.keep(unpack(ALL))
    names = [digest(data) for data in (*PARTS, b"small")]
    for age, name in enumerate(names):
        (path,) = (tmp_path / "code").glob(f"chunks/??/{name}")
        os.utime(path, (1000 - age, 1000 - age))
    assert store.clean({names[2]}, 1000.0) == 1  # the pinned one is older, and stays
    assert store.missing(TREE) == {names[1]: 10}
    assert store.clean(set(), 1000.0 + 15 * 86400) == 2


@pytest.mark.root
def test_the_copy_belongs_to_the_user_of_the_job(store: CodeStore, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    store.keep(unpack(ALL))
    made = copy(store, tmp_path / "made", Owner("nobody", 65534, 65534))
    found = [made, *made.rglob("*")]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in found} == {(65534, 65534)}
    kept = [path for path in (tmp_path / "code").rglob("*") if path.is_file()]
    assert {(p.stat().st_uid, stat.S_IMODE(p.stat().st_mode)) for p in kept} == {(0, 0o600)}


def test_a_chunk_of_another_size_is_not_copied(store: CodeStore, tmp_path: Path) -> None:
    store.keep(unpack(ALL))
    many = CodeManifest((File("a", 1, False, (digest(PARTS[0]),)),))
    (tmp_path / "made").mkdir()
    with pytest.raises(DamagedError):
        store.copy(many, tmp_path / "made", None)


@pytest.mark.root
def test_a_copy_needs_room_for_the_whole_tree(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24 << 20) as disk:
        store = CodeStore(disk / "code")
        store.prepare()
        store.keep(unpack(ALL))
        (disk / "made").mkdir()
        with pytest.raises(DiskFullError, match="16 MiB stay free"):
            store.copy(TREE, disk / "made", None)
        assert list((disk / "made").iterdir()) == []


@pytest.mark.root
def test_a_disk_that_fills_leaves_nothing_half_made(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        store = CodeStore(disk / "code")
        store.prepare()
        with pytest.raises(DiskFullError):
            store.keep(unpack(ALL))
        assert [path for path in disk.rglob("*") if path.is_file()] == []
        subprocess.run(["mount", "-o", "remount,size=32m", str(disk)], check=True)
        store.keep(unpack(ALL))
        assert store.missing(TREE) == {}


@pytest.mark.root
def test_a_disk_that_fills_while_code_is_copied_leaves_no_task(tmp_path: Path) -> None:
    """The inodes end, which no check before the copy counts."""
    store = CodeStore(tmp_path / "code")
    store.prepare()
    store.keep(unpack(ALL))
    with small_disk(tmp_path / "disk", 64 << 20, inodes=40) as disk:
        fillers = [disk / f"{number}" for number in range(26)]
        for path in fillers:
            path.touch()
        tasks = TaskDirs(disk)
        with pytest.raises(DiskFullError):
            tasks.create(prepare(bundle="b"), (), None, partial(store.copy, TREE))
        assert tasks.found() == []
        assert list((disk / "tasks").iterdir()) == []
        for path in fillers:
            path.unlink()
        paths = tasks.create(prepare(bundle="b"), (), None, partial(store.copy, TREE))
        assert Path(paths.workdir, "small").read_bytes() == b"small"


@pytest.mark.parametrize(
    "tree",
    [
        CodeManifest((File("../x", 0, False, ()),)),
        CodeManifest((), (TreeLink("a", "/etc"),)),
        CodeManifest((File("a", 0, False, ()), File("A", 0, False, ()))),
        CodeManifest((File("x/" * 64 + "a", 0, False, ()),)),
    ],
)
def test_a_tree_that_cannot_be_made_is_not_kept(
    store: CodeStore, tmp_path: Path, tree: CodeManifest
) -> None:
    """From any sender, and under its right name."""
    data = encode(tree)
    with pytest.raises(BadManifestError):
        store.keep_manifest(digest(data), data)
    assert list((tmp_path / "code/manifests").iterdir()) == []


def test_manifests_count_as_chunks_do(tmp_path: Path) -> None:
    data = encode(TREE)
    store = CodeStore(tmp_path / "code", bytes_max=len(data))
    store.prepare()
    for number in range(3):
        tree = CodeManifest((File(f"{number}", 0, False, ()),))
        each = encode(tree)
        store.keep_manifest(digest(each), each)
        os.utime(tmp_path / "code/manifests" / digest(each), (number, number))
    store.keep_manifest(digest(data), data)
    os.utime(tmp_path / "code/manifests" / digest(data), (9, 9))
    assert store.clean(set(), 10.0) == 3
    assert store.manifest(digest(data)) is not None
