"""The coordinator's API as values: the request of each call, and the type of its answer. No I/O.

`Client` and `AsyncClient` both execute these. A procedure of several calls is a generator that
yields calls, receives their answers and returns the result.

Calls that are safe to repeat (reads, cancels, changes, submits with a key) are retried for
`patience_s`, to outlast a restart of the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from muster.client.errors import NoSuchJobError, NoSuchNodeError
from muster.http.explanation import Explanation
from muster.http.job_actions import (
    CancelAnswer,
    CancelRequest,
    ChangeAnswer,
    RerunRequest,
    SignalAnswer,
    SignalRequest,
)
from muster.http.node_actions import DrainRequest, LostAnswer, NodeAnswer, ResumeRequest
from muster.http.views import (
    EnvironmentView,
    EventList,
    JobList,
    JobSummary,
    JobView,
    NodeList,
    NodeView,
    Validation,
    VersionView,
)
from muster.protocol.states import ENDED_STATES, JobState

if TYPE_CHECKING:
    # Importing these types takes longer than importing all other answers.
    from muster.http.audit import AuditList
    from muster.http.bundles import BundleView, PackAnswer
    from muster.http.fabric import FabricView
    from muster.http.job_evidence import Evidence
    from muster.http.node_probe import CheckRequest, NodeProbe
    from muster.http.people import (
        NewToken,
        TokenList,
        TokenRequest,
        TokenView,
        UserAnswer,
        UserChange,
        UserList,
        UserRequest,
    )
    from muster.protocol.observations.hangs import StacksView

_T = TypeVar("_T")

Query: TypeAlias = Mapping[str, str | int | float | None]
Steps: TypeAlias = Generator["Call[Any]", Any, _T]

# Retry time in seconds: short for a question, because its user waits; long enough for a restart for
# a submit; long enough for a machine upgrade for waiting on a job.
ASK_S: Final = 3.0
CHANGE_S: Final = 30.0
WATCH_S: Final = 900.0
# Time limit for one answer, and the longest time that the coordinator holds a long poll.
READ_TIMEOUT_S: Final = 30.0
UPLOAD_TIMEOUT_S: Final = 300.0
LONG_POLL_S: Final = 30.0

LAST: Final = frozenset({"last", "-"})
# Limits of one request, chosen to fit the coordinator's default limit on a body.
_CHUNKS_MAX: Final = 8000
_PAGE_MAX: Final = 1000
_ID_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """A request, and `kind`, the type of a good answer. If `patience_s` is None, it is never
    retried."""

    kind: type[_T]
    method: str
    path: str
    query: Query = field(default_factory=dict)
    body: bytes | bytearray | memoryview | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    patience_s: float | None = ASK_S
    timeout_s: float = READ_TIMEOUT_S


def submit(job: Mapping[str, Any], key: str) -> Call[JobSummary]:
    return Call(
        JobSummary,
        "POST",
        "/v1/jobs",
        body=msgspec.json.encode(job),
        headers={"Idempotency-Key": key},
        patience_s=CHANGE_S,
    )


def bundle(sha256: str) -> Call[BundleView]:
    from muster.http.bundles import BundleView

    return Call(BundleView, "GET", f"/v1/bundles/{sha256}")


def missing_chunks(chunks: Mapping[str, int], size: int) -> Steps[dict[str, int]]:
    """Find the chunks of a bundle of `size` bytes that the user has not uploaded yet."""
    from muster.http.bundles import MissingAnswer, MissingRequest

    names, missing = list(chunks), dict[str, int]()
    for at in range(0, len(names) or 1, _CHUNKS_MAX):
        body = MissingRequest(tuple(names[at : at + _CHUNKS_MAX]), size)
        answer = yield Call(
            MissingAnswer, "POST", "/v1/blobs:missing", body=msgspec.json.encode(body)
        )
        missing.update((chunk, chunks[chunk]) for chunk in answer.missing)
    return missing


def send_chunks(pack: bytes | bytearray | memoryview) -> Call[PackAnswer]:
    from muster.http.bundles import PackAnswer

    return _bytes(PackAnswer, "POST", "/v1/blobs", pack)


def send_manifest(sha256: str, data: bytes) -> Call[BundleView]:
    from muster.http.bundles import BundleView

    return _bytes(BundleView, "PUT", f"/v1/bundles/{sha256}", data)


def _bytes(
    kind: type[_T], method: str, path: str, body: bytes | bytearray | memoryview
) -> Call[_T]:
    return Call(
        kind,
        method,
        path,
        body=body,
        headers={"Content-Type": "application/octet-stream"},
        patience_s=CHANGE_S,
        timeout_s=UPLOAD_TIMEOUT_S,
    )


def validate(job: Mapping[str, Any]) -> Call[Validation]:
    return Call(Validation, "POST", "/v1/jobs:validate", body=msgspec.json.encode(job))


def job(number: int) -> Call[JobView]:
    return Call(JobView, "GET", f"/v1/jobs/{number}")


def jobs(
    states: Sequence[JobState],
    user: str | None,
    pool: str | None,
    name: str | None,
    limit: int | None,
    cursor: str | None,
) -> Call[JobList]:
    query = {
        "state": ",".join(state.value for state in states) or None,
        "user": user,
        "pool": pool,
        "name": name,
        "limit": limit,
        "cursor": cursor,
    }
    return Call(JobList, "GET", "/v1/jobs", query)


def cancel(number: int, reason: str, grace_s: float | None, *, force: bool) -> Call[CancelAnswer]:
    body = msgspec.json.encode(CancelRequest(reason, grace_s, force))
    path = f"/v1/jobs/{number}/cancel"
    return Call(CancelAnswer, "POST", path, body=body, patience_s=CHANGE_S)


def change(number: int, wanted: Mapping[str, Any]) -> Call[ChangeAnswer]:
    body = msgspec.json.encode(wanted)
    return Call(ChangeAnswer, "PATCH", f"/v1/jobs/{number}", body=body, patience_s=CHANGE_S)


def fabric(number: int) -> Call[FabricView]:
    from muster.http.fabric import FabricView

    return Call(FabricView, "GET", f"/v1/jobs/{number}/fabric")


def stacks(number: int) -> Call[StacksView]:
    from muster.protocol.observations.hangs import StacksView

    return Call(StacksView, "POST", f"/v1/jobs/{number}/stacks", patience_s=CHANGE_S)


def evidence(number: int) -> Call[Evidence]:
    from muster.http.job_evidence import Evidence

    return Call(Evidence, "GET", f"/v1/jobs/{number}/evidence")


def environment(number: int, node: str | None) -> Call[EnvironmentView]:
    return Call(EnvironmentView, "GET", f"/v1/jobs/{number}/env", {"node": node})


def explain(
    number: int, nodes: int | None, drained: Sequence[str], time_limit_s: float | None
) -> Call[Explanation]:
    query = {
        "nodes": nodes,
        "drained": ",".join(drained) or None,
        "time_limit_s": time_limit_s,
    }
    return Call(Explanation, "GET", f"/v1/jobs/{number}/explain", query)


def signal(number: int, name: str, rank: int | None, node: str | None) -> Call[SignalAnswer]:
    body = msgspec.json.encode(SignalRequest(name, rank, node))
    # Not retried: if the answer is lost, the ranks may have received the signal.
    return Call(SignalAnswer, "POST", f"/v1/jobs/{number}/signal", body=body, patience_s=None)


def rerun(number: int, key: str, sets: Sequence[str], exclude: Sequence[str]) -> Call[JobSummary]:
    return Call(
        JobSummary,
        "POST",
        f"/v1/jobs/{number}/rerun",
        body=msgspec.json.encode(RerunRequest(tuple(sets), tuple(exclude))),
        headers={"Idempotency-Key": key},
        patience_s=CHANGE_S,
    )


def events(number: int, after: int | str) -> Call[EventList]:
    return Call(EventList, "GET", f"/v1/jobs/{number}/events", {"after": after})


def nodes(cursor: str | None) -> Call[NodeList]:
    return Call(NodeList, "GET", "/v1/nodes", {"cursor": cursor})


def users() -> Call[UserList]:
    from muster.http.people import UserList

    return Call(UserList, "GET", "/v1/users")


def add_user(wanted: UserRequest) -> Call[UserAnswer]:
    from muster.http.people import UserAnswer

    return Call(UserAnswer, "POST", "/v1/users", body=msgspec.json.encode(wanted), patience_s=None)


def change_user(name: str, wanted: UserChange) -> Call[UserAnswer]:
    from muster.http.people import UserAnswer

    body = msgspec.json.encode(wanted)
    return Call(UserAnswer, "PATCH", _path("users", name), body=body, patience_s=CHANGE_S)


def disable_user(name: str, *, end_jobs: bool) -> Call[UserAnswer]:
    from muster.http.people import DisableRequest, UserAnswer

    body = msgspec.json.encode(DisableRequest(end_jobs))
    path = _path("users", name, "/disable")
    return Call(UserAnswer, "POST", path, body=body, patience_s=CHANGE_S)


def tokens(user: str | None) -> Call[TokenList]:
    from muster.http.people import TokenList

    return Call(TokenList, "GET", "/v1/tokens", {"user": user})


def create_token(wanted: TokenRequest) -> Call[NewToken]:
    from muster.http.people import NewToken

    # Not retried: a lost answer leaves a token that nobody holds.
    return Call(NewToken, "POST", "/v1/tokens", body=msgspec.json.encode(wanted), patience_s=None)


def revoke_token(name: str) -> Call[TokenView]:
    from muster.http.people import TokenView

    return Call(TokenView, "POST", _path("tokens", name, "/revoke"), body=b"{}", patience_s=None)


def audit(
    user: str | None,
    action: str | None,
    subject: str | None,
    since: str | None,
    refused: bool,
    limit: int,
) -> Call[AuditList]:
    from muster.http.audit import AuditList

    query: Query = {
        "user": user,
        "action": action,
        "subject": subject,
        "since": since,
        "refused": "true" if refused else None,
        "limit": limit,
    }
    return Call(AuditList, "GET", "/v1/audit", query)


def probe(name: str) -> Call[NodeProbe]:
    from muster.http.node_probe import NodeProbe

    return Call(NodeProbe, "GET", _node_path(name, "probe"))


def check(name: str, wanted: CheckRequest, key: str) -> Call[JobSummary]:
    return Call(
        JobSummary,
        "POST",
        _node_path(name, "check"),
        body=msgspec.json.encode(wanted),
        headers={"Idempotency-Key": key},
        patience_s=CHANGE_S,
    )


def drain(name: str, wanted: DrainRequest) -> Call[NodeAnswer]:
    body = msgspec.json.encode(wanted)
    return Call(NodeAnswer, "POST", _node_path(name, "drain"), body=body, patience_s=CHANGE_S)


def resume(name: str, *, check: bool) -> Call[NodeAnswer]:
    body = msgspec.json.encode(ResumeRequest(check))
    return Call(NodeAnswer, "POST", _node_path(name, "resume"), body=body, patience_s=CHANGE_S)


def remove(name: str) -> Call[NodeAnswer]:
    return Call(NodeAnswer, "POST", _node_path(name, "remove"), body=b"{}", patience_s=CHANGE_S)


def lost(name: str) -> Call[LostAnswer]:
    return Call(LostAnswer, "POST", _node_path(name, "lost"), body=b"{}", patience_s=CHANGE_S)


def _node_path(name: str, verb: str) -> str:
    return _path("nodes", name, f"/{verb}")


def _path(kind: str, name: str, verb: str = "") -> str:
    from urllib.parse import quote

    return f"/v1/{kind}/{quote(name, safe='')}{verb}"


def version() -> Call[VersionView]:
    return Call(VersionView, "GET", "/v1/version")


def wait(number: int, timeout_s: float | None) -> Steps[JobSummary]:
    """Long-poll until the job has ended or the timeout has passed."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = LONG_POLL_S if deadline is None else deadline - time.monotonic()
        poll_s = round(min(max(left, 0.0), LONG_POLL_S), 3)
        summary: JobSummary = yield Call(
            JobSummary,
            "GET",
            f"/v1/jobs/{number}/wait",
            {"timeout_s": poll_s},
            patience_s=WATCH_S,
            timeout_s=poll_s + READ_TIMEOUT_S,
        )
        # Check the clock, because a coordinator that stops answers a long poll early.
        over = deadline is not None and time.monotonic() >= deadline
        if summary.state in ENDED_STATES or over:
            return summary


