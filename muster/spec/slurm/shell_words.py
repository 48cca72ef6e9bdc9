"""Splitting of a command into words by shell rules, without expansion.

Own code, because `shlex` keeps the newline of a continued line and the backslash of `"\\$"`.
Operators, further commands and comments are refused, because no shell runs.
"""

from __future__ import annotations

from typing import Final

from muster.spec.errors import InvalidValueError, raise_refused

_BLANK: Final = " \t\r"
_OPERATORS: Final = ";&|<>"
_NO_SHELL: Final = "no shell runs here: quote it, or use `launcher: none`, which runs bash"
_ESCAPED_IN_QUOTES: Final = '$`"\\'
# Opening and closing characters of substitutions.
_CLOSES: Final = {"(": ")", "{": "}", "`": "`", "'": "'", '"': '"'}


def split_words(text: str) -> list[str]:
    """Split `text`; `$NAME`, `*` and `~` stay as they are. Raises `InvalidValueError`."""
    refused: list[InvalidValueError] = []
    words = first_words(text, refused)
    raise_refused(refused[:1])
    return words


def script_words(text: str) -> list[str]:
    """Split a line of a shell script. A command substitution stays unchanged as a part of its word.
    Raises `InvalidValueError`.
    """
    refused: list[InvalidValueError] = []
    words = _Splitter(text.strip(_BLANK + "\n"), refused, substitutes=True).words()
    raise_refused(refused[:1])
    return words


def first_words(text: str, refused: list[InvalidValueError]) -> list[str]:
    """Return the words before the first construct that needs a shell. Each such construct is added
    to `refused` once.
    """
    return _Splitter(text.strip(_BLANK + "\n"), refused).words()


class _Splitter:
    def __init__(
        self, text: str, refused: list[InvalidValueError], *, substitutes: bool = False
    ) -> None:
        """With `substitutes`, blanks inside `$(...)`, `${...}` and backticks do not end a word."""
        self._refused = refused
        self._text = text
        self._substitutes = substitutes
        self._at = 0
        self._word: list[str] | None = None  # None between words
        self._made: list[str] = []
        self._plain: int | None = None  # number of words before the first such construct

    def words(self) -> list[str]:
        while self._at < len(self._text):
            try:
                self._step(self._text[self._at])
            except InvalidValueError as unreadable:  # an unclosed quote: nothing is left
                self._refused.append(unreadable)
                break
        self._end_word()
        return self._made if self._plain is None else self._made[: self._plain]

    def _refuse(self, message: str, hint: str) -> None:
        """Record a shell construct, and continue as after a blank."""
        self._end_word()
        if self._plain is None:
            self._plain = len(self._made)
        if all(known.message != message for known in self._refused):
            self._refused.append(InvalidValueError(message, hint))
        self._at += 1

    def _step(self, char: str) -> None:
        end = self._substituted(self._at)
        if end > self._at:
            self._add(self._text[self._at : end])
            self._at = end
            return
        match char:
            case "'":
                self._add(self._until_single_quote())
            case '"':
                self._add(self._until_double_quote())
            case "\\":
                self._add_escaped()
            case "\n":
                self._refuse("is more than one line", "end a line that goes on with `\\`, or fold")
            case _ if char in _BLANK:
                self._end_word()
                self._at += 1
            case _ if char in _OPERATORS:
                if char in "<>" and self._word is not None and "".join(self._word).isdecimal():
                    self._word = None  # number of a file descriptor
                self._refuse(f"`{char}` is a shell operator", _NO_SHELL)
            case "#" if self._word is None:
                self._refuse("`#` begins a comment in a shell", "quote it, or remove the comment")
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
            raise InvalidValueError("ends with a backslash", "remove it, or write `\\\\`")
        if following != "\n":
            self._add(following)
        self._at += 2

    def _substituted(self, at: int) -> int:
        """Return the end of the substitution that begins at `at`; `at` itself if none does."""
        return _substitution_end(self._text, at) if self._substitutes else at

    def _until_single_quote(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise InvalidValueError(
                "has a quote ' that is never closed", "close it, or write `\\'`"
            )
        part = self._text[self._at + 1 : end]
        self._at = end + 1
        return part

    def _until_double_quote(self) -> str:
        part: list[str] = []
        at = self._at + 1
        while at < len(self._text):
            char, following = self._text[at], self._text[at + 1 : at + 2]
            end = self._substituted(at)
            if end > at:
                part.append(self._text[at:end])
                at = end
                continue
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
        raise InvalidValueError('has a quote " that is never closed', 'close it, or write `\\"`')


def _substitution_end(text: str, at: int) -> int:
    """Return the index after the `$(...)`, `${...}` or backticks that begin at `at`; `at` if none
    does.

    Parentheses, braces, quotes and further substitutions nest. Raises `InvalidValueError` for an
    unclosed one.
    """
    closes: list[str] = []
    begin = at
    while at < len(text):
        char, wanted = text[at], closes[-1] if closes else ""
        if char == "\\" and closes and wanted != "'":
            at += 2
            continue
        if closes and char == wanted:
            closes.pop()
        elif wanted == "'":
            pass
        elif text.startswith(("$(", "${"), at):
            at += 1
            closes.append(_CLOSES[text[at]])
        elif char == "`" or (wanted != '"' and closes and char in _CLOSES):
            closes.append(_CLOSES[char])
        elif not closes:
            return begin
        at += 1
        if not closes:
            return at
    if not closes:
        return begin
    raise InvalidValueError("has a command substitution that is never closed", "close it")


def base_name(word: str) -> str:
    """Return the last part of a path: `python` for `/venv/bin/python`."""
    return word.rstrip("/").rpartition("/")[2]


def suffix(word: str) -> str:
    """Return the suffix of a path with its dot: `.py` for `src/train.py`; "" if there is none."""
    stem, dot, end = base_name(word).rpartition(".")
    return dot + end if stem.strip(".") else ""


def stem(word: str) -> str:
    """Return the last part of a path without its suffix: `train` for `src/train.py`."""
    return base_name(word).removesuffix(suffix(word))
