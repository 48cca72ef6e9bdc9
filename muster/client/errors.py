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

# Statuses of a coordinator that is starting or restarting (or of a proxy before it), or that asks
# for fewer requests. The same request may succeed soon.
_PASSING_STATUS: Final = frozenset({429, 502, 503, 504})


class ClientError(Exception):
    """The base class. `passing`: the error is transient, and the same call may succeed soon."""

    def __init__(self, message: str, hint: str = "", *, passing: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.passing = passing


class SettingsError(ClientError):
    """The client's settings for the coordinator cannot be used."""


class UnreachableError(ClientError):
    """No answer came from `url`."""

    def __init__(self, url: str, message: str, hint: str, *, passing: bool = True) -> None:
        super().__init__(message, hint, passing=passing)
        self.url = url


class BadAnswerError(ClientError):
    """The answer does not belong to this API, or belongs to an unknown version of it."""


class ApiError(ClientError):
    """The coordinator understood the request and refused it."""

    def __init__(self, problem: Problem) -> None:
        message = problem.detail or problem.title
        super().__init__(message, problem.hint, passing=problem.status in _PASSING_STATUS)
        self.problem = problem

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status


class NoSuchJobError(ClientError):
    """No job has that name."""


class NoSuchNodeError(ClientError):
    """No node has that name."""
