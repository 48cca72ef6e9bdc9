"""The wheel of Muster that is made from its own files."""

import base64
import csv
import hashlib
import io
import re
import zipfile
from pathlib import Path

from muster.wheels.fill import locked
from muster.wheels.pack import pack, shared_file

TREE = Path(__file__).resolve().parents[2]


def test_the_wheel_has_every_module_and_what_comes_with_them() -> None:
    wheel = pack()
    archive = zipfile.ZipFile(io.BytesIO(wheel.data))
    assert archive.testzip() is None
    names = set(archive.namelist())
    modules = {
        path.relative_to(TREE).as_posix()
        for package in ("agent", "muster", "orchestrator")
        for path in (TREE / package).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules
    base = wheel.name.removesuffix("-py3-none-any.whl")
    shared = f"{base}.data/data/share/muster"
    others = {"muster/py.typed", f"{shared}/requirements.txt"}
    others |= {f"{shared}/systemd/muster-{each}.service" for each in ("agent", "coordinator")}
    others |= {
        f"{base}.dist-info/{each}" for each in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")
    }
    assert names - modules == others
    assert b"muster = muster.cli.main:main" in archive.read(f"{base}.dist-info/entry_points.txt")


def test_the_record_has_the_hash_of_each_file_and_equal_files_give_an_equal_wheel() -> None:
    wheel = pack()
    archive = zipfile.ZipFile(io.BytesIO(wheel.data))
    record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
    rows = {
        name: (digest, size)
        for name, digest, size in csv.reader(io.StringIO(archive.read(record).decode()))
    }
    assert rows.keys() == set(archive.namelist())
    assert rows.pop(record) == ("", "")
    for name, (digest, size) in rows.items():
        data = archive.read(name)
        expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        assert (digest, size) == (f"sha256={expected}", str(len(data)))
    assert pack() == wheel


def test_requirements_without_markers_name_each_package_once_with_its_hashes() -> None:
    text = locked(shared_file("requirements.txt").decode())
    names = re.findall(r"^(\S+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(names) == text.count("==") == len(set(names))
    assert {"aiohttp", "cffi", "typing-extensions"} <= set(names)
