"""Access control: every route declares its action; anything else is closed.

`check` finds the principal of a request and refuses actions that its role never allows.
`check_object` then decides about the job or the token in the path. Both remember what they allowed,
so that `still_allowed` can decide again while a response is being streamed.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from aiohttp import web

from muster.daemon.tls import peer_fingerprint
from muster.protocol.ids import JobId
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.job_owners import JobOwners
from orchestrator.api.http.problems import ApiError, no_such_route
from orchestrator.api.http.rate_limit import RateLimit
from orchestrator.api.http.request_parsing import job_id, no_such_job, no_such_token
from orchestrator.api.http.route import JOB_PATH, TOKEN_PATH, Route
from orchestrator.api.http.tokens import NodeCredential, TokenStore
from orchestrator.core.model.people import KnownToken
from orchestrator.core.rights.principals import NOBODY, Kind, Owned, Policy, Principal
from orchestrator.core.rights.rules import RULES, Action, least_role, may, may_with_some
from orchestrator.shell.coordinator import FORGOTTEN_HINT, forgotten_text

TOKEN: Final = web.RequestKey("token", KnownToken)
REFUSED: Final = web.RequestKey("refused", KnownToken)
"""Token of a request that is refused because the token is not valid any more."""
FOREIGN: Final = web.RequestKey("foreign", str)
"""Owner of a job that a request is about, or whose events it reads, if it is another user's."""
SUBJECT: Final = web.RequestKey("subject", str)
"""Object of a request whose path does not name it, for the audit log."""
_JOB: Final = web.RequestKey("job", JobId)
_OF_AGENTS: Final = frozenset({Action.CONNECT, Action.FETCH_CODE, Action.RENEW})
_NEW_TOKEN: Final = "ask an admin for a new one: muster token create"  # noqa: S105 - no secret


