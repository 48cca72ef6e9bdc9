"""A hosts file that others write, too: nothing of theirs is lost, and it stays the file it was."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest

from agent.hosts import file as hosts_file
from agent.hosts import linux
from agent.hosts.file import HostsFile, HostsFileError
from muster.protocol.hosts import with_block, without_blocks
from tests.agent.hosts import writers

BASE = b"127.0.0.1\tlocalhost\n# mine\n\n10.0.0.7 server\r\n\xff\0 odd"
TABLE = (("node-a", "10.0.0.1"), ("node-b", "10.0.0.2"))


def put(text: bytes) -> bytes:
    return with_block(text, "1.1", TABLE)


def put_another(text: bytes) -> bytes:
    return with_block(text, "7.1", TABLE)


def take(text: bytes) -> bytes:
    return without_blocks(text, ())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    folder.mkdir()
    path = folder / "hosts"
    path.write_bytes(BASE)
    path.chmod(0o640)
    return path


@pytest.fixture
def file(path: Path, tmp_path: Path) -> HostsFile:
    return HostsFile(path, tmp_path / "hosts.before")


def alone(path: Path) -> bool:
    return os.listdir(path.parent) == [path.name]


def test_a_block_comes_and_goes_and_nothing_else_has_changed(path: Path, file: HostsFile) -> None:
    inode = path.stat().st_ino
    file.update(put)
    assert path.read_bytes() == put(BASE)
    assert path.stat().st_ino != inode
    assert path.stat().st_mode & 0o7777 == 0o640
    file.update(take)
    assert path.read_bytes() == BASE
    assert alone(path)


def test_what_was_there_before_is_kept(path: Path, file: HostsFile, tmp_path: Path) -> None:
    file.update(put)
    assert (tmp_path / "hosts.before").read_bytes() == BASE


def test_no_change_writes_nothing(path: Path, file: HostsFile) -> None:
    before = path.stat()
    file.update(take)
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_attributes_are_kept(path: Path, file: HostsFile) -> None:
    try:
        os.setxattr(path, "user.label", b"of mine")
    except OSError as error:
        pytest.skip(f"needs extended attributes: {error}")
    file.update(put)
    assert os.getxattr(path, "user.label") == b"of mine"


def test_no_list_of_access_is_added(path: Path, file: HostsFile) -> None:
    """The folder has one for what is made in it."""
    # Version 2; the owner, a user of number 65534, the group, the most of both, all others.
    entries = ((1, 7, -1), (2, 6, 65534), (4, 5, -1), (0x10, 7, -1), (0x20, 5, -1))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path.parent, "system.posix_acl_default", value)
    except OSError as error:
        pytest.skip(f"needs access control lists: {error}")
    file.update(put)
    assert os.listxattr(path) == []
    assert path.stat().st_mode & 0o7777 == 0o640


@pytest.mark.root
def test_the_owner_is_kept(path: Path, file: HostsFile) -> None:
    os.chown(path, 65534, 65533)
    file.update(put)
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65533)


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("etc/hosts")
    HostsFile(link, tmp_path / "before").update(put)
    assert link.is_symlink()
    assert path.read_bytes() == put(BASE)


def test_a_file_with_two_names_keeps_both(path: Path, file: HostsFile) -> None:
    second = path.with_name("second")
    second.hardlink_to(path)
    file.update(put)
    assert second.read_bytes() == path.read_bytes() == put(BASE)
    file.update(take)
    assert second.read_bytes() == BASE


@pytest.fixture
def agents_umask() -> Iterator[None]:
    """The one that agents have."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("agents_umask")
def test_a_missing_file_is_made(path: Path, file: HostsFile) -> None:
    path.unlink()
    file.update(put)
    assert path.read_bytes() == put(b"")
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_a_change_raises_changes_nothing(path: Path, file: HostsFile) -> None:
    def refuse(_: bytes) -> bytes:
        raise LookupError

    with pytest.raises(LookupError):
        file.update(refuse)
    assert path.read_bytes() == BASE
    assert alone(path)


def test_no_file_is_a_refusal_in_words(path: Path, file: HostsFile) -> None:
    path.unlink()
    path.mkdir()
    with pytest.raises(HostsFileError, match="hosts"):
        file.update(put)


def test_a_link_that_leads_to_itself_is_a_refusal_in_words(path: Path, file: HostsFile) -> None:
    path.unlink()
    path.symlink_to(path.name)
    for change in (put, take):
        with pytest.raises(HostsFileError, match=r"leads to itself: put a file in its place"):
            file.update(change)


@pytest.mark.skipif(os.geteuid() == 0, reason="needs not to be the superuser")
def test_a_file_that_may_not_be_written_is_a_refusal_in_words(path: Path, file: HostsFile) -> None:
    path.chmod(0o444)
    with pytest.raises(HostsFileError, match="Permission denied"):
        file.update(put)


