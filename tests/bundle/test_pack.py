"""Packs: many chunks in one body, each verified."""

import pytest

from muster.bundle.manifest import CHUNK_BYTES, digest
from muster.bundle.pack import (
    PACK_BYTES,
    PACK_CHUNKS,
    BadPackError,
    PackBuffer,
    batches,
    pack,
    unpack,
)


def test_there_and_back() -> None:
    chunks = {digest(data): data for data in (b"a", b"b" * 5000)}
    found = {chunk: bytes(content) for chunk, content in unpack(pack(chunks.items()))}
    assert found == chunks
    assert list(unpack(b"")) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: data + b"x",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"\xff\xff\xff\xff" + data[4:],
        lambda data: b"\0\0\0\0" + data[4:],
    ],
)
def test_a_flipped_bit_is_refused(change: object) -> None:
    data = pack([(digest(b"abc"), b"abc")])
    with pytest.raises(BadPackError):
        list(unpack(change(data)))  # type: ignore[operator]


def test_batches_are_bounded() -> None:
    sizes = {digest(str(n).encode()): CHUNK_BYTES for n in range(10)}
    assert [len(each) for each in batches(sizes)] == [PACK_BYTES // CHUNK_BYTES] * 2 + [2]
    small = {digest(str(n).encode()): 1 for n in range(PACK_CHUNKS + 1)}
    assert [len(each) for each in batches(small)] == [PACK_CHUNKS, 1]


def put(buffer: PackBuffer, data: bytes) -> str:
    """Add a chunk as a reader does, and return its name."""
    name = digest(data)
    buffer.space(len(data))[:] = data
    buffer.add(name, len(data))
    return name


def test_a_pack_is_made_in_memory_that_is_used_again() -> None:
    buffer = PackBuffer()
    for data in (b"a" * 1000, b"b"):
        first, second, again = put(buffer, data), put(buffer, b"c" * 10), put(buffer, data)
        assert first == again
        assert buffer.chunks == {first: len(data), second: 10}
        whole = {name: bytes(content) for name, content in unpack(buffer.pack([first, second]))}
        assert whole == {first: data, second: b"c" * 10}
        assert [name for name, _ in unpack(buffer.pack([second]))] == [second]
        assert bytes(buffer.pack([])) == b""
        buffer.clear()
        assert buffer.chunks == {}


def test_a_pack_in_the_making_is_bounded() -> None:
    buffer = PackBuffer()
    assert buffer.has_room(CHUNK_BYTES)
    for number in range(PACK_BYTES // CHUNK_BYTES):
        assert buffer.has_room(CHUNK_BYTES)
        put(buffer, bytes([number]) * CHUNK_BYTES)
    assert not buffer.has_room(1)
    # A chunk that is read before the pack is sent has room as well.
    assert len(buffer.space(CHUNK_BYTES)) == CHUNK_BYTES
    buffer.clear()
    for number in range(PACK_CHUNKS):
        assert buffer.has_room(1)
        buffer.add(f"{number:064x}", 1)
    assert not buffer.has_room(1)
    assert len(buffer.space(CHUNK_BYTES)) == CHUNK_BYTES
