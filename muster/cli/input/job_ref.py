"""References to jobs and nodes (an id, a name, or `last`) and their shell completion."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from muster.client import Client

_OFFERED = 50


def find_job(client: Client, text: str) -> int:
    """Return the id of the job that `text` refers to. Raises NoSuchJobError."""
    return client.find_job(text)


class _Reference(click.ParamType[str]):
    """A string parameter. Completion queries the coordinator, with a short timeout."""

    def __init__(self, name: str, offer: Callable[[Client, str], list[tuple[str, str]]]) -> None:
        self.name = name
        self._offer = offer

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002 - click's signature
        ctx: click.Context | None,  # noqa: ARG002
    ) -> str:
        return str(value)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from muster.client import Client, load_settings

        try:
            found = self._offer(Client.of(load_settings(os.environ)), incomplete)
        except Exception:  # noqa: BLE001 - somebody is typing: no completion is better than a word
            return []
        return [CompletionItem(text, help=about) for text, about in found]


def _jobs(client: Client, typed: str) -> list[tuple[str, str]]:
    user = client.version().user or None
    jobs = client.jobs(user=user, limit=_OFFERED).jobs
    by_id = [(str(job.id), f"{job.name} {job.state.value}") for job in jobs]
    by_name = {job.name: f"{job.id} {job.state.value}" for job in reversed(jobs)}
    names = [*by_name.items(), ("last", "your newest job")]
    # Offer names only once a letter is typed, because each job would otherwise appear twice.
    return [item for item in (names if typed[:1].isalpha() else by_id) if item[0].startswith(typed)]


def _nodes(client: Client, typed: str) -> list[tuple[str, str]]:
    nodes = client.nodes().nodes
    return [(node.name, node.state.text) for node in nodes if node.name.startswith(typed)]


def _jobs_and_changes(client: Client, typed: str) -> list[tuple[str, str]]:
    """Complete the arguments of `muster set`: jobs, then keys to change."""
    keys = [(f"{key}=", about) for key, about in CHANGES.items() if key.startswith(typed)]
    return [*_jobs(client, typed), *keys]


CHANGES: Final = {
    "priority": "0 to 100, higher first",
    "time_limit": "36h, or none",
    "name": "while it waits",
}

JOB = _Reference("job", _jobs)
JOB_OR_CHANGE = _Reference("job or change", _jobs_and_changes)
NODE = _Reference("node", _nodes)
