"""The query parameters of each route: their types, and their descriptions in the schema."""

import enum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from muster.http.views import ATTEMPT_MAX, RANK_MAX, TAIL_MAX
from muster.protocol.log_channel import StreamKind
from muster.protocol.states import JobState
from muster.spec.field_readers import MAX_NODES

WAIT_S_DEFAULT: Final = 30.0
WAIT_S_MAX: Final = 60.0
# A greater value is refused; a smaller one is reduced to WAIT_S_MAX.
WAIT_S_ASKED_MAX: Final = 86_400.0
PAGE_MAX: Final = 1000
EVENT_ID: Final = "^[0-9]{1,17}(-[0-9a-f]{1,16})?$"

_Word = Annotated[str, Meta(max_length=255)]


class NoQuery(msgspec.Struct, frozen=True):
    """The route has no parameters."""


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs: jobs that match all given filters."""

    state: Annotated[
        tuple[JobState, ...] | None, Meta(description="in one of these states, by commas")
    ] = None
    user: Annotated[_Word | None, Meta(description="of this user")] = None
    pool: Annotated[_Word | None, Meta(description="in this pool")] = None
    name: Annotated[_Word | None, Meta(description="of this name")] = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="at most so many")] = 100
    cursor: Annotated[_Word | None, Meta(description="the next page: of the page before")] = None


class NodesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/nodes, sorted by name."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="at most so many")] = PAGE_MAX
    cursor: Annotated[
        Annotated[str, Meta(max_length=400)] | None,
        Meta(description="the next page: of the page before"),
    ] = None


class ExplainQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs/{id}/explain. For a waiting job, also what-if questions."""

    nodes: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_NODES)] | None,
        Meta(description="suppose that it asked for so many nodes"),
    ] = None
    drained: Annotated[
        tuple[_Word, ...] | None, Meta(description="suppose that these nodes, by commas, were")
    ] = None


class WaitQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs/{id}/wait."""

    timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=WAIT_S_ASKED_MAX,
            description=f"answer after so many seconds, and after {WAIT_S_MAX:g} at the latest",
        ),
    ] = WAIT_S_DEFAULT


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/events and /v1/jobs/{id}/events."""

    after: Annotated[
        str,
        Meta(
            max_length=40,
            pattern=EVENT_ID,
            description="only those behind this event: its `id`, or its sequence number",
        ),
    ] = "0"
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="of a list: at most so many")] = (
        PAGE_MAX
    )
    follow: Annotated[
        bool, Meta(description="as Server-Sent Events: those that are there, then what comes")
    ] = False


class LogFormat(enum.Enum):
    NDJSON = "ndjson"
    TEXT = "text"


class LogsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs/{id}/logs. The default is all streams of all attempts."""

    follow: Annotated[bool, Meta(description="go on until the job has ended")] = False
    tail: Annotated[
        Annotated[int, Meta(ge=0, le=TAIL_MAX)] | Literal["all"] | None,
        Meta(description="begin with so many last lines"),
    ] = None
    since: Annotated[
        _Word | None, Meta(description="begin at this time (RFC 3339), or so long ago (10m)")
    ] = None
    rank: Annotated[
        Annotated[int, Meta(ge=0, le=RANK_MAX)] | None, Meta(description="of this rank")
    ] = None
    node: Annotated[_Word | None, Meta(description="of this node")] = None
    stream: Annotated[
        tuple[StreamKind, ...] | None, Meta(description="of these streams, by commas")
    ] = None
    attempt: Annotated[
        Annotated[int, Meta(ge=1, le=ATTEMPT_MAX)] | None, Meta(description="of this attempt")
    ] = None
    format: Annotated[
        LogFormat, Meta(description="records with a trailer, or the bytes as they were written")
    ] = LogFormat.NDJSON
    offset: Annotated[
        Annotated[int, Meta(ge=0, le=10**18 - 1)] | None,
        Meta(description="of one stream: from this byte on"),
    ] = None
    cursor: Annotated[_Word | None, Meta(description="go on behind the record that carried it")] = (
        None
    )

    @property
    def tail_lines(self) -> int | None:
        """Return the number of lines; None for all."""
        return self.tail if isinstance(self.tail, int) else None
