"""Splits a command into words as a shell does, and stops there: nothing is expanded.

Written out, because `shlex` keeps the newline of a continued line and the backslash of `"\\$"`.
What a shell would take for an operator, a second command or a comment is refused, since no shell
runs.
"""

from __future__ import annotations

from typing import Final

from muster.spec.problems import RefusedError

_BLANK: Final = " \t\r"
_OPERATORS: Final = ";&|<>"
_NO_SHELL: Final = "no shell reads this: quote it, or use `launcher: none`, where bash does"
_ESCAPED_IN_QUOTES: Final = '$`"\\'


def split_words(text: str) -> list[str]:
    """The words of `text`; `$NAME`, `*` and `~` stay as they are. Raises `RefusedError`."""
    return _Splitter(text.strip(_BLANK + "\n")).words()


class _Splitter:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._word: list[str] | None = None  # None between words
        self._made: list[str] = []

    def words(self) -> list[str]:
        while self._at < len(self._text):
            self._step(self._text[self._at])
        self._end_word()
        return self._made

    def _step(self, char: str) -> None:
        match char:
            case "'":
                self._add(self._until_single_quote())
            case '"':
                self._add(self._until_double_quote())
            case "\\":
                self._add_escaped()
            case "\n":
                raise RefusedError(
                    "is more than one line", "end a line that goes on with `\\`, or fold"
                )
            case _ if char in _BLANK:
                self._end_word()
                self._at += 1
            case _ if char in _OPERATORS:
                raise RefusedError(f"`{char}` is an operator of a shell", _NO_SHELL)
            case "#" if self._word is None:
                raise RefusedError(
                    "`#` begins a comment in a shell", "quote it, or remove the comment"
                )
            case _:
                self._add(char)
                self._at += 1

    def _add(self, part: str) -> None:
        if self._word is None:
            self._word = []
        self._word.append(part)

    def _end_word(self) -> None:
        if self._word is not None:
            self._made.append("".join(self._word))
        self._word = None

    def _add_escaped(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if not following:
            raise RefusedError("ends with a backslash", "remove it, or write `\\\\`")
        if following != "\n":
            self._add(following)
        self._at += 2

    def _until_single_quote(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise RefusedError("has a quote ' that is never closed", "close it, or write `\\'`")
        part = self._text[self._at + 1 : end]
        self._at = end + 1
        return part

    def _until_double_quote(self) -> str:
        part: list[str] = []
        at = self._at + 1
        while at < len(self._text):
            char, following = self._text[at], self._text[at + 1 : at + 2]
            if char == '"':
                self._at = at + 1
                return "".join(part)
            if char == "\\" and following == "\n":
                at += 2
            elif char == "\\" and following and following in _ESCAPED_IN_QUOTES:
                part.append(following)
                at += 2
            else:
                part.append(char)
                at += 1
        raise RefusedError('has a quote " that is never closed', 'close it, or write `\\"`')


def base_name(word: str) -> str:
    """The last part of a path: `/venv/bin/python` is `python`."""
    return word.rstrip("/").rpartition("/")[2]


def suffix(word: str) -> str:
    """The suffix of a path with its dot: `.py` of `src/train.py`; empty if there is none."""
    stem, dot, end = base_name(word).rpartition(".")
    return dot + end if stem.strip(".") else ""


def stem(word: str) -> str:
    """The last part of a path without its suffix: `train` of `src/train.py`."""
    return base_name(word).removesuffix(suffix(word))
