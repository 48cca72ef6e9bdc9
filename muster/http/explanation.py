"""Response of the HTTP API that explains a job: why it waits, runs on its nodes, or ended."""

from __future__ import annotations

import msgspec

from muster.http.views import JobSummary, Reason
from muster.protocol.timestamp import Timestamp


class NodeVerdict(msgspec.Struct, frozen=True):
    """Verdict on one node for a job that starts now, with the reason. If `job` holds the node and
    has a time limit, `free_by` is the time at which that limit frees the node.
    """

    node: str
    can: bool
    reason: Reason
    job: int | None = None
    free_by: Timestamp | None = None


class JobAhead(msgspec.Struct, frozen=True):
    """A job ahead in the queue."""

    id: int
    name: str
    user: str
    priority: int
    nodes: int


class WentAhead(msgspec.Struct, frozen=True):
    """A running job that is behind in the queue and started first: its nodes, and why it delays
    nobody.
    """

    id: int
    nodes: tuple[str, ...]
    why: str


class AttemptStory(msgspec.Struct, frozen=True):
    """An attempt: its nodes and why they were chosen, its end, and the consequence. `ahead_of`
    names the waiting jobs before which it started, and why that does not delay them.
    """

    number: int
    nodes: tuple[str, ...]
    placement_reason: str
    network: str
    ended: str
    then: str
    fabric: str = ""
    ahead_of: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """Response of `GET /v1/jobs/{id}/explain`: why a job waits, runs on its nodes, or ended.

    `text` is a summary sentence. For a waiting job: `wanted` and `ready` count nodes, `nodes` has a
    verdict on each, `place` is its position in the queue from 1 (None: not queued), `ahead` are the
    first jobs before it, `went_ahead` the jobs behind it that run already. `starts_by` is the
    latest start according to the time limits of earlier jobs; `forecast` is the same as text, or
    why it is unknown. `hints` would start it sooner. `supposing` is the hypothesis of a what-if
    answer.
    """

    job: JobSummary
    text: str
    wanted: int = 0
    ready: int = 0
    starts_now: bool = False
    nodes: tuple[NodeVerdict, ...] = ()
    place: int | None = None
    ahead: tuple[JobAhead, ...] = ()
    starts_by: Timestamp | None = None
    forecast: str = ""
    hints: tuple[str, ...] = ()
    attempts: tuple[AttemptStory, ...] = ()
    supposing: str = ""
    went_ahead: tuple[WentAhead, ...] = ()
