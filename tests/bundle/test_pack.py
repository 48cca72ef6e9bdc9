"""Packs: many chunks in one body, each verified."""

import pytest

from muster.bundle.manifest import CHUNK_BYTES, digest
from muster.bundle.pack import PACK_BYTES, PACK_CHUNKS, BadPackError, batches, pack, unpack


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
