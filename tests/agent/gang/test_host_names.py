"""The host tables of an agent: written, proved, refused in words, and taken back."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agent.config import AgentConfig
from agent.config import Hosts as Settings
from agent.gang import host_names as module
from agent.gang import setup
from agent.gang.fence import Fence
from agent.gang.host_names import GangHostNames, mode_of
from agent.gang.name_check import Resolver
from agent.hostsfile.tables import PrivateTables, TableRefused
from muster.daemon.errors import ConfigError
from muster.daemon.task_owner import TaskOwner
from muster.protocol.hosts_file import with_block
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, Refusal
from tests.agent.gang.test_name_check import TABLE, Book

TASK = TaskId("42.1.0")
OTHER = TaskId("7.2.0")
BASE = b"127.0.0.1 localhost\n127.0.1.1 node-a # debian\n"


def plan(hosts: tuple[tuple[str, str], ...] = TABLE, **more: Any) -> ArrangeTask:
    return ArrangeTask(TASK, (), {}, hosts, "", **more)


def config(folder: Path, mode: str = "file", **more: Any) -> AgentConfig:
    settings = Settings(mode=mode, file=folder / "hosts")  # type: ignore[arg-type]
    return AgentConfig(node="node-a", state_dir=folder, hosts=settings, **more)


def hosts_of(folder: Path, mode: str = "file", book: Book | None = None) -> GangHostNames:
    return GangHostNames(
        config(folder, mode), lambda task: folder / f"{task}.hosts", book or Book()
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_bytes(BASE)
    return path


def now(path: Path) -> bytes:
    return path.read_bytes()


def save(path: Path, text: bytes) -> None:
    path.write_bytes(text)


def written(path: Path) -> tuple[int, int]:
    """Another pair once anything has been written."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def refused(found: Refusal | tuple[str, ...], code: str) -> str:
    assert isinstance(found, Refusal)
    assert found.code == code
    return found.text


async def test_a_table_comes_and_goes(path: Path, tmp_path: Path) -> None:
    hosts = hosts_of(tmp_path)
    assert await hosts.arrange(TASK, plan()) == ()
    assert now(path) == with_block(BASE, "42.1", TABLE)
    await hosts.drop(TASK)
    assert now(path) == BASE
    await hosts.drop(TASK)


async def test_two_attempts_may_hold_the_same_names(path: Path, tmp_path: Path) -> None:
    hosts = hosts_of(tmp_path)
    assert await hosts.arrange(OTHER, plan()) == ()
    assert await hosts.arrange(TASK, plan()) == ()
    await hosts.drop(OTHER)
    assert now(path) == with_block(BASE, "42.1", TABLE)


async def test_a_name_that_another_attempt_has_elsewhere_is_refused_with_its_number(
    path: Path, tmp_path: Path
) -> None:
    path.write_bytes(with_block(BASE, "7.2", [("node-b", "10.5.5.5")]))
    hosts = hosts_of(tmp_path)
    hosts.adopt([OTHER])
    text = refused(await hosts.arrange(TASK, plan()), "hosts_conflict")
    assert "attempt 2 of job 7" in text
    assert "10.5.5.5" in text
    assert now(path) == with_block(BASE, "7.2", [("node-b", "10.5.5.5")])


async def test_a_foreign_line_is_never_overruled(path: Path, tmp_path: Path) -> None:
    path.write_bytes(BASE + b"10.9.9.9 node-b\n")
    text = refused(await hosts_of(tmp_path).arrange(TASK, plan()), "hosts_conflict")
    assert f"line 3 of {path}" in text
    assert "node-b" in text
    assert "10.9.9.9" in text
    assert now(path) == BASE + b"10.9.9.9 node-b\n"
    others = {"10.0.0.2": ("10.9.9.9",)}
    assert await hosts_of(tmp_path).arrange(TASK, plan(others=others)) == ()


async def test_a_table_that_could_spoil_the_file_is_refused_whole(
    path: Path, tmp_path: Path
) -> None:
    for evil in (("b\n6.6.6.6 bank", "10.0.0.2"), ("b", "10.0.0.2\n#"), ("b #", "10.0.0.2")):
        found = await hosts_of(tmp_path).arrange(TASK, plan((*TABLE, evil)))
        assert "\n" not in refused(found, "hosts_bad_table")
    assert now(path) == BASE


