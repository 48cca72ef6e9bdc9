"""One deed for each of several jobs: what cannot be done to one does not keep the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.cli.complaints import EXIT_USAGE, complain
from muster.cli.reference import find_job
from muster.cli.text import note
from muster.client import Client, ClientError


def find_jobs(client: Client, jobs: Sequence[str]) -> list[int]:
    """The ids meant, none twice. All names first: what `last` means must not change half-way."""
    return list(dict.fromkeys(find_job(client, job) for job in jobs))


def for_each(numbers: Sequence[int], do: Callable[[int], None]) -> int:
    """Do it to each job, and complain of those to which it cannot be done. Returns the exit code:
    0, or that of the first complaint, but a usage error only where all are one.
    """
    codes = []
    for number in numbers:
        try:
            do(number)
        except ClientError as error:
            complaint = complain(error)
            note(complaint.text)
            codes.append(complaint.code)
    return next((code for code in codes if code != EXIT_USAGE), codes[0] if codes else 0)
