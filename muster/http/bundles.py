"""Bodies and answers of the routes of bundles."""

from __future__ import annotations

import msgspec


class MissingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The chunks of a bundle, by SHA-256. `bytes` is the size of the whole bundle."""

    chunks: tuple[str, ...] = ()
    bytes: int = 0


class MissingAnswer(msgspec.Struct, frozen=True):
    """The chunks that the caller has not uploaded yet."""

    missing: tuple[str, ...]


class PackAnswer(msgspec.Struct, frozen=True):
    """The number of different chunks in a pack that was stored."""

    stored: int


class BundleView(msgspec.Struct, frozen=True):
    """A bundle that the caller has uploaded whole."""

    sha256: str
    files: int
    bytes: int


class ChunksRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The chunks that a node needs of the bundle of a task on it."""

    chunks: tuple[str, ...] = ()