async def test_names_that_do_not_resolve_are_a_refusal(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.gang.name_check.SETTLE_S", 0.0)
    book = Book()
    del book.names["node-b"]
    text = refused(await hosts_of(tmp_path, book=book).arrange(TASK, plan()), "hosts_unresolved")
    assert "node-b of 10.0.0.2 is not known" in text
    assert str(path) in text


@pytest.mark.parametrize("mode", ["file", "private"])
async def test_a_name_of_another_machine_is_refused_before_anything_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("agent.gang.name_check.SETTLE_S", 0.0)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    mine = tmp_path / f"{TASK}.hosts"
    mine.touch()
    book = Book()
    book.names["node-b"] = ["10.9.9.9"]
    hosts = hosts_of(tmp_path, mode, book)
    found = await hosts.arrange(TASK, plan())
    assert "node-b leads to 10.9.9.9" in refused(found, "hosts_elsewhere")
    assert isinstance(found, Refusal)
    assert not found.node_fault
    assert now(path) == BASE
    assert mine.read_bytes() == b""


async def test_the_names_of_an_attempt_that_runs_are_not_another_machines(
    path: Path, tmp_path: Path
) -> None:
    """The resolver has them from our own block, perhaps with an address of before."""
    moved = (TABLE[0], TABLE[1], ("node-b", "10.0.0.3"))
    book = Book()
    hosts = hosts_of(tmp_path, book=book)
    assert await hosts.arrange(TASK, plan()) == ()
    book.back["10.0.0.3"] = "node-b"

    def addresses(name: str) -> list[str]:
        there = b"10.0.0.3\tnode-b" in now(path)
        return ["10.0.0.3"] if name == "node-b" and there else book.names.get(name, [])

    book.addresses = addresses  # type: ignore[method-assign]
    assert await hosts.arrange(TASK, plan(moved)) == ()
    assert now(path) == with_block(BASE, "42.1", moved)


async def test_the_own_name_on_debians_line_is_a_warning(path: Path, tmp_path: Path) -> None:
    book = Book()
    book.names["node-a"] = ["127.0.1.1"]
    found = await hosts_of(tmp_path, book=book).arrange(TASK, plan())
    assert isinstance(found, tuple)
    assert "127.0.1.1" in found[0]


async def test_a_resolver_that_hangs_hangs_nobody(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROOF_S", 0.05)
    never = threading.Event()

    class Dead(Book):
        def addresses(self, name: str) -> list[str]:
            never.wait(60.0)
            return []

    text = refused(await hosts_of(tmp_path, book=Dead()).arrange(TASK, plan()), "hosts_unresolved")
    assert "name server" in text
    never.set()


@pytest.mark.parametrize("mode", ["file", "off"])
async def test_at_the_start_only_what_lives_keeps_its_names(
    path: Path, tmp_path: Path, mode: str
) -> None:
    """Also those of a mode that the agent was in before."""
    text = with_block(BASE, "42.1", TABLE)
    path.write_bytes(with_block(text, "7.2", [("x", "10.1.1.1")]))
    hosts = hosts_of(tmp_path, mode)
    hosts.adopt([TASK])
    await hosts.clean()
    assert now(path) == text
    await hosts.drop(TASK)
    assert now(path) == BASE


async def test_the_names_of_an_attempt_stay_as_long_as_one_task_of_it_has_them(
    path: Path, tmp_path: Path
) -> None:
    """A node that came back to its gang has two; taking the first one's back may be late."""
    second = TaskId("42.1.3")
    hosts = hosts_of(tmp_path)
    await hosts.arrange(TASK, plan())
    await hosts.arrange(second, plan())
    await hosts.drop(TASK)
    assert now(path) == with_block(BASE, "42.1", TABLE)
    await hosts.drop(second)
    assert now(path) == BASE


async def test_leftover_names_do_not_block_other_gangs(path: Path, tmp_path: Path) -> None:
    path.write_bytes(with_block(BASE, "7.2", [("node-b", "10.5.5.5")]))
    assert await hosts_of(tmp_path).arrange(TASK, plan()) == ()
    assert now(path) == with_block(BASE, "42.1", TABLE)


async def test_leftover_names_are_removed_later(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "AGAIN_S", 0.0)
    path.rename(tmp_path / "aside")
    path.mkdir()

    def mend() -> None:
        path.rmdir()
        path.write_bytes(with_block(BASE, "7.2", [("x", "10.1.1.1")]))

    async with asyncio.timeout(180), TaskOwner("test") as owner:
        hosts = hosts_of(tmp_path)
        looks = looks_of(hosts, monkeypatch)
        await setup.GangSetup(hosts, Fence("", on=False, must=False), lambda _: None, owner).begin(
            []
        )
        mend()
        await looks.get()
        assert now(path) == BASE


async def test_a_block_that_an_editor_puts_back_is_removed_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor saves what it read when the job ran."""
    monkeypatch.setattr(setup, "LOOK_S", 0.0)
    mine = b"10.0.0.9 mine\n"
    async with asyncio.timeout(180), TaskOwner("test") as owner:
        hosts = hosts_of(tmp_path)
        looks = looks_of(hosts, monkeypatch)
        await setup.GangSetup(hosts, Fence("", on=False, must=False), lambda _: None, owner).begin(
            []
        )
        await hosts.arrange(OTHER, plan())
        await hosts.arrange(TASK, plan())
        read = now(path)
        await hosts.drop(TASK)
        save(path, read.replace(BASE, BASE + mine))
        await look_again(looks)
        assert now(path) == with_block(BASE + mine, "7.2", TABLE)
        before = written(path)
        await look_again(looks)
        assert written(path) == before


def looks_of(hosts: GangHostNames, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[None]:
    """Queue an entry for each check that found nothing wrong; the check after the next waits until
    the entry is taken."""
    looks: asyncio.Queue[None] = asyncio.Queue(1)
    real = hosts.clean

    async def clean() -> None:
        await real()
        await looks.put(None)

    monkeypatch.setattr(hosts, "clean", clean)
    return looks


async def look_again(looks: asyncio.Queue[None]) -> None:
    """Take two finished checks and wait for a third, which therefore began after this call."""
    for _ in range(3):
        await looks.get()


async def test_off_touches_and_proves_nothing(path: Path, tmp_path: Path) -> None:
    hosts = hosts_of(tmp_path, "off", Book(names={}))
    await hosts.clean()
    assert await hosts.arrange(TASK, plan()) == ()
    assert now(path) == BASE


async def test_a_file_that_cannot_be_written_is_a_refusal_or_a_warning(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    found = await hosts_of(tmp_path).arrange(TASK, plan())
    assert "hosts" in refused(found, "hosts_unwritable")


async def test_auto_mode_continues_with_existing_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.gang.name_check.SETTLE_S", 0.0)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "hosts").mkdir()
    found = await hosts_of(tmp_path, "auto", Book(names={})).arrange(TASK, plan())
    assert isinstance(found, tuple)
    assert "only their existing names here" in found[0]
    assert "node-b" in " ".join(found[1:])


async def test_an_agent_beside_others_leaves_the_machines_file_to_them(
    path: Path, tmp_path: Path
) -> None:
    theirs = with_block(BASE, "7.2", [("x", "10.1.1.1")])
    path.write_bytes(theirs)
    hosts = GangHostNames(config(tmp_path, "off", shared_host=True), lambda _: tmp_path / "none")
    assert hosts.off
    await hosts.clean()
    assert now(path) == theirs


def test_the_mode_of_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert mode_of(config(tmp_path, "auto")) == "file"
    assert mode_of(config(tmp_path, "auto", shared_host=True)) == "off"
    assert mode_of(config(tmp_path, "private", shared_host=True)) == "private"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert mode_of(config(tmp_path, "auto")) == "off"
    assert mode_of(config(tmp_path, "file")) == "file"
    with pytest.raises(ConfigError, match="private"):
        mode_of(config(tmp_path, "private"))


def test_agents_of_one_machine_cannot_all_write_its_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shared_host"):
        config(tmp_path, "file", shared_host=True)


def test_the_default_is_the_machines_own_file() -> None:
    assert Settings() == Settings(mode="auto", file=Path("/etc/hosts"))


# --- a file for each job ------------------------------------------------------------------------

PRIVATE = (("zz-node-a", "127.0.0.2"), ("zz-node-b", "127.0.0.3"))


@pytest.mark.root
async def test_a_private_table_is_proved_where_the_job_will_see_it(tmp_path: Path) -> None:
    machine = Path("/etc/hosts")
    before = machine.read_bytes()
    settings = Settings(mode="private", file=machine)
    own = AgentConfig(node="zz-node-a", state_dir=tmp_path, hosts=settings, shared_host=True)
    mine = tmp_path / "mine"
    mine.write_bytes(b"an older and longer text " * 1000)
    hosts = GangHostNames(own, lambda _: mine)
    found = await hosts.arrange(TASK, plan(PRIVATE))
    assert found == ()
    assert mine.read_bytes() == with_block(before, "42.1", PRIVATE)
    await hosts.drop(TASK)
    assert machine.read_bytes() == before
    assert Resolver().addresses("zz-node-b") == []


def test_a_job_of_its_own_file_takes_no_name_from_another_machine_either(
    path: Path, tmp_path: Path
) -> None:
    path.write_bytes(BASE + b"10.9.9.9 node-b other\n")
    mine = tmp_path / "mine"
    mine.touch()
    tables = PrivateTables(path, lambda _: mine)
    for call in (tables.clear, tables.put):
        with pytest.raises(TableRefused, match=f"line 3 of {path}") as caught:
            call(TASK, TABLE, {}, "10.0.0.1")
        assert caught.value.refusal.code == "hosts_conflict"
    assert mine.read_bytes() == b""
    path.write_bytes(BASE)
    assert tables.clear(TASK, TABLE, {}, "10.0.0.1") == frozenset()
    tables.put(TASK, TABLE, {}, "10.0.0.1")
    assert mine.read_bytes() == with_block(b"127.0.0.1 localhost\n", "42.1", TABLE)
    assert path.read_bytes() == BASE


def test_a_task_without_a_file_of_its_own_is_refused(path: Path, tmp_path: Path) -> None:
    tables = PrivateTables(path, lambda _: tmp_path / "missing")
    with pytest.raises(TableRefused, match="missing"):
        tables.put(TASK, TABLE, {}, "10.0.0.1")
