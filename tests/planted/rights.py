"""Rights: what the matrix of principals and jobs has to find, and what a stream loses with them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from muster.daemon.clock import SystemClock
from muster.protocol.ids import JobId
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.access import TOKEN, AccessTable
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.route import ROUTE
from orchestrator.api.http.stream_revocation import StreamRevocation
from orchestrator.api.http.tokens import TokenStore
from orchestrator.api.routes import ROUTES
from orchestrator.core.model.people import KnownToken, KnownUser, People
from orchestrator.core.rights import rules
from orchestrator.core.rights.principals import Owned, Policy, Principal, Visibility
from orchestrator.core.rights.rules import Action
from tests.orchestrator.core.rights import test_rules as matrix
from tests.planted import Bug, Patch, put

_LOOKS = 200
_LOGS = next(route for route in ROUTES if route.path == "/v1/jobs/{id}/logs")


def every_principal_asks(_: Path) -> None:
    matrix.test_every_user_with_every_job()
    matrix.test_nodes_and_nobody()
    matrix.test_a_user_without_a_role_may_do_no_more_than_nobody()
    with pytest.MonkeyPatch.context() as monkeypatch:
        matrix.test_an_action_without_a_rule_is_denied(monkeypatch)


def a_stream_loses_its_rights(_: Path) -> None:
    """An operator follows another's log, and is an operator no more."""

    async def main() -> None:
        site = _Site()
        request = await site.asks("olga", 1)
        handled = asyncio.create_task(site.streams.middleware(request, _for_ever))
        watching = asyncio.create_task(site.streams.watch())
        try:
            assert not await _cut(request), "a stream with rights is cut"
            site.people.users["olga"] = KnownUser("olga", Role.USER)
            assert await _cut(request), "the stream goes on without rights"
        finally:
            handled.cancel()
            watching.cancel()

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("orchestrator.api.http.stream_revocation._LOOK_EVERY_S", 0)
        asyncio.run(main())


def a_user_asks_for_anothers_job(_: Path) -> None:
    async def main() -> None:
        site = _Site()
        await site.asks("ann", 1)
        for job in (1, 2):  # the second does not exist
            try:
                await site.asks("bob", job)
            except ApiError:
                continue
            raise AssertionError(f"bob reads job {job}")

    asyncio.run(main())


class _Site:
    """A job of ann's, an operator, another user, and their tokens."""

    def __init__(self) -> None:
        roles = {"ann": Role.USER, "bob": Role.USER, "olga": Role.OPERATOR}
        self.people = People(
            {name: KnownUser(name, role) for name, role in roles.items()},
            {name: KnownToken(name, TokenClass.USER, "0" * 64, name) for name in roles},
        )
        tokens, owners = TokenStore(self.people, SystemClock()), _Owners()
        self._access = AccessTable(ROUTES, tokens, owners, Policy(), refusals_per_s=1.0)  # type: ignore[arg-type]
        self.streams = StreamRevocation(tokens, self._access)

    async def asks(self, user: str, job: int) -> web.Request:
        """Return the request once it is allowed. Raises ApiError."""
        request = make_mocked_request(
            "GET", f"/v1/jobs/{job}/logs", match_info={"id": str(job)}, transport=Mock()
        )
        request[ROUTE] = _LOGS
        request[TOKEN] = self.people.tokens[user]
        await self._access.check_object(request, _LOGS)
        return request


class _Owners:
    async def of(self, jobs: Collection[JobId]) -> dict[JobId, str]:
        return {job: "ann" for job in jobs if job == 1}

    def forgot(self, _: JobId) -> bool:
        return False


async def _for_ever(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def _cut(request: web.Request) -> bool:
    close = request.transport.close  # type: ignore[union-attr]
    assert isinstance(close, Mock)
    for _ in range(_LOOKS):
        await asyncio.sleep(0)
    return close.called


def _decided_by(wrong: object) -> Patch:
    """The matrix and the product ask this function instead of `may`."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rules, "may", wrong)
        monkeypatch.setattr(matrix, "may", wrong)

    return patch


_may = rules.may


def _allows_the_unknown(who: Principal, action: Action, job: Owned | None, policy: Policy) -> bool:
    return action not in rules.RULES or _may(who, action, job, policy)


def _by_prefix(who: Principal, action: Action, job: Owned | None, policy: Policy) -> bool:
    if job is not None and job.owner.startswith(who.name):
        job = Owned(who.name, job.teams)
    return _may(who, action, job, policy)


def _without_kinds(who: Principal, action: Action, job: Owned | None, policy: Policy) -> bool:
    return who.kind.value == "node" or _may(who, action, job, policy)


def _to_any_team(_who: Principal, _job: Owned, visibility: Visibility) -> bool:
    return visibility is not Visibility.PRIVATE


def _swapped(role: Role, other: Role) -> bool:
    order = (Role.VIEWER, Role.OPERATOR, Role.USER, Role.ADMIN)
    return order.index(role) >= order.index(other)


async def _never(*_: object) -> str:
    return ""


async def _with_some_job(access: AccessTable, request: web.Request, _: object) -> bool:
    return rules.may_with_some(access.principal(request[TOKEN]), _LOGS.action)


async def _undecided(*_: object) -> None:
    return None


BUGS = (
    Bug(
        "an action without a rule is allowed",
        "rights",
        _decided_by(_allows_the_unknown),
        every_principal_asks,
    ),
    Bug("an owner is known by a prefix", "rights", _decided_by(_by_prefix), every_principal_asks),
    Bug(
        "a node may do what users may",
        "rights",
        _decided_by(_without_kinds),
        every_principal_asks,
    ),
    Bug(
        "a job is shown to every team",
        "rights",
        put(rules, "_shows", _to_any_team),
        every_principal_asks,
    ),
    Bug(
        "an operator is less than a user",
        "rights",
        put(Role, "includes", _swapped),
        every_principal_asks,
    ),
    Bug(
        "rights are decided at the beginning of a stream alone",
        "rights",
        put(StreamRevocation, "_denied", _never),
        a_stream_loses_its_rights,
    ),
    Bug(
        "an open stream is decided about without its job",
        "rights",
        put(AccessTable, "still_allowed", _with_some_job),
        a_stream_loses_its_rights,
    ),
    Bug(
        "a route decides about the role alone",
        "rights",
        put(AccessTable, "check_object", _undecided),
        a_user_asks_for_anothers_job,
    ),
)
