"""A stream of lines as one unbroken sequence over as many connections as needed.

A `ResumableStream` does no I/O: it provides the query of the next connection and interprets its
lines. `Client` and `AsyncClient` both use one.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from muster.client.endpoints import Query
from muster.client.errors import BadAnswerError, UnreachableError

_T = TypeVar("_T")

_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 3.0
# Successive connections that open and bring nothing; more than these are not a restart.
_BARREN_MAX: Final = 20


class ResumableStream(ABC, Generic[_T]):
    """The position of a reader. `over`: everything requested has arrived."""

    what = "stream"  # the name of the stream in messages

    def __init__(self) -> None:
        self.over = False
        self.reason = ""  # the server's reason for ending a connection
        self._before: object = None
        self._barren = 0

    def parameters(self) -> Query:
        """Return the query of the next connection."""
        self._before, self.reason = self.place(), ""
        return self.query()

    @abstractmethod
    def place(self) -> object:
        """Return the current position, which changes whenever something arrives."""

    @abstractmethod
    def query(self) -> Query:
        """Return the query for the current position."""

    @abstractmethod
    def take(self, line: bytes) -> _T | None:
        """Decode a line. Returns None if it has no item for the reader. Raises BadAnswerError."""

    def pause_s(self) -> float:
        """Return the seconds to wait before the next connection.

        Raises BadAnswerError if too many successive connections have brought nothing.
        """
        self._barren = self._barren + 1 if self.place() == self._before else 0
        if self._barren > _BARREN_MAX:
            raise BadAnswerError(
                f"the coordinator keeps closing the {self.what}: "
                f"{self.reason or 'no reason given'}",
                "see its log",
            )
        if not self._barren:
            return 0.0
        limit = min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** min(self._barren, 10))
        return random.uniform(0, limit)  # noqa: S311 - spreads readers, keeps no secret

    def nothing(self) -> UnreachableError:
        """Return the error for a connection that ended without a line."""
        return UnreachableError("", f"the coordinator closed the {self.what}", "try again")
