"""One deed for each of several jobs: what cannot be done to one does not keep the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.cli.complaints import EXIT_USAGE, complain
from muster.cli.json_output import print_json
from muster.cli.reference import find_job
from muster.cli.text import note
from muster.client import Client, ClientError
from muster.protocol.http import JobList, JobSummary


def find_jobs(client: Client, jobs: Sequence[str]) -> list[int]:
    """The ids meant, none twice. All names first: what `last` means must not change half-way."""
    return list(dict.fromkeys(find_job(client, job) for job in jobs))


def for_each(numbers: Sequence[int], do: Callable[[int], JobSummary], *, as_json: bool) -> int:
    """Do it to each job, and complain of those to which it cannot be done; `as_json` prints what
    became of the others. Returns the exit code: 0, or that of the first complaint, but a usage
    error only where all are one.
    """
    codes = []
    done = []
    for number in numbers:
        try:
            done.append(do(number))
        except ClientError as error:
            complaint = complain(error)
            note(complaint.text)
            codes.append(complaint.code)
    if as_json:
        print_json(JobList(tuple(done)))
    return next((code for code in codes if code != EXIT_USAGE), codes[0] if codes else 0)
