"""An agent that dies while it changes the hosts file leaves nothing undone and loses nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.hostsfile import atomic_exchange
from agent.hostsfile import editor as hosts_file
from agent.hostsfile.editor import HostsFile
from tests.agent.hostsfile import writers
from tests.agent.hostsfile.changes import BASE, alone, put, slipping, take


class Killed(BaseException):
    """The agent has died at this point."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("slips", [False, True])
def test_an_edit_survives_a_crash_at_the_exchange(
    path: Path,
    file: HostsFile,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    slips: bool,
) -> None:
    real = atomic_exchange.exchange

    def exchange(one: Path, other: Path) -> None:
        if slips:
            writers.rename(path, 1)
        if moment == "after":
            real(one, other)
        raise Killed

    path.write_bytes(BASE + b"\n")
    monkeypatch.setattr(atomic_exchange, "exchange", exchange)
    with pytest.raises(Killed):
        file.update(put)
    monkeypatch.setattr(atomic_exchange, "exchange", real)
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


def test_an_edit_during_the_second_exchange_survives_a_crash_after_it(
    path: Path, file: HostsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(BASE + b"\n")
    with monkeypatch.context() as patch:
        slipping(patch, lambda: writers.rename(path, 1), lambda: writers.rename(path, 2))
        real = atomic_exchange.exchange

        def exchange(one: Path, other: Path) -> None:
            real(one, other)
            if one.name.endswith(".next"):
                raise Killed

        patch.setattr(atomic_exchange, "exchange", exchange)
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


BLOCK_FIRST = put(b"127.0.0.1 localhost\n") + b"10.1.1.1 after\n10.1.1.2 much later\n"


@pytest.mark.usefixtures("unexchangeable")
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
    def write(fd: int, data: bytes, at: int) -> None:
        os.pwrite(fd, data[:written], at)
        if os.readlink(f"/proc/self/fd/{fd}") == str(path):
            raise Killed

    path.write_bytes(text)
    with monkeypatch.context() as patch:
        patch.setattr(hosts_file, "_write_all", write)
        with pytest.raises(Killed):
            file.update(change)
    with path.open("ab") as other:
        other.write(added)
    file.update(take)
    assert path.read_bytes() == take(text) + added
