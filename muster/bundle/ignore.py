"""Ignore rules, equal to git's: `.gitignore`, `.musterignore` and `.git/info/exclude`. No I/O.

pathspec translates the patterns. Which pattern wins is decided here, because git compares each
pattern with the entry itself, and looks into no directory that is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

FILES: Final = (".gitignore", ".musterignore")
"""Names of the files with rules; of two in one directory, the later wins."""

_BOM: Final = "\xef\xbb\xbf"
_ITSELF_OR_BELOW: Final = "(?:(?P<ps_d>/)|$)"
_ANYWHERE: Final = "^(?:.+/)?"


class Origin(NamedTuple):
    """Place of the rule that decided: a file and a line."""

    file: str
    line: int


class _Pattern(NamedTuple):
    match: re.Pattern[str]
    by_name: bool
    directories: bool
    ignores: bool
    origin: Origin


class IgnoreRules:
    """The rules of one directory for everything below it."""

    def __init__(self, base: str, texts: Iterable[tuple[str, str]]) -> None:
        """`base` is the directory, empty or with a slash at its end, as paths begin with it.
        `texts` are its files with rules, each with its content, a character for each byte."""
        self._base = len(as_bytes(base))
        self._patterns: list[_Pattern] = []
        names: list[str] = []
        paths: list[str] = []
        for file, text in texts:
            for number, line in enumerate(text.removeprefix(_BOM).split("\n"), 1):
                made = _pattern(line.removesuffix("\r"), Origin(file, number))
                if made is None:
                    continue
                self._patterns.append(made)
                (names if made.by_name else paths).append(made.match.pattern)
        self._patterns.reverse()
        # Because most entries match no pattern, one expression for all decides first.
        self._some_name = _any(names)
        self._some_path = _any(paths)

    def decide(self, path: str, name: str, *, directory: bool) -> tuple[bool, Origin] | None:
        """Return whether these rules ignore an entry, and which does; None without such a rule."""
        if not path.isascii():
            path, name = as_bytes(path), as_bytes(name)
        below = path[self._base :]
        if not (self._some_name and self._some_name.match(name)) and not (
            self._some_path and self._some_path.match(below)
        ):
            return None
        for pattern in self._patterns:
            if pattern.directories and not directory:
                continue
            if pattern.match.match(name if pattern.by_name else below):
                return pattern.ignores, pattern.origin
        return None


def ignoring(
    rules: Iterable[IgnoreRules], path: str, name: str, *, directory: bool
) -> Origin | None:
    """Return the rule by which an entry is ignored, or None. `rules` are those of its directory
    first, then those of each directory above."""
    for each in rules:
        found = each.decide(path, name, directory=directory)
        if found is not None:
            ignored, origin = found
            return origin if ignored else None
    return None


def as_bytes(path: str) -> str:
    """Return a path with a character for each byte, because `?` matches a byte in git."""
    return path if path.isascii() else path.encode(errors="surrogateescape").decode("latin-1")


def _any(sources: list[str]) -> re.Pattern[str] | None:
    return (
        re.compile("|".join(f"(?:{source})" for source in sources), re.DOTALL) if sources else None
    )


def _pattern(line: str, origin: Origin) -> _Pattern | None:
    text = line if line.endswith("\\ ") else line.rstrip(" ")
    if not text or text.startswith("#"):
        return None
    # Because its import takes longer than a small scan, folders without rules do without.
    from pathspec.patterns.gitignore.base import GitIgnorePatternError
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    directories = text.endswith("/")
    try:
        source, ignores = GitIgnoreSpecPattern.pattern_to_regex(text.removesuffix("/"))
        if source is None or ignores is None:
            return None
        source = source.replace(_ITSELF_OR_BELOW, r"\Z")
        by_name = source.startswith(_ANYWHERE) and "/" not in text[:-1].removeprefix("!")
        if by_name:
            source = source.removeprefix(_ANYWHERE)
        return _Pattern(re.compile(source, re.DOTALL), by_name, directories, ignores, origin)
    except (GitIgnorePatternError, re.error):
        return None  # git, too, passes over a pattern without meaning
