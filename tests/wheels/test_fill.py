"""A folder of wheels that pip fills from a folder that stands for an index."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from muster.daemon.errors import FileError
from muster.wheels.fill import NoWheelsError, fill
from muster.wheels.manifest import MANIFEST, own_target, read_manifest
from muster.wheels.pack import pack

OTHER = "3.12-aarch64"
PURE = "pure-1-py3-none-any.whl"
NATIVE = "native-2-cp312-cp312-manylinux2014_aarch64.whl"
OWN = "native-2-py3-none-any.whl"


class Index:
    """A folder of small wheels, and requirements that name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.sha256 = {name: self.add(name) for name in (PURE, NATIVE, OWN)}

    def add(self, wheel: str) -> str:
        name, version, *_ = wheel.split("-")
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(self.folder / wheel, "w") as archive:
            archive.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            archive.writestr(
                f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {wheel[:-4].split('-', 2)[2]}\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        return hashlib.sha256((self.folder / wheel).read_bytes()).hexdigest()

    def requirements(self, *wheels: str) -> str:
        lines: dict[str, str] = {}
        for wheel in wheels:
            name, version, *_ = wheel.split("-")
            # A marker that this interpreter does not meet: pip must not judge by it.
            lines.setdefault(name, f"{name}=={version} ; python_version < '3'")
            lines[name] += f" \\\n    --hash=sha256:{self.sha256[wheel]}"
        return "\n".join(lines.values()) + "\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return made


def written(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_each_target_gets_its_own_wheels_and_a_full_folder_is_left_as_it_is(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, wanted = tmp_path / "wheels", index.requirements(PURE, NATIVE, OWN)
    made = fill(folder, [OTHER], wanted)
    own = pack()
    mine = {own.name: hashlib.sha256(own.data).hexdigest(), PURE: index.sha256[PURE]}
    assert made.targets == {
        own_target(): {**mine, OWN: index.sha256[OWN]},
        OTHER: {**mine, NATIVE: index.sha256[NATIVE]},
    }
    assert read_manifest(folder) == made
    before = written(folder)
    assert before.keys() == {own.name, PURE, OWN, NATIVE, MANIFEST}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in folder.iterdir())

    # All is there: nothing is asked of the index. The targets of before stay without being named.
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fill(folder, [], wanted) == made
    assert written(folder) == before
    with pytest.raises(NoWheelsError, match="No matching distribution"):
        fill(folder, ["3.13-x86_64"], wanted)
    assert written(folder) == before

    monkeypatch.setenv("PIP_FIND_LINKS", str(index.folder))
    (folder / PURE).unlink()
    fill(folder, [], wanted)
    assert (folder / PURE).exists()
    fill(folder, [], index.requirements(PURE))
    assert written(folder).keys() == {own.name, PURE, MANIFEST}


def test_a_file_with_another_hash_is_refused(index: Index, tmp_path: Path) -> None:
    wanted = index.requirements(PURE).replace(index.sha256[PURE], "0" * 64)
    with pytest.raises(NoWheelsError, match="HASH"):
        fill(tmp_path / "wheels", [], wanted)
    assert read_manifest(tmp_path / "wheels") is None


@pytest.mark.parametrize(
    "name",
    [
        "../tokens.yaml",
        "a/b-1-py3-none-any.whl",
        "a-1-py3-none-any.whl\n",
        "tokens.yaml",
        "$(id)-1-a-b-c.whl",
    ],
)
def test_a_manifest_names_wheels_alone(name: str, tmp_path: Path) -> None:
    manifest = {"requirements": "0" * 64, "targets": {OTHER: {name: "0" * 64}}}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(FileError, match="not a manifest"):
        read_manifest(tmp_path)
    manifest = {"requirements": "0" * 64, "targets": {OTHER: {PURE: "0" * 64}}}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert read_manifest(tmp_path) is not None


def test_without_a_network_the_cause_is_named(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's last error names a package alone, as if it did not exist."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("NO_PROXY", "*")
    # Nothing listens there.
    monkeypatch.setenv("PIP_INDEX_URL", "https://127.0.0.1:1/simple")
    with pytest.raises(NoWheelsError, match=r"ERROR: .* because of .*Connection refused"):
        fill(tmp_path / "wheels", [], index.requirements(PURE))
