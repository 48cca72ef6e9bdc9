"""The query parameters of each route: their types, and their descriptions in the schema."""

import enum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from muster.http.views import ATTEMPT_MAX, RANK_MAX, TAIL_MAX
from muster.protocol.link.log_channel import StreamKind
from muster.protocol.states import JobState
from muster.spec.field_readers import MAX_NODES

WAIT_S_DEFAULT: Final = 30.0
WAIT_S_MAX: Final = 60.0
# A greater value is refused; a smaller one is reduced to WAIT_S_MAX.
WAIT_S_ASKED_MAX: Final = 86_400.0
PAGE_MAX: Final = 1000
TIME_LIMIT_S_MAX: Final = 1e9
EVENT_ID: Final = "^[0-9]{1,17}(-[0-9a-f]{1,16})?$"

_Word = Annotated[str, Meta(max_length=255)]


class NoQuery(msgspec.Struct, frozen=True):
    """The route has no parameters."""


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs: jobs that match all given filters."""

    state: Annotated[
        tuple[JobState, ...] | None, Meta(description="in one of these states, separated by commas")
    ] = None
    user: Annotated[_Word | None, Meta(description="of this user")] = None
    pool: Annotated[_Word | None, Meta(description="in this pool")] = None
    name: Annotated[_Word | None, Meta(description="of this name")] = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="maximum number")] = 100
    cursor: Annotated[_Word | None, Meta(description="cursor of the previous page")] = None


class NodesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/nodes, sorted by name."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="maximum number")] = PAGE_MAX
    cursor: Annotated[
        Annotated[str, Meta(max_length=400)] | None,
        Meta(description="cursor of the previous page"),
    ] = None


class TokensQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/tokens: those that the caller may see."""

    user: Annotated[_Word | None, Meta(description="of this user")] = None


class ExplainQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs/{id}/explain. For a waiting job, also what-if questions."""

    nodes: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_NODES)] | None,
        Meta(description="what if it asked for this number of nodes"),
    ] = None
    drained: Annotated[
        tuple[_Word, ...] | None, Meta(description="what if these nodes, separated by commas, were")
    ] = None
    time_limit_s: Annotated[
        Annotated[float, Meta(ge=1, le=TIME_LIMIT_S_MAX)] | None,
        Meta(description="what if this was its time limit"),
    ] = None


class EnvironmentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs/{id}/env."""

    node: Annotated[_Word | None, Meta(description="only the environment of this node")] = None


class WaitQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs/{id}/wait."""

    timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=WAIT_S_ASKED_MAX,
            description=f"answer after this number of seconds, at most {WAIT_S_MAX:g}",
        ),
    ] = WAIT_S_DEFAULT


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/audit: the newest entries that match all given filters."""

    user: Annotated[_Word | None, Meta(description="of this user")] = None
    action: Annotated[_Word | None, Meta(description="of this action")] = None
    subject: Annotated[_Word | None, Meta(description="about this job or node")] = None
    since: Annotated[
        _Word | None, Meta(description="from this time on (RFC 3339), or for this long (`10m`)")
    ] = None
    refused: Annotated[bool, Meta(description="only refused requests")] = False
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="maximum number")] = 100


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/events and /v1/jobs/{id}/events."""

    after: Annotated[
        str,
        Meta(
            max_length=40,
            pattern=EVENT_ID,
            description="only events after this one: its `id` or its sequence number",
        ),
    ] = "0"
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="maximum number in a list")] = (
        PAGE_MAX
    )
    follow: Annotated[
        bool, Meta(description="as Server-Sent Events: existing ones, then new ones")
    ] = False


class LogFormat(enum.Enum):
    NDJSON = "ndjson"
    TEXT = "text"


class LogsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/jobs/{id}/logs. The default is all streams of all attempts."""

    follow: Annotated[bool, Meta(description="follow until the job has ended")] = False
    tail: Annotated[
        Annotated[int, Meta(ge=0, le=TAIL_MAX)] | Literal["all"] | None,
        Meta(description="begin with this number of last lines"),
    ] = None
    since: Annotated[
        _Word | None, Meta(description="begin at this time (RFC 3339), or this long ago (10m)")
    ] = None
    rank: Annotated[
        Annotated[int, Meta(ge=0, le=RANK_MAX)] | None, Meta(description="of this rank")
    ] = None
    node: Annotated[_Word | None, Meta(description="of this node")] = None
    stream: Annotated[
        tuple[StreamKind, ...] | None, Meta(description="of these streams, separated by commas")
    ] = None
    attempt: Annotated[
        Annotated[int, Meta(ge=1, le=ATTEMPT_MAX)] | None, Meta(description="of this attempt")
    ] = None
    format: Annotated[LogFormat, Meta(description="records with a trailer, or the raw bytes")] = (
        LogFormat.NDJSON
    )
    offset: Annotated[
        Annotated[int, Meta(ge=0, le=10**18 - 1)] | None,
        Meta(description="of one stream: begin at this byte"),
    ] = None
    cursor: Annotated[
        _Word | None, Meta(description="continue after the record with this cursor")
    ] = None

    @property
    def tail_lines(self) -> int | None:
        """Return the number of lines; None for all."""
        return self.tail if isinstance(self.tail, int) else None
