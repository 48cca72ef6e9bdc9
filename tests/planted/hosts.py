"""I7: foreign lines of a hosts file stay there, byte for byte, even while others write it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from agent.config import AgentConfig
from agent.config import Hosts as Settings
from agent.gang import host_names, name_check
from agent.gang.host_names import GangHostNames
from agent.gang.name_check import Findings, Resolver
from agent.hostsfile import atomic_exchange
from agent.hostsfile import editor as hosts_file
from agent.hostsfile.editor import HostsFile, HostsFileError
from muster.protocol import hosts_file as rules
from muster.protocol.hosts_file import Others, Parts, Table, with_block, without_blocks
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, Refusal
from tests.agent.hostsfile import writers
from tests.planted import Bug, put, wrap

BASE = (
    b"127.0.0.1\tlocalhost\n"
    b"# mine\n\n\n"
    b"10.0.0.7 server\r\n"
    b"10.0.0.8   two  spaces # and a remark \t\n"
    b"\xff\0 odd\n"
)
TABLE = (("node-a", "10.0.0.1"), ("node-b", "10.0.0.2"))


class Killed(BaseException):
    """The agent has died at this point."""


def _ours(text: bytes) -> bytes:
    return with_block(text, "1.1", TABLE)


def _gone(text: bytes) -> bytes:
    return without_blocks(text, ())


def _file(folder: Path, text: bytes = BASE) -> tuple[Path, HostsFile]:
    (folder / "etc").mkdir()
    path = folder / "etc/hosts"
    path.write_bytes(text)
    return path, HostsFile(path, folder / "before")


def what_is_not_ours_is_kept_byte_for_byte(folder: Path) -> None:
    for number, text in enumerate((BASE, BASE.rstrip(b"\n"), b"")):
        (folder / str(number)).mkdir()
        path, file = _file(folder / str(number), text)
        file.update(_ours)
        found = path.read_bytes()
        assert found.startswith(text), f"{text!r} has become {found!r}"
        assert b"node-a" in found
        file.update(_gone)
        assert path.read_bytes() == text, f"{text!r} has become {path.read_bytes()!r}"


def a_line_that_looks_like_ours_is_kept(folder: Path) -> None:
    theirs = b"10.0.0.9\tnode-c\n# 10.0.0.9\tnode-d\t# muster 1.1\n# END of muster 1.1\n"
    path, file = _file(folder, BASE + theirs)
    file.update(_ours)
    file.update(_gone)
    assert path.read_bytes() == BASE + theirs


def a_line_that_another_adds_is_kept(folder: Path) -> None:
    """Right before the exchange, the worst moment of all; in each of the ways."""
    real = atomic_exchange.exchange
    for way in ("append", "rename"):
        (folder / way).mkdir()
        path, file = _file(folder / way)
        left = [1]

        def exchange(
            one: Path, other: Path, way: str = way, path: Path = path, left: list[int] = left
        ) -> None:
            if left:
                writers.WAYS[way](path, left.pop())
            real(one, other)

        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(atomic_exchange, "exchange", exchange)
            monkeypatch.setattr(hosts_file, "AFTERMATH_S", 0.0)
            file.update(_ours)
        found = path.read_bytes()
        assert writers.line(1) in found, f"the line of one who does as `{way}` does is gone"
        file.update(_gone)
        assert path.read_bytes() == BASE + writers.line(1)


def a_line_that_was_added_outlives_a_crash(folder: Path) -> None:
    """The agent dies right after the exchange, before it has looked at what came out."""
    path, file = _file(folder)
    real = atomic_exchange.exchange

    def exchange(one: Path, other: Path) -> None:
        writers.rename(path, 1)
        real(one, other)
        raise Killed

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(atomic_exchange, "exchange", exchange)
        with pytest.raises(Killed):
            file.update(_ours)
    HostsFile(path, folder / "before").update(_gone)
    found = path.read_bytes()
    assert found == BASE + writers.line(1), f"after a crash the file is {found!r}"


def what_a_slow_writer_writes_is_kept(folder: Path) -> None:
    """He empties the file before he begins, as `generate > FILE` does."""
    path, file = _file(folder)
    theirs = BASE + writers.line(1)
    with path.open("wb", buffering=0) as slow, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(hosts_file, "QUIET_S", 0.05)
        with contextlib.suppress(HostsFileError):
            file.update(_ours)
        slow.write(theirs)
    file.update(_gone)
    assert path.read_bytes() == theirs, f"he wrote {theirs!r}, and it is {path.read_bytes()!r}"


class _Names(Resolver):
    """Resolves node-b to another machine until a hosts file says otherwise."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def addresses(self, name: str) -> list[str]:
        known = {name: address for name, address in TABLE if name.encode() in self._read()}
        return [{"node-b": "10.9.9.9", **known}[name]] if name in known or name == "node-b" else []

    def name(self, address: str) -> str:
        return {address: name for name, address in TABLE}[address]

    def _read(self) -> bytes:
        return self._path.read_bytes()


