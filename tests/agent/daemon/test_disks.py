"""Health of the disk that an agent needs: watched and reported; and the descriptors it reserves."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agent.core.inputs import Input, NodeObserved
from agent.monitors.disks import DiskMonitor, check
from agent.tasks.fd_budget import NoDescriptorsError, check_descriptors
from muster.daemon.descriptors import RESERVE
from muster.protocol.observations.disks import DiskHealth, sound
from tests.small_disk import fill, small_disk

PATIENCE_S = 180.0
LOW = DiskHealth("/d", 40 << 20, 64 << 20)


def hear(
    folder: Path,
    look: Callable[[Path], DiskHealth | None],
    counts: int,
    then: Callable[[int], None] = lambda _: None,
) -> list[tuple[DiskHealth, ...]]:
    """Collect the first `counts` reports of a watch; `then` is called with the count each time."""
    heard: list[tuple[DiskHealth, ...]] = []

    async def course() -> None:
        enough = asyncio.Event()

        def post(received: Input) -> None:
            assert isinstance(received, NodeObserved)
            assert received.changes.disks is not None
            heard.append(received.changes.disks)
            then(len(heard))
            if len(heard) >= counts:
                enough.set()

        disks = DiskMonitor(folder, post, look, period_s=0.01, hangs_s=0.2)
        watching = asyncio.create_task(disks.run())
        async with asyncio.timeout(PATIENCE_S):
            await enough.wait()
        watching.cancel()

    asyncio.run(course())
    return heard


def test_a_disk_that_fills_is_reported_until_it_has_room(tmp_path: Path) -> None:
    found: list[DiskHealth | None] = [None, LOW]

    def look(_: Path) -> DiskHealth | None:
        return found[-1]

    full = DiskHealth("/d", 0, 64 << 20, full=True)
    steps = {1: full, 2: None}

    def then(count: int) -> None:
        if count in steps:
            found.append(steps[count])

    assert hear(tmp_path, look, 3, then) == [(LOW,), (full,), ()]
    assert full.text == "the disk of /d is full: 0 MiB of 64 MiB free"
    assert LOW.text == "the disk of /d is nearly full: 40 MiB of 64 MiB free"


def test_a_disk_that_hangs_is_reported_and_holds_up_nothing(tmp_path: Path) -> None:
    free = threading.Event()

    def look(_: Path) -> DiskHealth | None:
        assert free.wait(PATIENCE_S)
        return None

    first, then = hear(tmp_path, look, 2, lambda _: free.set())
    (disk,) = first
    assert disk.hangs
    assert "does not answer" in disk.text
    assert then == ()


def test_a_disk_that_fails_is_reported(tmp_path: Path) -> None:
    def look(_: Path) -> DiskHealth | None:
        raise OSError(30, "Read-only file system", str(tmp_path / ".trial"))

    ((disk,),) = hear(tmp_path, look, 1)
    assert disk.hangs
    why = (
        f"the disk of {tmp_path} cannot be written (Read-only file system): see dmesg on that node"
    )
    assert disk.text == why
    assert sound(disk)
    assert not sound(msgspec.structs.replace(disk, error="two\nlines"))


def test_a_healthy_disk_is_not_reported(tmp_path: Path) -> None:
    assert check(tmp_path) is None


@pytest.mark.root
def test_figures_of_a_small_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 96 << 20) as disk:
        assert check(disk) is None
        with (disk / "most").open("wb") as file:
            file.write(b"x" * (60 << 20))
        low = check(disk)
        assert low is not None
        assert (low.full, low.free_bytes >> 20, low.total_bytes >> 20) == (False, 35, 96)
        fill(disk)
        full = check(disk)
        assert full is not None
        assert (full.full, full.free_bytes) == (True, 0)


def test_the_last_descriptors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    check_descriptors()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (RESERVE, RESERVE))
    with pytest.raises(NoDescriptorsError, match=f"of {RESERVE} file descriptors in use"):
        check_descriptors()
