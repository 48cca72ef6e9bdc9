"""The coordinator's store of code: quotas, room, what is kept and what is collected."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from muster.bundle.manifest import CHUNK_BYTES, BadManifestError, CodeManifest, File, digest, encode
from muster.bundle.pack import BadPackError, pack
from muster.daemon.errors import FileError
from orchestrator.shell.bundles.references import StoreFullError
from orchestrator.shell.bundles.store import BundleLimits, BundleStore, FullQuotaError, QuotaError
from tests.small_disk import fill, small_disk

LIMITS = BundleLimits(bundle_bytes=1000, user_bytes=5000, free_bytes=0, keep_s=100.0)


def bundle(*texts: bytes) -> tuple[str, bytes, bytes]:
    """Return the name and the manifest of a bundle, and its content as a pack."""
    files = tuple(File(digest(t)[:9], len(t), False, (digest(t),)) for t in texts)
    data = encode(CodeManifest(files))
    return digest(data), data, bytes(pack((digest(text), text) for text in texts))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BundleStore]:
    made = BundleStore(tmp_path / "bundles", LIMITS)
    yield made
    made.close()


def put(store: BundleStore, user: str, now: float, *texts: bytes) -> str:
    name, data, content = bundle(*texts)
    store.put(user, content, now)
    assert store.put_manifest(user, name, data, now) == []
    return name


def chunks(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "bundles/chunks").glob("??/*")}


def test_content_is_shared_and_references_are_not(store: BundleStore, tmp_path: Path) -> None:
    name = put(store, "ann", 1.0, b"one", b"two")
    assert chunks(tmp_path) == {digest(b"one"), digest(b"two")}
    assert store.bundle("ann", name, 1.0) == (2, 6)
    assert store.bundle("bob", name, 1.0) is None
    assert store.missing("bob", [digest(b"one")], 1.0) == [digest(b"one")]
    _, data, _ = bundle(b"one", b"two")
    assert set(store.put_manifest("bob", name, data, 1.0)) == chunks(tmp_path)
    assert store.share("ann", "bob", name, 1.0)
    assert not store.share("ann", "bob", "0" * 64, 1.0)
    assert store.bundle("bob", name, 1.0) == (2, 6)


def test_it_is_all_there_after_a_restart(store: BundleStore, tmp_path: Path) -> None:
    name = put(store, "ann", 1.0, b"one")
    ticket = store.ticket("1.1.0", name)
    store.close()
    (tmp_path / "bundles/incoming/half").mkdir()
    again = BundleStore(tmp_path / "bundles", LIMITS)
    assert again.bundle("ann", name, 1.0) == (1, 3)
    assert again.chunk(digest(b"one")) == b"one"
    assert again.is_ticket(ticket, "1.1.0", name)
    assert not again.is_ticket(ticket, "1.1.1", name)
    assert not again.is_ticket("", "1.1.0", name)
    assert list((tmp_path / "bundles/incoming").iterdir()) == []
    again.close()


def test_old_code_goes_and_that_of_live_jobs_stays(store: BundleStore, tmp_path: Path) -> None:
    old = put(store, "ann", 0.0, b"old", b"both")
    live = put(store, "ann", 0.0, b"live")
    new = put(store, "bob", 90.0, b"new", b"both")
    assert store.collect([live], 101.0) == 1
    assert chunks(tmp_path) == {digest(text) for text in (b"live", b"new", b"both")}
    assert store.bundle("ann", old, 101.0) is None
    assert store.manifest(old) is None
    assert store.manifest(live) is not None
    assert store.bundle("bob", new, 101.0) == (2, 7)
    # To use code is to keep it.
    assert store.collect([live], 195.0) == 0
    assert store.collect([], 400.0) == 3
    assert chunks(tmp_path) == set()


def test_a_use_is_recorded_unless_one_was_just_before(store: BundleStore) -> None:
    """Each record of thousands waits for the disk."""
    name = put(store, "ann", 0.0, b"x")
    for now in range(100):  # each a little later than the record, and none of them lost
        assert store.bundle("ann", name, 4.0 * now) is not None
        assert store.missing("ann", [digest(b"x")], 4.0 * now) == []
        assert store.collect([], 4.0 * now + 94.0) == 0
    assert store.collect([], 4.0 * 99 + 101.0) == 1


def test_references_are_on_disk_with_their_bundle(store: BundleStore) -> None:
    """References to chunks alone may be lost, and are uploaded again. A dropped one may not come
    back, because its content is gone."""

    def level() -> int:
        with store._references._open() as db:
            (found,) = db.execute("PRAGMA synchronous").fetchone()
        return int(found)

    normal, full = 1, 2  # of SQLite: in a WAL, with the next full one, and at once
    name, data, content = bundle(b"x")
    store.put("ann", content, 1.0)
    assert level() == normal
    store.put_manifest("ann", name, data, 1.0)
    assert level() == full
    store.put("ann", content, 1.0)
    store.collect([], 1.0)
    assert level() == full


def test_limits_are_named(store: BundleStore, tmp_path: Path) -> None:
    name, data, content = bundle(b"x" * 1001)
    store.put("ann", content, 1.0)
    with pytest.raises(QuotaError, match="1001 bytes"):
        store.put_manifest("ann", name, data, 1.0)
    for letter in (b"a", b"b", b"c"):
        store.put("ann", bundle(letter * 1000)[2], 1.0)
    with pytest.raises(QuotaError, match="ann"):
        store.put("ann", bundle(b"d" * 1000)[2], 1.0)
    store.put("bob", bundle(b"d" * 1000)[2], 1.0)
    full = replace(LIMITS, free_bytes=1 << 60)
    other = BundleStore(tmp_path / "other", full)
    with pytest.raises(StoreFullError):
        other.put("ann", bundle(b"x")[2], 1.0)
    other.close()


def test_manifests_count_as_content_does(store: BundleStore) -> None:
    """A tree of empty files needs no content, but its manifest is kept."""

    def empty(number: int) -> CodeManifest:
        return CodeManifest(tuple(File(f"{number}-{n}", 0, False, ()) for n in range(60)))

    def send(user: str, number: int) -> None:
        data = encode(empty(number))
        store.put_manifest(user, digest(data), data, 1.0)

    for number in range(4):
        send("ann", number)
    with pytest.raises(QuotaError, match="ann"):
        send("ann", 4)
    send("ann", 3)  # it is here already
    send("bob", 4)


def test_pieces_count_as_bytes_do(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles", replace(LIMITS, user_files=3))
    put(store, "ann", 1.0, b"1", b"2")
    with pytest.raises(QuotaError, match="3 pieces"):
        store.put("ann", bundle(b"3")[2], 1.0)
    store.close()


def test_a_chunk_has_the_size_that_the_manifest_says(store: BundleStore) -> None:
    store.put("ann", pack([(digest(b"x" * 900), b"x" * 900)]), 1.0)
    data = encode(CodeManifest((File("a", 1, False, (digest(b"x" * 900),)),)))
    with pytest.raises(BadManifestError, match="another size"):
        store.put_manifest("ann", digest(data), data, 1.0)


@pytest.mark.root
def test_uploads_leave_inodes_free_and_unused_code_makes_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 << 20, inodes=400) as disk:
        store = BundleStore(disk / "bundles", replace(LIMITS, keep_s=1e9, user_bytes=1 << 20))
        put(store, "ann", 0.0, *(b"%d" % number for number in range(200)))
        new = (bundle(b"%d" % number)[2] for number in range(200, 400))
        with pytest.raises(StoreFullError):
            all(store.put("ann", content, 5000.0) for content in new)
        assert os.statvfs(disk).f_favail > 10
        assert store.collect([], 5000.0) == 200
        put(store, "ann", 5000.0, b"more")
        store.close()


def _damage(path: Path) -> None:
    path.write_bytes(b"two")


@pytest.mark.parametrize("lose", [_damage, Path.unlink], ids=["damaged", "lost"])
def test_lost_content_is_sent_again(
    store: BundleStore, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    name = put(store, "ann", 1.0, b"one")
    other = put(store, "bob", 1.0, b"another")
    lose(tmp_path / "bundles/chunks" / digest(b"one")[:2] / digest(b"one"))
    assert store.chunk(digest(b"one")) is None
    assert store.bundle("ann", name, 1.0) is None
    assert store.missing("ann", [digest(b"one")], 1.0) == [digest(b"one")]
    assert store.bundle("bob", other, 1.0) is not None
    assert put(store, "ann", 2.0, b"one") == name
    assert store.chunk(digest(b"one")) == b"one"


@pytest.mark.parametrize("lose", [_damage, Path.unlink], ids=["damaged", "lost"])
def test_a_lost_manifest_is_sent_again(
    store: BundleStore, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    name = put(store, "ann", 1.0, b"one")
    other = put(store, "bob", 1.0, b"another")
    lose(tmp_path / "bundles/manifests" / name)
    assert store.manifest(name) is None
    assert store.bundle("ann", name, 1.0) is None
    assert store.bundle("bob", other, 1.0) is not None
    assert put(store, "ann", 2.0, b"one") == name
    assert store.manifest(name) is not None


class _Swept(BundleStore):
    """A store that is swept, and read by a node, while a pack is synced to disk."""

    def _sync_stored(self, chunks: Collection[str]) -> None:
        self.collect((), 1000.0)
        for chunk in chunks:
            assert self.chunk(chunk) is not None
            path = Path(self._chunk(chunk))
            content = path.read_bytes()
            path.write_bytes(b"damaged")
            assert self.chunk(chunk) is None
            path.write_bytes(content)
        super()._sync_stored(chunks)


def test_content_on_its_way_to_the_disk_is_not_swept(tmp_path: Path) -> None:
    swept = _Swept(tmp_path / "bundles", LIMITS)
    with contextlib.closing(swept):
        name = put(swept, "ann", 1.0, b"one", b"two")
        assert chunks(tmp_path) == {digest(b"one"), digest(b"two")}
        assert swept.bundle("ann", name, 1.0) == (2, 6)
        swept.collect((), 1000.0)
        assert not chunks(tmp_path)


def test_many_small_chunks_in_one_pack(tmp_path: Path) -> None:
    store = BundleStore(
        tmp_path / "bundles", replace(LIMITS, user_bytes=1 << 20, bundle_bytes=1 << 20)
    )
    texts = [str(number).encode() for number in range(500)]
    put(store, "ann", 1.0, *texts)
    assert chunks(tmp_path) == set(map(digest, texts))
    with pytest.raises(BadPackError):
        store.put("ann", pack([(digest(b"y"), b"y"), (digest(b"x"), b"z")]), 1.0)
    assert digest(b"y") not in chunks(tmp_path)
    store.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError):
        BundleStore(tmp_path / "file", LIMITS)


@pytest.mark.root
def test_a_disk_that_fills_keeps_nothing_half_made(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        store = BundleStore(disk / "bundles", replace(LIMITS, user_bytes=1 << 30))
        big = [bytes([number]) * (400 << 10) for number in range(4)]
        with pytest.raises(StoreFullError):
            store.put("ann", bundle(*big)[2], 1.0)
        assert list(disk.glob("bundles/chunks/??/*")) == []
        assert list((disk / "bundles/incoming").iterdir()) == []
        put(store, "ann", 2.0, b"small")  # there is room for it
        store.close()


@pytest.mark.root
def test_a_disk_that_is_full_for_a_manifest_keeps_no_half_of_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        store = BundleStore(disk / "bundles", LIMITS)
        name, data, content = bundle(b"one", b"two")
        store.put("ann", content, 1.0)
        filler = fill(disk)
        with pytest.raises(StoreFullError):
            store.put_manifest("ann", name, data, 1.0)
        assert list((disk / "bundles/manifests").iterdir()) == []
        assert store.bundle("ann", name, 1.0) is None
        filler.unlink()
        assert store.put_manifest("ann", name, data, 2.0) == []
        assert store.bundle("ann", name, 2.0) == (2, 6)
        store.close()


def test_a_chunk_that_a_file_repeats_counts_each_time(store: BundleStore) -> None:
    """A manifest of some MB may stand for a tree of terabytes."""
    chunk = digest(b"x")
    data = encode(CodeManifest((File("a", 100 * CHUNK_BYTES, False, (chunk,) * 100),)))
    with pytest.raises(QuotaError, match=f"{100 * CHUNK_BYTES} bytes"):
        store.put_manifest("ann", digest(data), data, 1.0)


@pytest.mark.parametrize("damage", [b"no database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_index_is_put_aside(store: BundleStore, tmp_path: Path, damage: bytes) -> None:
    name = put(store, "ann", 1.0, b"one")
    store.close()
    index = tmp_path / "bundles/references.sqlite3"
    index.write_bytes(damage)
    again = BundleStore(tmp_path / "bundles", LIMITS)
    assert again.bundle("ann", name, 1.0) is None
    assert put(again, "ann", 2.0, b"one") == name
    assert index.with_name("references.sqlite3.damaged").read_bytes() == damage
    again.close()


def test_the_code_of_a_live_job_outlives_its_index(store: BundleStore, tmp_path: Path) -> None:
    live = put(store, "ann", 1.0, b"live")
    put(store, "ann", 1.0, b"old")
    store.close()
    (tmp_path / "bundles/references.sqlite3").unlink()
    again = BundleStore(tmp_path / "bundles", LIMITS)
    assert again.collect([live], 500.0) == 1
    assert chunks(tmp_path) == {digest(b"live")}
    assert again.manifest(live) is not None
    again.close()


@pytest.mark.root
def test_a_store_on_a_full_disk_opens_and_works_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        (disk / "bundles").mkdir()
        BundleStore(disk / "bundles", LIMITS).close()
        (disk / "bundles/references.sqlite3").unlink()
        with contextlib.suppress(OSError), (disk / "fill").open("wb") as file:
            file.write(b"x" * (2 << 20))
        store = BundleStore(disk / "bundles", LIMITS)
        with pytest.raises(StoreFullError):
            store.missing("ann", [digest(b"one")], 1.0)
        with pytest.raises(StoreFullError):
            store.collect([], 1.0)
        (disk / "fill").unlink()
        put(store, "ann", 1.0, b"one")
        store.close()


def test_an_index_that_is_damaged_meanwhile_is_put_aside(
    store: BundleStore, tmp_path: Path
) -> None:
    """It is no full disk, and the next request finds an empty index."""
    put(store, "ann", 1.0, b"1")
    index = tmp_path / "bundles/references.sqlite3"
    with contextlib.closing(sqlite3.connect(index, isolation_level=None)) as other:
        # After a write of another, the store's connection reads the file again.
        other.execute("UPDATE chunks SET seen = 2.0")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    index.write_bytes(index.read_bytes()[:4096] + b"\xff" * 40960)
    with pytest.raises(FileError, match="put aside"):
        store.missing("ann", [digest(b"1")], 1.0)
    assert index.with_name("references.sqlite3.damaged").exists()
    put(store, "ann", 2.0, b"one")


def test_at_the_quota_code_that_no_job_uses_makes_room(store: BundleStore) -> None:
    """An hour after its last use."""
    live, kept = put(store, "ann", 0.0, b"a" * 300), put(store, "ann", 4000.0, b"b" * 300)
    old = put(store, "ann", 0.0, b"c" * 200, b"a" * 300)
    others = put(store, "bob", 0.0, b"c" * 200)
    assert store.drop_unused("ann", [live], 4000.0) == 1
    assert store.bundle("ann", old, 4000.0) is None
    assert store.missing("ann", [digest(b"c" * 200)], 4000.0) == [digest(b"c" * 200)]
    assert store.missing("ann", [digest(b"a" * 300), digest(b"b" * 300)], 4000.0) == []
    assert store.bundle("ann", live, 4000.0)
    assert store.bundle("ann", kept, 4000.0)
    assert store.bundle("bob", others, 4000.0)
    with pytest.raises(FullQuotaError):
        store.put("ann", pack([(digest(b"d" * 6000), b"d" * 6000)]), 4000.0)


def test_a_key_that_is_cut_off_is_replaced(tmp_path: Path) -> None:
    """With an empty key, anybody could make tickets."""
    BundleStore(tmp_path / "bundles", LIMITS).close()
    key = tmp_path / "bundles/ticket.key"
    key.write_bytes(b"")
    BundleStore(tmp_path / "bundles", LIMITS).close()
    assert len(key.read_bytes()) == 32
