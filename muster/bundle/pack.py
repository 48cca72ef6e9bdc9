"""Packs: many chunks in one request or answer. No I/O.

A chunk is its length (4 bytes, big-endian), its SHA-256 (32 bytes) and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from muster.bundle.manifest import CHUNK_BYTES, digest

PACK_BYTES: Final = 16 << 20
"""Bytes of the chunks of one pack at most, unless it is only one."""
PACK_CHUNKS: Final = 8192
_HEAD: Final = struct.Struct(">I32s")
PACK_BYTES_MAX: Final = PACK_BYTES + CHUNK_BYTES + PACK_CHUNKS * _HEAD.size
"""Bytes of a whole pack at most."""


class BadPackError(ValueError):
    """Bytes that are not a pack, or a chunk that is not what its name says."""


def head(chunk: str, size: int) -> bytes:
    """Return what precedes a chunk in a pack."""
    return _HEAD.pack(size, bytes.fromhex(chunk))


def unpack(data: bytes | bytearray | memoryview) -> Iterator[tuple[str, memoryview]]:
    """Yield the chunks of a pack, each verified. Raises BadPackError."""
    view, at = memoryview(data), 0
    while at < len(view):
        if at + _HEAD.size > len(view):
            raise BadPackError("the pack ends within a chunk's head")
        size, name = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        if not 0 < size <= CHUNK_BYTES or at + size > len(view):
            raise BadPackError(f"the pack has a chunk of {size} bytes, or ends within it")
        content = view[at : at + size]
        chunk = name.hex()
        if digest(content) != chunk:
            raise BadPackError(f"the content of chunk {chunk} is not what its name says")
        yield chunk, content
        at += size


def batches(chunks: Mapping[str, int]) -> Iterator[list[str]]:
    """Divide chunks, given with their sizes, among packs."""
    batch: list[str] = []
    size = 0
    for chunk, more in chunks.items():
        if batch and (size + more > PACK_BYTES or len(batch) >= PACK_CHUNKS):
            yield batch
            batch, size = [], 0
        batch.append(chunk)
        size += more
    if batch:
        yield batch


def pack(chunks: Iterable[tuple[str, bytes]]) -> bytearray:
    """Return the chunks as one pack. Each may be forgotten once the next one is taken."""
    data = bytearray()
    for chunk, content in chunks:
        data += head(chunk, len(content))
        data += content
    return data


class PackBuffer:
    """A pack in the making, in memory that the next one uses again: of new memory, the kernel
    clears each page."""

    def __init__(self, size: int = PACK_BYTES) -> None:
        """`size` is that of its chunks at most, or of one chunk."""
        self._view = memoryview(bytearray(size + PACK_BYTES_MAX - PACK_BYTES))
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    @property
    def chunks(self) -> dict[str, int]:
        """The chunks in it, with their sizes."""
        return {chunk: end - at - _HEAD.size for chunk, (at, end) in self._places.items()}

    def has_room(self, size: int) -> bool:
        """True if the pack may have another chunk of this size."""
        if not self._places:
            return True
        content = self._end - len(self._places) * _HEAD.size
        return content + size <= PACK_BYTES and len(self._places) < PACK_CHUNKS

    def space(self, size: int) -> memoryview:
        """Return the memory for the content of the next chunk."""
        at = self._end + _HEAD.size
        return self._view[at : at + size]

    def add(self, chunk: str, size: int) -> None:
        """Add what `space` holds now, unless it is there already."""
        if chunk not in self._places:
            at = self._end
            self._view[at : at + _HEAD.size] = head(chunk, size)
            self._end = at + _HEAD.size + size
            self._places[chunk] = at, self._end

    def pack(self, chunks: Collection[str]) -> memoryview:
        """Return the pack of some of the chunks, valid until the next change."""
        if len(chunks) == len(self._places):
            return self._view[: self._end]
        parts = [self._view[slice(*self._places[chunk])] for chunk in chunks]
        return memoryview(b"".join(parts))

    def clear(self) -> None:
        """Begin the next pack."""
        self._places.clear()
        self._end = 0
