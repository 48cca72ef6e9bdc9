"""Apply one action to several jobs or nodes. A failure on one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from muster.cli.errors import EXIT_USAGE, explain_error
from muster.cli.input.job_ref import find_job
from muster.cli.output.format import note
from muster.cli.output.json_output import print_json
from muster.client import Client, ClientError
from muster.http.node_actions import LostNodes
from muster.http.views import JobList, NodeList

Key = TypeVar("Key", int, str)
View = TypeVar("View")


def find_jobs(client: Client, jobs: Sequence[str]) -> list[int]:
    """Return the ids of the jobs, without duplicates. Resolves all names before any action, because
    the action may change what `last` refers to."""
    return list(dict.fromkeys(find_job(client, job) for job in jobs))


def for_each(
    keys: Sequence[Key],
    do: Callable[[Key], View],
    document: Callable[[tuple[View, ...]], JobList | NodeList | LostNodes],
    *,
    as_json: bool,
) -> int:
    """Call `do` with each key and report the failures. `as_json` prints the `document` of the
    results.

    Returns the exit code: 0, or that of the first failure. The code of a usage error is returned
    only if all failures are usage errors.
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
