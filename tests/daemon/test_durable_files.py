"""Atomic writes and folder locks, with real processes to fight over them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.daemon.durable_files import lock_directory, write_atomic
from muster.daemon.errors import DirectoryLockedError, FileError

TREE = Path(__file__).resolve().parents[2]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_content_and_mode_are_as_asked_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write_atomic(tmp_path / "f", b"one", 0o644)
    finally:
        os.umask(old)
    assert (tmp_path / "f").read_bytes() == b"one"
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o644
    write_atomic(tmp_path / "f", b"two", 0o600)
    assert (tmp_path / "f").read_bytes() == b"two"
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o600
    assert names(tmp_path) == ["f"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("target")
    write_atomic(tmp_path / "link", b"new", 0o600)
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert not (tmp_path / "link").is_symlink()


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(FileError, match="f cannot be written"):
        write_atomic(tmp_path / "f", b"x", 0o600)
    assert names(tmp_path) == ["f"]
    with pytest.raises(FileError, match="No such file"):
        write_atomic(tmp_path / "none" / "f", b"x", 0o600)


WRITER = """
import sys
from pathlib import Path
from muster.daemon.durable_files import write_atomic
print("ready", flush=True)
for round in range(10**9):
    write_atomic(Path(sys.argv[1]), bytes([97 + round % 26]) * 200_000, 0o600)
"""


def start(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], cwd=TREE, stdout=subprocess.PIPE, text=True
    )


def test_a_writer_killed_at_any_point_leaves_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_atomic(file, b"a" * 200_000, 0o600)
    for _ in range(3):
        with start(WRITER, str(file)) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            for _ in range(200):
                seen = file.read_bytes()
                assert len(seen) == 200_000
                assert len(set(seen)) == 1
            writer.kill()
        seen = file.read_bytes()
        assert len(seen) == 200_000
        assert len(set(seen)) == 1


HOLDER = """
import sys
from pathlib import Path
from muster.daemon.durable_files import lock_directory
lock = lock_directory(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        cwd=TREE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_the_holder_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    with hold(folder) as holder:
        with pytest.raises(
            DirectoryLockedError, match=f"in use by process {holder.pid};"
        ) as caught:
            lock_directory(folder)
        assert caught.value.pid == holder.pid
        holder.send_signal(signal.SIGKILL)
    with lock_directory(folder) as lock:
        assert (folder / "lock").read_text() == f"{os.getpid()}\n"
        assert lock.fileno() >= 0
    assert folder.stat().st_mode & 0o7777 == 0o700


def test_release_lets_the_next_one_in(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path)
    with pytest.raises(DirectoryLockedError):
        lock_directory(tmp_path)
    lock.release()
    lock.release()
    lock_directory(tmp_path).release()


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be used as a state folder"):
        lock_directory(tmp_path / "file")


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(FileError):
        lock_directory(tmp_path / "state")
    assert (tmp_path / "precious").read_text() == "x"


def test_folders_above_let_others_pass_whatever_the_umask_is(tmp_path: Path) -> None:
    """Hardened shells of root have umask 077, and jobs run as other users."""
    before = os.umask(0o077)
    try:
        with lock_directory(tmp_path / "var/lib/agent"):
            modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("var", "var/lib")]
            assert modes == [0o711, 0o711]
            assert (tmp_path / "var/lib/agent").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
