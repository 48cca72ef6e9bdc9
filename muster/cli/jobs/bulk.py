"""One deed for each of several jobs or nodes: what cannot be done to one does not keep the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from muster.cli.errors import EXIT_USAGE, explain_error
from muster.cli.input.job_ref import find_job
from muster.cli.output.format import note
from muster.cli.output.json_output import print_json
from muster.client import Client, ClientError
from muster.http.views import JobList, NodeList

Key = TypeVar("Key", int, str)
View = TypeVar("View")


def find_jobs(client: Client, jobs: Sequence[str]) -> list[int]:
    """The ids meant, none twice. All names first: what `last` means must not change half-way."""
    return list(dict.fromkeys(find_job(client, job) for job in jobs))


def for_each(
    keys: Sequence[Key],
    do: Callable[[Key], View],
    document: Callable[[tuple[View, ...]], JobList | NodeList],
    *,
    as_json: bool,
) -> int:
    """Do it to each, and complain of those to which it cannot be done; `as_json` prints the
    `document` of what became of the others. Returns the exit code: 0, or that of the first
    complaint, but a usage error only where all are one.
    """
    codes = []
    done = []
    for key in keys:
        try:
            done.append(do(key))
        except ClientError as error:
            complaint = explain_error(error)
            note(complaint.text)
            codes.append(complaint.code)
    if as_json:
        print_json(document(tuple(done)))
    return next((code for code in codes if code != EXIT_USAGE), codes[0] if codes else 0)