@pytest.mark.root
def test_a_file_that_may_only_be_read_is_none_where_it_need_not_change(
    mounted: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,bind,ro", mounted], check=True)
    HostsFile(mounted, tmp_path / "before").update(take)
    assert mounted.read_bytes() == BASE


def test_a_lock_that_nobody_gives_back_is_a_refusal_in_words(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_file, "LOCK_S", 0.05)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(HostsFileError, match="locked by another process"):
            file.update(put)
    file.update(put)


# --- another writer slips in ------------------------------------------------------------------


def slipping(monkeypatch: pytest.MonkeyPatch, *slips: Callable[[], None]) -> None:
    """Let each of these happen right before one exchange, the worst moment of all."""
    left = list(slips)
    real = linux.exchange

    def exchange(one: Path, other: Path) -> None:
        if left:
            left.pop(0)()
        real(one, other)

    monkeypatch.setattr(linux, "exchange", exchange)


@pytest.mark.parametrize("way", ["append", "rename"])
def test_who_slips_in_between_reading_and_exchange_is_merged(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    write = writers.WAYS[way]
    path.write_bytes(BASE + b"\n")
    slipping(monkeypatch, lambda: write(path, 1), lambda: write(path, 2))
    file.update(put)
    assert take(path.read_bytes()) == BASE + b"\n" + writers.line(1) + writers.line(2)
    assert alone(path)


def looking(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], None]) -> None:
    """Let each of these happen right before it is looked for a writer."""
    left = list(acts)
    real = linux.quiet

    def quiet(fd: int, until: float) -> bool:
        if left:
            left.pop(0)()
        return real(fd, until)

    monkeypatch.setattr(linux, "quiet", quiet)


