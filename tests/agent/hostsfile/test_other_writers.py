"""Others write to the hosts file meanwhile: nothing of theirs is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.hostsfile import atomic_exchange
from agent.hostsfile.editor import HostsFile, HostsFileError
from tests.agent.hostsfile import writers
from tests.agent.hostsfile.changes import (
    BASE,
    THEIRS,
    alone,
    beside,
    put,
    put_another,
    slipping,
    take,
)


@pytest.mark.parametrize("way", ["append", "rename"])
def test_an_edit_between_reading_and_exchange_is_merged(
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
    real = atomic_exchange.quiet

    def quiet(fd: int, until: float) -> bool:
        if left:
            left.pop(0)()
        return real(fd, until)

    monkeypatch.setattr(atomic_exchange, "quiet", quiet)


def test_a_writer_that_has_the_file_open_is_awaited(
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


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_slow_writer_loses_nothing(
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
def test_a_slow_writer_removes_no_line_of_a_third(
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
def test_an_open_file_does_not_matter_if_nothing_changes(path: Path, file: HostsFile) -> None:
    with path.open("ab"):
        file.update(take)
    assert path.read_bytes() == BASE


@pytest.mark.root
def test_an_agent_without_the_lease_capability_assumes_no_writer(path: Path) -> None:
    with path.open("rb") as file:
        os.seteuid(65534)
        try:
            assert atomic_exchange.quiet(file.fileno(), time.monotonic())
        finally:
            os.seteuid(0)


def test_an_editor_that_read_the_file_between_two_exchanges_loses_no_line(
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
    # A writer that renames may have read the file between two exchanges, which reorders lines.
    assert found.startswith(BASE + b"\n")
    added = found.removeprefix(BASE + b"\n").splitlines(keepends=True)
    assert sorted(added) == sorted(writers.line(n) for n in range(edits))
    assert alone(path)
