"""The manifest of a bundle: its files by path, size and content, and its links. No I/O.

A bundle is named by the SHA-256 of its encoded manifest. The encoding is canonical: equal trees
have equal manifests. A file's content is a sequence of chunks, each named by its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

CHUNK_BYTES: Final = 4 << 20
"""Size of every chunk of a file except the last."""
FILES_MAX: Final = 200_000
ENTRIES_MAX: Final = 2 * FILES_MAX
"""Number of files, links and folders of a tree."""
LEVELS_MAX: Final = 64
MANIFEST_BYTES_MAX: Final = 32 << 20
VERSION: Final = 1
_PATH_BYTES_MAX: Final = 4000
_NAME_BYTES_MAX: Final = 255
_UNREAD: Final = "0" * 64
_CHUNK_BYTES: Final = len(_UNREAD) + 3
_ENTRY_BYTES: Final = 64
_EMPTY_BYTES: Final = 64
_ESCAPED_BYTES: Final = 6
"""Bytes of a character in the encoding at most; above, of a manifest without entries, of an entry
without its texts, and of a chunk."""
_PLAIN: Final = re.compile(rf"(?:[\w-][\w.-]*/){{0,{LEVELS_MAX - 1}}}[\w-][\w.-]*", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class BadManifestError(ValueError):
    """A manifest that no tree may be made from; the text says why."""


class File(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A regular file."""

    path: str
    size: int
    executable: bool
    chunks: tuple[str, ...]

    def sizes(self) -> Iterable[tuple[str, int]]:
        """Each chunk with its size."""
        if len(self.chunks) == 1:
            return ((self.chunks[0], self.size),)
        last = len(self.chunks) - 1
        return [
            (chunk, CHUNK_BYTES if number < last else self.size - last * CHUNK_BYTES)
            for number, chunk in enumerate(self.chunks)
        ]


