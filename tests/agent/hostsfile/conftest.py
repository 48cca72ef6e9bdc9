"""A hosts file to be changed."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.hostsfile import atomic_exchange
from agent.hostsfile import editor as hosts_file
from agent.hostsfile.editor import HostsFile
from tests.agent.hostsfile.changes import BASE


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


@pytest.fixture
def mounted(path: Path, tmp_path: Path) -> Iterator[Path]:
    """The file as a bind mount, as in a container or under ReadWritePaths."""
    target = tmp_path / "mounted"
    target.touch()
    subprocess.run(["mount", "--bind", path, target], check=True)
    yield target
    subprocess.run(["umount", target], check=True)


@pytest.fixture
def unexchangeable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names cannot be exchanged, as of a file that is mounted on; it takes no root to have that."""

    def busy(_: Path, __: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(atomic_exchange, "exchange", busy)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for other programs that have the file open."""
    monkeypatch.setattr(hosts_file, "QUIET_S", 0.05)
    monkeypatch.setattr(hosts_file, "HOLD_S", 0.05)