class AccessTable:
    """Decisions about requests, by the rules, the site's policy and the tokens of this moment."""

    def __init__(
        self,
        routes: Iterable[Route],
        tokens: TokenStore,
        owners: JobOwners,
        policy: Policy,
        *,
        refusals_per_s: float,
        agents_apart: bool = False,
    ) -> None:
        """`agents_apart`: agents with a certificate have a listener of their own."""
        self.policy: Final = policy
        self._routes = {(route.method, route.path): route for route in routes}
        self._tokens = tokens
        self._owners = owners
        self._agents_apart = agents_apart
        self._refusals = RateLimit(refusals_per_s)

    def route(self, request: web.Request) -> Route | None:
        """Return the route of a request, or None if there is no such path or method."""
        resource = request.match_info.route.resource
        return None if resource is None else self._routes.get((request.method, resource.canonical))

    def check(self, request: web.Request) -> None:
        """Let the request pass, with its token at `TOKEN`. Raises ApiError (401, 403, 429).

        Unknown paths are closed like any other, so that unauthorized callers cannot probe for
        routes.
        """
        route = self.route(request)
        action = Action.READ_CLUSTER if route is None else route.action
        if may_with_some(NOBODY, action):
            return
        certificate = peer_fingerprint(request.transport)
        # Only the agents' listener asks for a certificate. The users' port has nothing for agents,
        # unless some have join tokens, from a configuration by hand.
        apart = self._agents_apart and not certificate and action in _OF_AGENTS
        if apart and not self._tokens.has_join_tokens():
            raise no_such_route(request.path)
        record = (
            self._tokens.of_node(certificate) if certificate else self._tokens.find(bearer(request))
        )
        if record is None:
            wait_s = self._refusals.take(request.remote, request.loop.time())
            if wait_s:
                raise ApiError(
                    429,
                    "too_many_refusals",
                    f"too many requests without a good token from {request.remote}",
                    "check the token before the next request",
                    headers={"Retry-After": str(math.ceil(wait_s))},
                )
            if certificate:
                raise _unauthorized(
                    "no node has this certificate (any more)", "join again: muster join"
                )
            raise _unauthorized(
                "the token is missing or wrong",
                "log in with the whole token: muster login URL (or send the header "
                "`Authorization: Bearer muster_...`)",
            )
        why = self._tokens.why_not(record)
        renews = certificate and route is not None and route.action is Action.RENEW
        if why and not (renews and self._tokens.replaced(record)):
            request[REFUSED] = record
            hint = "join again: muster join" if certificate else _NEW_TOKEN
            raise _unauthorized(why, hint, self._tokens.refusal_headers(record))
        self._tokens.used(record)
        request[TOKEN] = record
        who = self.principal(record)
        if not may_with_some(who, action):
            raise _forbidden(who, action)

    async def check_object(self, request: web.Request, route: Route) -> None:
        """Decide about the job or the token in the path, if there is one. Raises ApiError (403,
        404).

        A job that does not exist is refused here, because it may be submitted before the handler
        looks for it.
        """
        if not RULES[route.action].owned:
            return
        if route.path.startswith(TOKEN_PATH):
            self._check_token(request, route)
        if not route.path.startswith(JOB_PATH):
            return
        name = job_id(request)
        owner = (await self._owners.of([name])).get(name)
        if owner is None:
            if self._owners.forgot(name):
                raise ApiError(404, "job_forgotten", forgotten_text(name), FORGOTTEN_HINT)
            raise no_such_job(name)
        who = self.principal(request[TOKEN])
        if not self._allows(who, route.action, owner):
            # Only users who may see the job learn that it belongs to someone else.
            if self._allows(who, Action.SEE_JOB, owner):
                raise _not_yours(name, owner, who, route.action)
            request[FOREIGN] = owner
            raise no_such_job(name)
        request[_JOB] = name
        if owner != who.name and route.action is not Action.SEE_JOB:
            request[FOREIGN] = owner

    def _check_token(self, request: web.Request, route: Route) -> None:
        """Others' tokens do not exist for those who may not see them."""
        name, mine = request.match_info["id"], request[TOKEN]
        owner = self._tokens.owner(name)
        if owner is None or not self.allows(request, Action.SEE_TOKEN, owner):
            raise no_such_token(name)
        token = Owned(owner, itself=name == mine.id)
        if not may(self.principal(mine), route.action, token, self.policy):
            hint = "use another token, whose role is user at least"
            detail = "a token to read only revokes no other token"
            raise ApiError(403, "read_only_token", detail, hint)

    def check_token(self, request: web.Request) -> None:
        """Let the request go on, which took time. Raises ApiError (401) if its token has ended."""
        if why := self._tokens.why_not(request[TOKEN]):
            raise _unauthorized(why, _NEW_TOKEN)

    async def still_allowed(self, request: web.Request, route: Route) -> bool:
        """True if the principal of an open request may still do what it began with."""
        who = self.principal(request[TOKEN])
        name = request.get(_JOB)
        if name is None:
            return may_with_some(who, route.action)
        owner = (await self._owners.of([name])).get(name)
        return owner is not None and self._allows(who, route.action, owner)

    def principal(self, record: KnownToken) -> Principal:
        """Return the principal of a token, with the role and the teams of this moment."""
        if record.class_ is TokenClass.JOIN:
            node = record.node if isinstance(record, NodeCredential) else ""
            return Principal(Kind.NODE, node)
        teams = self._tokens.teams_of(record.user)
        return Principal(Kind.USER, record.user, self._tokens.role(record), teams)

    def allows(self, request: web.Request, action: Action, owner: str) -> bool:
        """True if the author of a request may do this with a job of `owner`."""
        return self._allows(self.principal(request[TOKEN]), action, owner)

    def shown_users(self, request: web.Request) -> frozenset[str] | None:
        """Return the users whose jobs the author of a request sees; None means all."""
        who = self.principal(request[TOKEN])
        if may(who, Action.SEE_JOB, Owned(""), self.policy):
            return None
        users = {who.name, *self._tokens.users()}
        return frozenset(user for user in users if self._allows(who, Action.SEE_JOB, user))

    def _allows(self, who: Principal, action: Action, owner: str) -> bool:
        return may(who, action, Owned(owner, self._tokens.teams_of(owner)), self.policy)


def _unauthorized(detail: str, hint: str, more: Mapping[str, str] | None = None) -> ApiError:
    headers = {"WWW-Authenticate": "Bearer", **(more or {})}
    return ApiError(401, "unauthorized", detail, hint, headers=headers)


def _forbidden(who: Principal, action: Action) -> ApiError:
    needed = least_role(action)
    if who.kind is Kind.NODE and who.name:
        return ApiError(
            403, "forbidden", "a node's certificate is not a user's token", "use `muster login`"
        )
    if who.role is None:
        return ApiError(
            403, "forbidden", "a join token is not allowed here", "use the token of a user"
        )
    if needed is None:
        return ApiError(
            403, "forbidden", "a user's token is not allowed here", "agents use a join token"
        )
    return ApiError(
        403,
        "forbidden",
        f"the role {who.role.value} of {who.name} does not allow this ({action.value})",
        f"it needs the role {needed.value}; ask an admin",
    )


def _not_yours(name: JobId, owner: str, who: Principal, action: Action) -> ApiError:
    others = RULES[action].all or Role.ADMIN
    if owner == who.name:
        return _forbidden(who, action)
    return ApiError(
        403,
        "not_your_job",
        f"job {name} is {owner}'s: only {owner} and the role {others.value} may do this",
        f"you are {who.name}; ask {owner}",
    )


def bearer(request: web.Request) -> str:
    """Return the bearer token of a request; empty if it has none or several."""
    headers = request.headers.getall("Authorization", [])
    if len(headers) != 1:
        return ""
    scheme, _, token = headers[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
