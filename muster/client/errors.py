"""The errors a caller of the client meets, each a sentence with what to do about it.

ClientError                 `str(error)` is complete; `hint` is what to do, or empty
  SettingsError             the url, the token or the client's file cannot be used
  UnreachableError               no answer: nothing listens, the connection was cut, TLS failed
  BadAnswerError                 an answer that this version cannot read
  ApiError                  the coordinator refused; `problem` is its answer
  NoSuchJobError                 a name, or `last`, that stands for no job
  NoSuchNodeError                a name that no node has
"""

from __future__ import annotations

from typing import Final

from muster.http.views import Problem

# The coordinator is starting or in the middle of a restart (or a proxy before it says so), or it
# asks us to slow down: the same request may well succeed in a moment.
_PASSING_STATUS: Final = frozenset({429, 502, 503, 504})


class ClientError(Exception):
    """The root. `passing`: the same call may succeed in a moment."""

    def __init__(self, message: str, hint: str = "", *, passing: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.passing = passing


class SettingsError(ClientError):
    """What the client was told of the coordinator cannot be used."""


class UnreachableError(ClientError):
    """No answer came from `url`."""

    def __init__(self, url: str, message: str, hint: str, *, passing: bool = True) -> None:
        super().__init__(message, hint, passing=passing)
        self.url = url


class BadAnswerError(ClientError):
    """An answer that is no answer of this API, or of a version of it that we do not know."""


class ApiError(ClientError):
    """The coordinator understood and refused."""

    def __init__(self, problem: Problem) -> None:
        message = problem.detail or problem.title
        super().__init__(message, problem.hint, passing=problem.status in _PASSING_STATUS)
        self.problem = problem

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status


class NoSuchJobError(ClientError):
    """Nothing goes by that name."""


class NoSuchNodeError(ClientError):
    """No node goes by that name."""