def a_name_of_another_machine_stays_its_own(folder: Path) -> None:
    path, _ = _file(folder)
    settings = Settings(mode="file", file=path)
    config = AgentConfig(node="node-a", state_dir=folder, hosts=settings)

    async def arranged() -> Refusal | tuple[str, ...]:
        made = GangHostNames(config, lambda _: path, _Names(path))
        return await made.arrange(TaskId("1.1.0"), ArrangeTask(TaskId("1.1.0"), (), {}, TABLE, ""))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(name_check, "SETTLE_S", 0.0)
        found = asyncio.run(arranged())
    assert isinstance(found, Refusal), f"node-b was taken from 10.9.9.9: {found}"
    assert path.read_bytes() == BASE


# --- the bugs ---------------------------------------------------------------------------------


def _foreign(change: Any) -> Any:
    """Lose or change foreign lines."""

    def wrapper(real: Any) -> Any:
        def parse(text: bytes) -> Parts:
            parts: Parts = real(text)
            return Parts(change(parts.foreign), parts.entries)

        return parse

    return wrapper


# The one bug that replaces a private method: between an exchange and the comparison of what it
# displaced there is no public function.
def _without_comparison(self: HostsFile, path: Path, *_: Any) -> bool:
    self._aside(path).unlink()
    return True


def _forgets_the_aside(real: Any) -> Any:
    def init(self: HostsFile, path: Path, backup: Path) -> None:
        for left in path.parent.glob(f".{path.name}.muster*"):
            left.unlink()
        real(self, path, backup)

    return init


def _any_address(real: Any) -> Any:
    """Accept every address of a name as one of its node."""

    def check_before_write(table: Table, _others: Others, own: str, resolver: Resolver) -> Findings:
        found = tuple(address for name, _ in table for address in resolver.addresses(name))
        findings: Findings = real(table, {at: found for _, at in table}, own, resolver)
        return findings

    return check_before_write


def _ours_wins(base: bytes, theirs: bytes, ours: bytes) -> bytes:
    return ours


BUGS = (
    Bug(
        "ends of lines are made alike",
        "I7",
        wrap(rules, "parse", _foreign(lambda text: text.replace(b"\r\n", b"\n"))),
        what_is_not_ours_is_kept_byte_for_byte,
    ),
    Bug(
        "empty lines are tidied away",
        "I7",
        wrap(rules, "parse", _foreign(lambda text: re.sub(rb"\n\n+", b"\n", text))),
        what_is_not_ours_is_kept_byte_for_byte,
    ),
    Bug(
        "what is no UTF-8 is replaced",
        "I7",
        wrap(rules, "parse", _foreign(lambda text: text.decode(errors="replace").encode())),
        what_is_not_ours_is_kept_byte_for_byte,
    ),
    Bug(
        "a last line without an end gets one for good",
        "I7",
        wrap(
            rules,
            "parse",
            _foreign(lambda text: text and text.rstrip(b"\n") + b"\n"),
        ),
        what_is_not_ours_is_kept_byte_for_byte,
    ),
    Bug(
        "a line of a name and an address is taken for ours",
        "I7",
        wrap(rules, "parse", _foreign(lambda text: re.sub(rb"(?m)^[0-9.]+\t[a-z-]+\n", b"", text))),
        a_line_that_looks_like_ours_is_kept,
    ),
    Bug(
        "what came out of an exchange is not looked at",
        "I7",
        put(HostsFile, "_settle", _without_comparison),
        a_line_that_another_adds_is_kept,
    ),
    Bug(
        "of two who have written ours wins",
        "I7",
        put(hosts_file, "merge", _ours_wins),
        a_line_that_another_adds_is_kept,
    ),
    Bug(
        "who still writes is taken for one who is done",
        "I7",
        put(atomic_exchange, "quiet", lambda *_: True),
        what_a_slow_writer_writes_is_kept,
    ),
    Bug(
        "nobody asks what a name means already",
        "I7",
        put(host_names, "check_before_write", lambda *_: Findings()),
        a_name_of_another_machine_stays_its_own,
    ),
    Bug(
        "where a name leads is no matter",
        "I7",
        wrap(host_names, "check_before_write", _any_address),
        a_name_of_another_machine_stays_its_own,
    ),
    Bug(
        "what a crash has left aside is thrown away",
        "I7",
        wrap(HostsFile, "__init__", _forgets_the_aside),
        a_line_that_was_added_outlives_a_crash,
    ),
)
