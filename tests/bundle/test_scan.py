"""Scan of a folder: its files, what cannot travel, and what is not read again."""

import os
import socket
from pathlib import Path

import pytest

from muster.bundle import scan as scanning
from muster.bundle.index import RACY_NS, Index
from muster.bundle.manifest import CHUNK_BYTES, File, TreeLink, decode, digest
from muster.bundle.scan import ScanError, scan, too_large
from muster.bundle.suspects import data_sets, secrets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    (made / "lib").mkdir(parents=True)
    (made / "train.py").write_text("1")
    (made / "lib/a.py").write_text("22")
    (made / "lib/run").write_text("333")
    (made / "lib/run").chmod(0o755)
    (made / "lib/link").symlink_to("../train.py")
    (made / ".git").mkdir()
    (made / ".git/config").write_text("x")
    return made


def test_the_files_of_a_folder(folder: Path, tmp_path: Path) -> None:
    found = scan(folder, tmp_path / "cache")
    assert found.manifest.links == (TreeLink("lib/link", "../train.py"),)
    assert {file.path: file.size for file in found.manifest.files} == {
        "train.py": 1,
        "lib/a.py": 2,
        "lib/run": 3,
    }
    assert [file.path for file in found.manifest.files if file.executable] == ["lib/run"]
    assert decode(found.data).size == 6
    assert scan(folder, tmp_path / "other").sha256 == found.sha256
    (folder / "train.py").write_text("2")
    assert scan(folder, tmp_path / "cache").sha256 != found.sha256


def test_the_later_file_of_rules_wins(folder: Path, tmp_path: Path) -> None:
    (folder / ".gitignore").write_text("lib/\ntrain.py\n")
    (folder / ".musterignore").write_text("!train.py\n")
    found = scan(folder, tmp_path / "cache")
    assert {file.path for file in found.manifest.files} == {
        ".gitignore",
        ".musterignore",
        "train.py",
    }
    assert found.ignored["lib/"] == (".gitignore", 1)


def test_large_files_have_chunks(folder: Path, tmp_path: Path) -> None:
    parts = (b"a" * CHUNK_BYTES, b"b" * CHUNK_BYTES, b"c")
    (folder / "large").write_bytes(b"".join(parts))
    (folder / "even").write_bytes(parts[0])
    files = {file.path: file for file in scan(folder, tmp_path / "cache").manifest.files}
    assert files["large"].chunks == tuple(map(digest, parts))
    assert files["even"].chunks == (digest(parts[0]),)
    assert scanning.read_chunk(folder, "large", 2) == b"c"


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "lib/../../x", "lib/../x"])
def test_links_that_leave_the_tree_are_refused(folder: Path, tmp_path: Path, target: str) -> None:
    (folder / "away").symlink_to(target)
    with pytest.raises(ScanError, match="away"):
        scan(folder, tmp_path / "cache")
    (folder / ".musterignore").write_text("/away\n")
    assert scan(folder, tmp_path / "cache").manifest.size


def test_what_no_node_can_have_is_refused(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ScanError, match="pipe is a socket, a pipe or a device"):
        scan(folder, tmp_path / "cache")
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "socket"))
        with pytest.raises(ScanError, match="socket"):
            scan(folder, tmp_path / "cache")
    (folder / "socket").unlink()
    os.makedirs(os.fsencode(folder) + b"/\xff")
    (folder / os.fsdecode(b"\xff") / "x").write_text("x")
    with pytest.raises(ScanError, match="not UTF-8"):
        scan(folder, tmp_path / "cache")
    (folder / os.fsdecode(b"\xff") / "x").unlink()
    (folder / "Train.py").write_text("x")
    with pytest.raises(ScanError, match="differ only by case"):
        scan(folder, tmp_path / "cache")


def test_an_unchanged_tree_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = scanning._read

    def counted(at: Path, path: str) -> object:
        read.append(path)
        return real(at, path)

    monkeypatch.setattr(scanning, "_read", counted)
    # As if some seconds had passed since the files were written.
    monkeypatch.setattr("muster.bundle.index.RACY_NS", -RACY_NS)
    first = scan(folder, tmp_path / "cache")
    assert sorted(read) == ["lib/a.py", "lib/run", "train.py"]
    read.clear()
    assert scan(folder, tmp_path / "cache").data == first.data
    assert read == []
    (folder / "lib/a.py").write_text("23")
    assert scan(folder, tmp_path / "cache").data != first.data
    assert read == ["lib/a.py"]


def test_a_file_that_has_just_changed_is_read_again(folder: Path, tmp_path: Path) -> None:
    """It may change once more with the same size and within the same tick of the clock."""
    first = scan(folder, tmp_path / "cache")
    index = Index(tmp_path / "cache", folder)
    assert index.chunks("train.py", (folder / "train.py").stat()) is None
    (folder / "train.py").write_text("9")
    assert scan(folder, tmp_path / "cache").data != first.data


def test_a_damaged_index_is_no_index(folder: Path, tmp_path: Path) -> None:
    first = scan(folder, tmp_path / "cache")
    for path in (tmp_path / "cache").iterdir():
        path.write_bytes(b"\xc1")
    assert scan(folder, tmp_path / "cache").data == first.data
    (tmp_path / "file").write_text("x")
    assert scan(folder, tmp_path / "file").data == first.data


def test_a_refusal_names_the_ten_largest() -> None:
    sizes = [(f"f{number}", number * 1000) for number in range(20)]
    lines = str(too_large("too much", sizes)).splitlines()[1:]
    assert [line.split()[-1] for line in lines] == [f"f{number}" for number in range(19, 9, -1)]


def test_what_looks_like_a_secret_or_data_is_named() -> None:
    names = (".env", "a/.env.local", "id_rsa", "x.pem", "b/credentials", "secrets.yaml")
    fine = (".env.example", "id_rsa.pub", "env.py", "secrets.py", "credentials_test_data/x")
    files = [File(name, 1, False, ()) for name in (*names, *fine)]
    assert secrets(files) == list(names)
    files.append(File("train.bin", 1 << 30, False, ()))
    assert [file.path for file in data_sets(files)] == ["train.bin"]