class TreeLink(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A symbolic link whose target is in the tree."""

    path: str
    target: str


class CodeManifest(msgspec.Struct, frozen=True):
    """A tree. Directories exist only as parts of paths, as in git."""

    files: tuple[File, ...] = ()
    links: tuple[TreeLink, ...] = ()
    version: int = VERSION

    @property
    def size(self) -> int:
        """Sum of the sizes of the files."""
        return sum(file.size for file in self.files)

    def paths(self) -> list[str]:
        """The paths of files and links."""
        return [file.path for file in self.files] + [link.path for link in self.links]

    def chunks(self) -> dict[str, int]:
        """Each different chunk with its size, in the order of the files."""
        return {chunk: size for file in self.files for chunk, size in file.sizes()}


def encode(manifest: CodeManifest) -> bytes:
    """Return the canonical encoding."""
    return msgspec.json.encode(
        msgspec.structs.replace(
            manifest,
            files=tuple(sorted(manifest.files, key=lambda file: file.path)),
            links=tuple(sorted(manifest.links, key=lambda link: link.path)),
        )
    )


def encoded_size(files: Iterable[tuple[str, int, bool]], links: Sequence[TreeLink]) -> int:
    """Return the size of a tree's manifest before any file is read: files are given with their
    sizes and whether they are executable."""
    named = (
        File(path, size, executable, (_UNREAD,) * -(-size // CHUNK_BYTES))
        for path, size, executable in files
    )
    return len(encode(CodeManifest(tuple(named), tuple(links))))


def encoded_at_most(texts: int, entries: int, size: int) -> int:
    """Return a size that the manifest of a tree does not exceed, for the characters of its paths
    and targets, the number of its files and links, and the sum of the sizes of its files."""
    chunks = entries + size // CHUNK_BYTES
    return _EMPTY_BYTES + texts * _ESCAPED_BYTES + entries * _ENTRY_BYTES + chunks * _CHUNK_BYTES


def digest(data: bytes | memoryview) -> str:
    """Return the SHA-256 that names a manifest or a chunk."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """True if `text` is a SHA-256 as Muster writes it."""
    return _SHA256.fullmatch(text) is not None


def decode(data: bytes) -> CodeManifest:
    """Read a manifest from an untrusted sender. Raises BadManifestError."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise BadManifestError(f"the manifest is larger than {MANIFEST_BYTES_MAX} bytes")
    try:
        manifest = msgspec.json.decode(data, type=CodeManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadManifestError(f"the manifest cannot be read: {error}") from error
    if manifest.version != VERSION:
        raise BadManifestError(f"the manifest has version {manifest.version}, not {VERSION}")
    check(manifest)
    if encode(manifest) != data:
        raise BadManifestError("the manifest is not in canonical form")
    return manifest


def check(manifest: CodeManifest) -> None:
    """Raise BadManifestError unless the tree can be made in any folder, and stays in it."""
    if len(manifest.files) + len(manifest.links) > FILES_MAX:
        raise BadManifestError(f"the tree has more than {FILES_MAX} files")
    check_names([file.path for file in manifest.files], manifest.links)
    sizes: dict[str, int] = {}
    for file in manifest.files:
        _check_content(file)
        for chunk, size in file.sizes():
            if sizes.setdefault(chunk, size) != size:
                raise BadManifestError(f"{file.path!r} has a chunk that has another size elsewhere")


def check_names(files: Iterable[str], links: Iterable[TreeLink]) -> None:
    """Raise BadManifestError unless files and links of these names can be made in any folder, and
    stay in it."""
    links = tuple(links)
    _check_paths([*files, *(link.path for link in links)])
    for link in links:
        if why := link_problem(link.path, link.target):
            raise BadManifestError(f"the link {link.path!r} {why}")


def _check_content(file: File) -> None:
    needed = -(-file.size // CHUNK_BYTES)
    if file.size < 0 or len(file.chunks) != needed:
        raise BadManifestError(f"{file.path!r} has {len(file.chunks)} chunks for {file.size} bytes")
    if not all(map(is_digest, file.chunks)):
        raise BadManifestError(f"{file.path!r} has a chunk whose name is not a SHA-256")


def _check_paths(paths: list[str]) -> None:
    # A folder has a number, because many long paths would have too many prefixes to keep. Because
    # names may be compared without case on some node, folders count as well as files.
    entries: dict[tuple[int, str], tuple[int, str, bool]] = {}
    above, inside = "", 0
    for path in paths:
        if why := path_problem(path):
            raise BadManifestError(f"the path {path!r} {why}")
        parts = path.split("/")
        before, above = above, path[: -len(parts[-1])]
        # Most paths are in the folder of the one before.
        begin, folder = (len(parts) - 1, inside) if above == before else (0, 0)
        for level, name in enumerate(parts[begin:], begin + 1):
            inside = folder
            new = (len(entries) + 1, name, level == len(parts))
            number, spelled, is_file = entries.setdefault((folder, name.casefold()), new)
            if spelled != name:
                other, here = ("/".join([*parts[: level - 1], last]) for last in (spelled, name))
                raise BadManifestError(f"{other!r} and {here!r} differ only by case")
            if number != new[0] and (is_file or level == len(parts)):
                raise BadManifestError(f"{path!r} stands for two files, or a file and a folder")
            folder = number
        if len(entries) > ENTRIES_MAX:
            raise BadManifestError(f"the tree has more than {ENTRIES_MAX} files and folders")


def path_problem(path: str) -> str:
    """Return why no file may have this path, or an empty text."""
    if len(path) <= _NAME_BYTES_MAX and _PLAIN.fullmatch(path):  # as most are
        return ""
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if len(raw) > _PATH_BYTES_MAX:
        return f"is longer than {_PATH_BYTES_MAX} bytes"
    parts = path.split("/")
    if len(parts) > LEVELS_MAX:
        return f"has more than {LEVELS_MAX} levels"
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        return "leaves the tree or is not in its shortest form"
    if ".git" in parts:
        return "is part of a git repository's own files"
    if len(raw) > _NAME_BYTES_MAX and any(len(p.encode()) > _NAME_BYTES_MAX for p in parts):
        return f"has a name longer than {_NAME_BYTES_MAX} bytes"
    return ""


def link_problem(path: str, target: str) -> str:
    """Return why the link leaves the tree, or an empty text.

    Only leading `..` are accepted: after the name of another link, `..` would lead elsewhere.
    """
    try:
        target.encode()
    except UnicodeEncodeError:
        return "has a target that is not UTF-8"
    if target.startswith("/"):
        return f"has the absolute target {target!r}"
    if not target or "\0" in target or len(target.encode()) > _PATH_BYTES_MAX:
        return f"has the impossible target {target!r}"
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    if up > path.count("/"):
        return f"leaves the tree: its target is {target!r}"
    if ".." in parts[up:]:
        return f"has `..` in the middle of its target {target!r}"
    return ""
