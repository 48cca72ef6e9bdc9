"""Scan of a folder: its files, what cannot travel, and what is not read again."""

import os
import socket
import stat
from pathlib import Path

import pytest

from muster.bundle import scan as scanning
from muster.bundle.index import RACY_NS, Index
from muster.bundle.manifest import CHUNK_BYTES, TreeLink, decode, digest
from muster.bundle.scan import ScanError, listing, scan, too_large
from muster.bundle.suspects import DATA_BYTES, DATA_FILES, data_folders, data_sets, secrets
from tests.small_disk import fill, small_disk


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
    assert scanning.read_chunk(folder, "large", 2, 1) == b"c"


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


@pytest.mark.root
def test_a_device_is_refused(folder: Path, tmp_path: Path) -> None:
    try:
        os.mknod(folder / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError as error:
        pytest.skip(f"no device can be made here: {error}")
    with pytest.raises(ScanError, match="null is a socket, a pipe or a device"):
        scan(folder, tmp_path / "cache")


def test_a_pipe_that_has_taken_the_place_of_a_file_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="seek"):
        scanning.read_chunk(folder, "pipe", 0, 1)


def test_a_link_whose_target_is_not_utf_8_is_refused(folder: Path, tmp_path: Path) -> None:
    os.symlink(b"\xff", os.fsencode(folder / "away"))
    with pytest.raises(ScanError, match="away has a target that is not UTF-8"):
        scan(folder, tmp_path / "cache")


def test_a_folder_below_a_name_that_is_not_utf_8(folder: Path, tmp_path: Path) -> None:
    """The names above the tree do not travel."""
    above = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    above.mkdir()
    folder.rename(above / "code")
    for _ in range(2):
        assert scan(above / "code", tmp_path / "cache").manifest.size == 6


@pytest.mark.parametrize(("name", "said"), [("a", "64 levels"), ("a" * 250, "too long|longer")])
def test_a_tree_that_is_too_deep_is_refused(
    folder: Path, tmp_path: Path, name: str, said: str
) -> None:
    inner = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(70):
            os.mkdir(name, dir_fd=inner)
            above, inner = inner, os.open(name, os.O_RDONLY, dir_fd=inner)
            os.close(above)
        os.close(os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=inner))
    finally:
        os.close(inner)
    with pytest.raises(ScanError, match=said):
        scan(folder, tmp_path / "cache")


def test_too_many_files_are_refused_with_the_folders_that_have_most(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "data").mkdir()
    for number in range(9):
        (folder / f"data/{number}").touch()
    with pytest.raises(ScanError, match=r"(?s)more than 10 files.*\n +9  data") as caught:
        scan(folder, tmp_path / "cache", files_max=10)
    assert ".musterignore" in caught.value.hint


def test_a_manifest_that_is_too_large_is_refused_before_a_file_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "MANIFEST_BYTES_MAX", 1500)
    monkeypatch.setattr(scanning, "_read", None)
    (folder / "data").mkdir()
    for number in range(20):
        (folder / f"data/{number}").write_text("x")
    with pytest.raises(ScanError, match=r"(?s)larger than 1\.5 kB.*\n +20  data") as caught:
        listing(folder)
    assert ".musterignore" in caught.value.hint
    monkeypatch.setattr(scanning, "MANIFEST_BYTES_MAX", 4000)
    assert len(listing(folder).files) == 23


@pytest.mark.root
def test_a_full_disk_of_the_index_costs_only_the_index(folder: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        filler = fill(disk)
        first = scan(folder, disk / "cache")
        assert [path for path in disk.rglob("*") if path.is_file()] == [filler]
        filler.unlink()
        assert scan(folder, disk / "cache").data == first.data
        (index,) = (disk / "cache").iterdir()
        assert index.suffix == ".index"


def test_an_unchanged_tree_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = scanning._read

    def counted(at: Path, path: str, taken: scanning._Taken) -> object:
        read.append(path)
        return real(at, path, taken)

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
    assert secrets([*names, *fine]) == list(names)
    tools = (
        *(".huggingface/token", "home/.cache/huggingface/token", ".aws/config", ".kube/config"),
        *("a/.config/gcloud/access_tokens.db", ".config/gcloud/configurations/config_default"),
        *(".docker/config.json", ".ssh/config"),
    )
    plain = ("src/token", "aws/config", "config", "gcloud/notes.txt", "huggingface/tokenizer.json")
    assert secrets([*tools, *plain]) == list(tools)
    assert data_sets([("train.py", 1), ("train.bin", 1 << 30)]) == [("train.bin", 1 << 30)]


def test_folders_of_many_small_files_look_like_data() -> None:
    code = [(f"src/{number}.py", 100) for number in range(5000)]
    images = [(f"data/train/{number % 3}/{number}.JPG", 10) for number in range(DATA_FILES)]
    few = [(f"docs/{number}.png", 10) for number in range(DATA_FILES - 1)]
    assert data_folders([*code, *few]) == []
    assert data_folders([*code, *images, *few]) == [("data/", DATA_FILES, 10 * DATA_FILES)]
    # Images among as many scripts are no data set, but those in a folder of their own are.
    mixed = [(f"data/train/{number}.py", 10) for number in range(DATA_FILES)]
    here = [(f"{number}.npy", 1) for number in range(DATA_FILES)]
    assert data_folders([*mixed, *images]) == []
    assert data_folders([*mixed, *here]) == [("./", DATA_FILES, DATA_FILES)]
    half = [(f"a/{number}.wav", DATA_BYTES // 2 + 1) for number in range(2)]
    assert data_folders([*code, *half]) == [("a/", 2, DATA_BYTES + 2)]
    # The folders of a deep tree are looked at once, and not once for each file.
    deep = [(f"{'d/' * 500}{number}.npy", 1) for number in range(DATA_FILES)]
    assert data_folders([*deep, *code]) == [("d/", DATA_FILES, DATA_FILES)]
    # A large file is named by itself.
    assert data_folders([("b/x.npy", DATA_BYTES + 1)]) == []