def test_who_has_the_file_open_is_waited_for(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also who opens it between the look for him and the exchange."""
    path.write_bytes(BASE + b"\n")
    late = [path.open("ab", buffering=0)]
    go = [threading.Event(), threading.Event()]

    def write() -> None:
        for number, event in enumerate(go):
            event.wait(10.0)
            late[number].write(writers.line(number))
            late[number].close()

    looking(monkeypatch, go[0].set, go[1].set)
    slipping(monkeypatch, lambda: late.append(path.open("ab", buffering=0)))
    writer = threading.Thread(target=write)
    writer.start()
    file.update(put)
    writer.join()
    assert path.read_bytes() == put(BASE + b"\n" + writers.line(0) + writers.line(1))
    assert alone(path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_file, "QUIET_S", 0.05)


THEIRS = b"127.0.0.1 localhost\n10.9.9.9 server\n"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_who_writes_the_file_anew_and_is_slow_loses_nothing(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch, ours: bool, late: bool
) -> None:
    """Many empty it first. `late`: he opens it between the look for him and the exchange."""
    if ours:
        file.update(put)
    opened = []

    def open_() -> None:
        opened.append(path.open("wb", buffering=0))

    if late:
        slipping(monkeypatch, open_)
    else:
        open_()
    for _ in range(2):
        with pytest.raises(HostsFileError, match=f"{path} has been open for writing.*fuser"):
            file.update(put_another)
    opened[0].write(THEIRS)
    opened[0].close()
    assert path.read_bytes() == THEIRS
    file.update(put_another)
    assert take(path.read_bytes()) == THEIRS
    file.update(take)
    assert path.read_bytes() == THEIRS
    assert alone(path)


@pytest.mark.usefixtures("impatient")
def test_who_is_slow_takes_nothing_away_that_a_third_has_added(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(BASE + b"\n")
    opened = []
    slipping(
        monkeypatch,
        lambda: writers.rename(path, 1),
        lambda: opened.append(path.open("ab", buffering=0)),
    )
    with pytest.raises(HostsFileError, match="open for writing"):
        file.update(put)
    opened[0].write(writers.line(2))
    opened[0].close()
    file.update(take)
    assert sorted(path.read_bytes().removeprefix(BASE + b"\n").splitlines(keepends=True)) == [
        writers.line(1),
        writers.line(2),
    ]
    assert alone(path)


@pytest.mark.usefixtures("impatient")
def test_who_keeps_the_file_open_is_in_nobodys_way_where_nothing_changes(
    path: Path, file: HostsFile
) -> None:
    with path.open("ab"):
        file.update(take)
    assert path.read_bytes() == BASE


@pytest.mark.root
def test_who_may_not_ask_for_a_lease_takes_nobody_for_a_writer(path: Path) -> None:
    with path.open("rb") as file:
        os.seteuid(65534)
        try:
            assert linux.quiet(file.fileno(), time.monotonic())
        finally:
            os.seteuid(0)


def test_who_read_the_file_between_two_exchanges_takes_nothing_away(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw a file without the line that had just slipped in, and writes what it saw."""
    seen = b""

    def look() -> None:
        nonlocal seen
        seen = path.read_bytes()

    def write(_: float) -> None:
        new = path.with_name("other.tmp")
        new.write_bytes(seen + writers.line(2))
        new.rename(path)
        monkeypatch.setattr(time, "sleep", lambda _: None)

    path.write_bytes(BASE + b"\n")
    slipping(monkeypatch, lambda: writers.rename(path, 1), look)
    monkeypatch.setattr(time, "sleep", write)
    file.update(put)
    found = path.read_bytes()
    assert writers.line(1) in found
    assert writers.line(2) in found
    assert sorted(take(found).splitlines()) == sorted(
        [*BASE.splitlines(), *(writers.line(n).rstrip(b"\n") for n in (1, 2))]
    )


@pytest.mark.parametrize("way", list(writers.WAYS))
def test_hundreds_of_edits_beside_ours_are_all_there(path: Path, file: HostsFile, way: str) -> None:
    path.write_bytes(BASE + b"\n")
    edits = 1000
    beside(file, path, way, edits)
    found = path.read_bytes()
    if way != "rename":
        assert found == BASE + b"\n" + b"".join(writers.line(n) for n in range(edits))
    # One who renames may have read the file between two exchanges: then lines change places.
    assert found.startswith(BASE + b"\n")
    added = found.removeprefix(BASE + b"\n").splitlines(keepends=True)
    assert sorted(added) == sorted(writers.line(n) for n in range(edits))
    assert alone(path)


def beside(file: HostsFile, path: Path, way: str, edits: int) -> None:
    """Change the file without pause while another process does."""
    with subprocess.Popen([sys.executable, writers.__file__, way, path, "0", str(edits)]) as other:
        while other.poll() is None:
            file.update(put)
            file.update(take)
        assert other.returncode == 0
    file.update(take)


# --- a crash --------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("slips", [False, True])
def test_what_slipped_in_outlives_a_crash_at_the_exchange(
    path: Path,
    file: HostsFile,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    slips: bool,
) -> None:
    real = linux.exchange

    def exchange(one: Path, other: Path) -> None:
        if slips:
            writers.rename(path, 1)
        if moment == "after":
            real(one, other)
        raise Killed

    path.write_bytes(BASE + b"\n")
    monkeypatch.setattr(linux, "exchange", exchange)
    with pytest.raises(Killed):
        file.update(put)
    monkeypatch.setattr(linux, "exchange", real)
    file.update(take)
    assert path.read_bytes() == BASE + b"\n" + (writers.line(1) if slips else b"")
    assert alone(path)


@pytest.mark.parametrize("written", [0, 20, None])
@pytest.mark.parametrize("slips", [False, True])
def test_a_crash_while_the_new_text_is_written_loses_nothing(
    path: Path,
    file: HostsFile,
    monkeypatch: pytest.MonkeyPatch,
    written: int | None,
    slips: bool,
) -> None:
    """Also in the second exchange, which brings in again what slipped into the first."""
    path.write_bytes(BASE + b"\n")
    writes = 0

    def write(fd: int, data: bytes, at: int) -> None:
        nonlocal writes
        writes += 1
        if writes == 1 + slips:
            os.pwrite(fd, data[:written], at)
            raise Killed
        os.pwrite(fd, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(hosts_file, "_write_all", write)
        if slips:
            slipping(patch, lambda: writers.rename(path, 1))
        with pytest.raises(Killed):
            file.update(put)
    file.update(take)
    assert path.read_bytes() == BASE + b"\n" + (writers.line(1) if slips else b"")
    assert alone(path)


def test_what_slipped_into_the_second_exchange_outlives_a_crash_after_it(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(BASE + b"\n")
    with monkeypatch.context() as patch:
        slipping(patch, lambda: writers.rename(path, 1), lambda: writers.rename(path, 2))
        real = linux.exchange

        def exchange(one: Path, other: Path) -> None:
            real(one, other)
            if one.name.endswith(".next"):
                raise Killed

        patch.setattr(linux, "exchange", exchange)
        with pytest.raises(Killed):
            file.update(put)
    file.update(take)
    added = take(path.read_bytes()).removeprefix(BASE + b"\n").splitlines(keepends=True)
    assert sorted(added) == [writers.line(1), writers.line(2)]
    assert alone(path)


def test_a_file_that_another_was_emptying_when_all_died_is_not_believed(
    path: Path, file: HostsFile, tmp_path: Path
) -> None:
    (tmp_path / "hosts.before").write_bytes(BASE)
    path.with_name(".hosts.muster").touch()
    file.update(take)
    assert path.read_bytes() == BASE
    assert alone(path)


# --- in place ---------------------------------------------------------------------------------


@pytest.fixture
def mounted(path: Path, tmp_path: Path) -> Iterator[Path]:
    """The file as a bind mount, as in a container or under ReadWritePaths."""
    target = tmp_path / "mounted"
    target.touch()
    subprocess.run(["mount", "--bind", path, target], check=True)
    yield target
    subprocess.run(["umount", target], check=True)


@pytest.mark.usefixtures("impatient")
def test_who_writes_the_file_anew_and_is_slow_loses_nothing_in_place(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He opened it between the look for him and our writing."""
    opened: list[FileIO] = []

    def busy(_: Path, __: Path) -> None:
        if not opened:
            opened.append(path.open("wb", buffering=0))
        raise OSError(16, "busy")

    monkeypatch.setattr(hosts_file, "HOLD_S", 0.05)
    monkeypatch.setattr(linux, "exchange", busy)
    for _ in range(2):
        with pytest.raises(HostsFileError, match="open for writing"):
            file.update(put)
    opened[0].write(THEIRS)
    opened[0].close()
    assert path.read_bytes() == THEIRS
    file.update(put)
    assert path.read_bytes() == put(THEIRS)


@pytest.mark.usefixtures("impatient")
def test_who_reads_a_file_is_no_writer_of_it_in_place(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: Path, __: Path) -> None:
        raise OSError(16, "busy")

    monkeypatch.setattr(hosts_file, "HOLD_S", 0.05)
    monkeypatch.setattr(linux, "exchange", busy)
    with path.open("rb"):
        file.update(put)
    assert path.read_bytes() == put(BASE)


@pytest.mark.root
def test_a_file_that_is_mounted_on_is_written_in_place(mounted: Path, tmp_path: Path) -> None:
    file = HostsFile(mounted, tmp_path / "before")
    inode = mounted.stat().st_ino
    file.update(put)
    assert mounted.read_bytes() == put(BASE)
    assert mounted.stat().st_ino == inode
    file.update(take)
    assert mounted.read_bytes() == BASE


@pytest.mark.root
@pytest.mark.parametrize("way", ["append", "flock", "lockf"])
def test_edits_beside_ours_are_all_there_in_place(mounted: Path, tmp_path: Path, way: str) -> None:
    mounted.write_bytes(BASE + b"\n")
    beside(HostsFile(mounted, tmp_path / "before"), mounted, way, 100)
    assert mounted.read_bytes() == BASE + b"\n" + b"".join(writers.line(n) for n in range(100))


@pytest.mark.root
def test_a_file_that_is_mounted_read_only_is_a_refusal_in_words(
    mounted: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,bind,ro", mounted], check=True)
    with pytest.raises(HostsFileError, match="Read-only file system"):
        HostsFile(mounted, tmp_path / "before").update(put)


def test_a_block_in_the_middle_goes_in_place(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: Path, __: Path) -> None:
        raise OSError(16, "busy")

    monkeypatch.setattr(linux, "exchange", busy)
    path.write_bytes(BASE + b"\n")
    file.update(put)
    writers.append(path, 1)
    file.update(take)
    assert path.read_bytes() == BASE + b"\n" + writers.line(1)


BLOCK_FIRST = put(b"127.0.0.1 localhost\n") + b"10.1.1.1 after\n10.1.1.2 much later\n"


@pytest.mark.parametrize(("text", "change"), [(BASE + b"\n", put), (BLOCK_FIRST, take)])
@pytest.mark.parametrize("written", [0, 20, None])
@pytest.mark.parametrize("added", [b"", writers.line(1), b"# of others\n"])
def test_a_crash_while_it_is_written_in_place_loses_nothing(
    path: Path,
    file: HostsFile,
    monkeypatch: pytest.MonkeyPatch,
    text: bytes,
    change: Callable[[bytes], bytes],
    written: int | None,
    added: bytes,
) -> None:
    def busy(_: Path, __: Path) -> None:
        raise OSError(16, "busy")

    def write(fd: int, data: bytes, at: int) -> None:
        os.pwrite(fd, data[:written], at)
        if os.readlink(f"/proc/self/fd/{fd}") == str(path):
            raise Killed

    monkeypatch.setattr(linux, "exchange", busy)
    path.write_bytes(text)
    with monkeypatch.context() as patch:
        patch.setattr(hosts_file, "_write_all", write)
        with pytest.raises(Killed):
            file.update(change)
    with path.open("ab") as other:
        other.write(added)
    file.update(take)
    assert path.read_bytes() == take(text) + added
