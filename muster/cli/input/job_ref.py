"""What a user may call a job or a node: an id, a name, or `last`; and what the shell may offer."""

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
    """The id meant by `text`. Raises NoSuchJobError."""
    return client.find_job(text)


class _Reference(click.ParamType[str]):
    """A text, completed by asking the coordinator: quickly or not at all."""

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
    # Names only once a letter is typed: both lists at once say everything twice.
    return [item for item in (names if typed[:1].isalpha() else by_id) if item[0].startswith(typed)]


def _nodes(client: Client, typed: str) -> list[tuple[str, str]]:
    nodes = client.nodes().nodes
    return [(node.name, node.state.text) for node in nodes if node.name.startswith(typed)]


def _jobs_and_changes(client: Client, typed: str) -> list[tuple[str, str]]:
    """What `muster set` takes: jobs, then what is to change of them."""
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
