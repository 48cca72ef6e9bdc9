"""A hosts file stays the file that it was, and what cannot be changed is a refusal in words."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.hostsfile import atomic_exchange
from agent.hostsfile import editor as hosts_file
from agent.hostsfile.editor import HostsFile, HostsFileError
from tests.agent.hostsfile.changes import BASE, alone, put, take


def test_a_block_comes_and_goes_and_nothing_else_has_changed(path: Path, file: HostsFile) -> None:
    inode = path.stat().st_ino
    file.update(put)
    assert path.read_bytes() == put(BASE)
    assert path.stat().st_ino != inode
    assert path.stat().st_mode & 0o7777 == 0o640
    file.update(take)
    assert path.read_bytes() == BASE
    assert alone(path)


def test_the_previous_text_is_kept_in_a_copy(path: Path, file: HostsFile, tmp_path: Path) -> None:
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


def test_an_exception_in_a_change_changes_nothing(path: Path, file: HostsFile) -> None:
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
        with pytest.raises(HostsFileError, match=r"is a link to itself: replace it by a file"):
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


@pytest.mark.parametrize("in_place", [False, True])
def test_a_lock_of_a_process_that_only_reads_delays_a_change_once(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch, *, in_place: bool
) -> None:
    """Every user can lock a file that it may read."""
    monkeypatch.setattr(hosts_file, "LOCK_S", 0.05)
    ends: list[float] = []
    lock = atomic_exchange.lock

    def locked(fd: int, until: float) -> bool:
        ends.append(until)
        return lock(fd, until)

    monkeypatch.setattr(atomic_exchange, "lock", locked)
    if in_place:
        os.link(path, path.with_name("second name"))
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        file.update(put)
    assert path.read_bytes() == put(BASE)
    assert len(set(ends)) == 1
    assert len(ends) == 1 + in_place


def test_a_lock_of_a_process_that_writes_is_a_refusal_in_words(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_file, "LOCK_S", 0.05)
    monkeypatch.setattr(hosts_file, "QUIET_S", 0.05)
    with path.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(HostsFileError, match="open for writing in another process"):
            file.update(put)
    file.update(put)
