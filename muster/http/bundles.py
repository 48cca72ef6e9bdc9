"""Bodies and answers of the routes of bundles."""

from __future__ import annotations

from typing import Annotated

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


class PeersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The TCP port at which a node gives content of a task's bundle to the other nodes of its
    gang."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class CodePeer(msgspec.Struct, frozen=True):
    """A node of the gang that gives content to the others."""

    rank: int
    address: str
    port: int


class PeersAnswer(msgspec.Struct, frozen=True):
    """The nodes of an attempt that give content so far, of `nodes` in all, and the caller's own
    rank. `key` (hex) is of this attempt and bundle: with it they seal what they exchange.
    """

    key: str
    rank: int
    nodes: int
    peers: tuple[CodePeer, ...] = ()
