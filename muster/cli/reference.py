"""What a user may call a job: its id, its name, or `last`."""

from __future__ import annotations

from muster.client import Client


def find_job(client: Client, text: str) -> int:
    """The id meant by `text`. Raises NoSuchJobError."""
    return client.find_job(text)