def all_jobs(
    states: Sequence[JobState] = (),
    user: str | None = None,
    pool: str | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> Steps[JobList]:
    """Fetch the pages for `limit` jobs, or all. `cursor` is set if there are more.

    A page may have fewer jobs than requested, or none, without being the last.
    """
    found: list[JobSummary] = []
    cursor: str | None = None
    while True:
        left = _PAGE_MAX if limit is None else min(limit - len(found), _PAGE_MAX)
        page: JobList = yield jobs(states, user, pool, name, left, cursor)
        found += page.jobs
        cursor = page.cursor
        if cursor is None or len(found) == limit:
            return JobList(tuple(found), cursor)


def all_nodes() -> Steps[NodeList]:
    """Fetch all pages."""
    found: list[NodeView] = []
    cursor: str | None = None
    while True:
        page: NodeList = yield nodes(cursor)
        found += page.nodes
        cursor = page.cursor
        if cursor is None:
            return NodeList(tuple(found), None, page.awaited, page.held, page.warnings)


def find_job(text: str) -> Steps[int]:
    """Return the id that `text` stands for: an id, a name, or `last`. Raises NoSuchJobError.

    Names and `last` are resolved among the caller's own jobs only, so that nobody cancels another
    user's job by its name.
    """
    if text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX:
        return int(text)
    who: VersionView = yield version()
    user = who.user or None
    name = None if text in LAST else text
    found = yield from all_jobs(user=user, name=name, limit=1)
    if found.jobs:
        return found.jobs[0].id
    if text in LAST:
        raise NoSuchJobError("you have submitted no job yet", "muster submit -- python train.py")
    recent: JobList = yield jobs((), user, None, None, _PAGE_MAX, None)
    names = list(dict.fromkeys(known.name for known in recent.jobs))
    raise NoSuchJobError(
        f"none of your jobs is named {text!r}",
        _did_you_mean(text, names) or "`muster ps -a` lists jobs and their ids",
    )


def node(name: str) -> Steps[NodeView]:
    """Return the node of that name. Raises NoSuchNodeError."""
    found = yield from all_nodes()
    for known in found.nodes:
        if known.name == name:
            return known
    names = [known.name for known in found.nodes]
    raise NoSuchNodeError(
        f"there is no node {name!r}",
        _did_you_mean(name, names)
        or ("`muster nodes` lists them" if names else "no node has joined yet"),
    )


def _did_you_mean(text: str, known: Sequence[str]) -> str:
    """Suggest names with the same numbers as `text`: gpu-1 may mean gpu-01, but gpu-99 not
    gpu-91."""
    import difflib

    same_numbers = [name for name in known if _numbers(name) == _numbers(text)]
    near = difflib.get_close_matches(text, same_numbers, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _numbers(text: str) -> list[str]:
    import re

    return [digits.lstrip("0") for digits in re.findall("[0-9]+", text)]
