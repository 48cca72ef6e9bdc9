"""Fetch of a task's code: what arrives damaged is fetched once again, and then refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.code.fetch import CodeError, CodeFetcher, FetchLimits, pause_after
from agent.code.store import CodeStore
from agent.link.dialer import ConnectionLostError
from muster.bundle.manifest import CodeManifest, File, digest, encode
from muster.bundle.pack import pack
from muster.daemon.clock import SystemClock
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import PrepareTask

TEXTS = {digest(text): text for text in (b"one", b"two")}
FILES = tuple(File(name[:8], len(text), False, (name,)) for name, text in TEXTS.items())
MANIFEST = encode(CodeManifest(FILES))
TASK = PrepareTask(
    TaskId("1.1.0"), "none", None, None, (), {}, 1.0, bundle=digest(MANIFEST), ticket="t"
)
LIMITS = FetchLimits()


class Coordinator:
    """Answers requests; `damage` is how many answers of each kind have a flipped bit."""

    def __init__(self, damage: int = 0, refuses: str = "", away: int = 0) -> None:
        """`away`: so many requests find nobody."""
        self.away = away
        self.damage = {"bundle": damage, "blobs": damage}
        self.refuses = refuses
        self.asked: list[list[str]] = []

    async def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], most: int
    ) -> bytes:
        assert headers == {"X-Muster-Ticket": "t"}
        kind = path.removeprefix("/v1/agent/tasks/1.1.0/")
        self.away -= 1
        if self.away >= 0:
            raise ConnectionLostError("nothing listens there", absent=True)
        if self.refuses == kind:
            raise ConnectionLostError("no", refused=True)
        answer = MANIFEST
        if kind == "blobs":
            wanted = msgspec.json.decode(body or b"")["chunks"]
            self.asked.append(wanted)
            answer = bytes(pack((chunk, TEXTS[chunk]) for chunk in wanted))
        self.damage[kind] -= 1
        return answer[:-1] + bytes([answer[-1] ^ 1]) if self.damage[kind] >= 0 else answer


def fetcher(tmp_path: Path, coordinator: Any, limits: FetchLimits = LIMITS) -> CodeFetcher:
    store = CodeStore(tmp_path / "code")
    store.prepare()
    return CodeFetcher(store, coordinator, SystemClock(), limits=limits)


async def test_content_is_fetched_once(tmp_path: Path) -> None:
    coordinator = Coordinator()
    code = fetcher(tmp_path, coordinator)
    for _ in range(2):
        manifest = await code.fetch(TASK)
        assert manifest is not None
        code.release(manifest)
    assert [set(each) for each in coordinator.asked] == [set(TEXTS)]
    assert await code.fetch(msgspec.structs.replace(TASK, bundle=None)) is None


async def test_a_flipped_bit_is_fetched_again(tmp_path: Path) -> None:
    coordinator = Coordinator(damage=1)
    code = fetcher(tmp_path, coordinator)
    manifest = await code.fetch(TASK)
    assert manifest is not None
    assert len(coordinator.asked) == 2
    assert code.store.missing(manifest) == {}


@pytest.mark.parametrize("coordinator", [Coordinator(damage=2), Coordinator(refuses="blobs")])
async def test_what_stays_damaged_or_refused_is_an_error(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    code = fetcher(tmp_path, coordinator)
    with pytest.raises(CodeError):
        await code.fetch(TASK)
    assert not code._pinned


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_coordinator_that_is_away_is_asked_until_the_time_to_prepare_is_over(
    tmp_path: Path, in_time: bool
) -> None:
    code = fetcher(tmp_path, Coordinator(away=50), FetchLimits(pause_max_s=0.0))
    task = msgspec.structs.replace(TASK, timeout_s=60.0 if in_time else 0.0)
    if in_time:
        assert await code.fetch(task) is not None
        return
    with pytest.raises(CodeError, match="nothing listens there"):
        await code.fetch(task)


def test_pauses_grow() -> None:
    pauses = [pause_after(number, LIMITS.pause_max_s) for number in range(12)]
    assert all(pause > before for pause, before in zip(pauses[1:5], pauses, strict=False))
    assert max(pauses) <= LIMITS.pause_max_s


async def test_all_that_is_damaged_on_the_disk_is_fetched_again_at_once(tmp_path: Path) -> None:
    """A power cut leaves many files without content."""
    coordinator = Coordinator()
    code = fetcher(tmp_path, coordinator)
    manifest = await code.fetch(TASK)
    assert manifest is not None
    for path in (tmp_path / "code").glob("chunks/??/*"):
        path.write_bytes(bytes(path.stat().st_size))
    path.unlink()
    await code.repair(TASK, manifest)
    assert [set(each) for each in coordinator.asked] == [set(TEXTS)] * 2
    (tmp_path / "made").mkdir()
    code.store.copy(manifest, tmp_path / "made", None)
