"""What a user may call a job: its id, its name, or `last`."""

from __future__ import annotations

from typing import Final

from muster.client import Client, NoSuchJobError
from muster.protocol.http import JobSummary

_PAGE: Final = 500
_PAGES: Final = 4
_LAST: Final = frozenset({"last", "-"})
_ID_DIGITS_MAX: Final = 18


def find_job(client: Client, text: str) -> int:
    """The id meant by `text`; names and `last` are looked up among the caller's own jobs only, so
    that nobody cancels another's job by its name. Raises NoSuchJobError.
    """
    if text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX:
        return int(text)
    user = client.version().user or None
    if text in _LAST:
        newest = client.jobs(user=user, limit=1).jobs
        if newest:
            return newest[0].id
        raise NoSuchJobError("you have submitted no job yet", "muster submit -- python train.py")
    found = _newest_named(client, user, text)
    if found is None:
        raise NoSuchJobError(
            f"none of your last {_PAGE * _PAGES} jobs is named {text!r}",
            "`muster ps -a` lists jobs and their ids",
        )
    return found.id


def _newest_named(client: Client, user: str | None, name: str) -> JobSummary | None:
    cursor: str | None = None
    for _ in range(_PAGES):
        page = client.jobs(user=user, limit=_PAGE, cursor=cursor)
        for job in page.jobs:
            if job.name == name:
                return job
        cursor = page.cursor
        if cursor is None:
            break
    return None
