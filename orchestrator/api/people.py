"""Routes of users and tokens, and of the CA that clients need to show one."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Collection
from typing import Final

from aiohttp import web
from msgspec import UNSET

from muster.http.people import (
    DisableRequest,
    NewToken,
    RevokeRequest,
    TokenList,
    TokenRequest,
    TokenView,
    UserAnswer,
    UserChange,
    UserList,
    UserRequest,
    UserView,
    user_name_problem,
)
from muster.protocol.ids import JobId, NodeName
from muster.protocol.timestamp import maybe_timestamp, timestamp
from muster.protocol.tokens import TokenClass
from orchestrator.api.http.access import SUBJECT, TOKEN, AccessTable
from orchestrator.api.http.problems import ApiError, bad_field
from orchestrator.api.http.query_params import TokensQuery
from orchestrator.api.http.request_parsing import no_such_token, read_query, struct_body
from orchestrator.api.http.responses import reply
from orchestrator.api.http.stream_revocation import StreamRevocation
from orchestrator.api.http.tokens import TokenStore
from orchestrator.api.jobs import declined
from orchestrator.core.facts.effects import Declined, PeopleChanged, Result
from orchestrator.core.facts.inputs import (
    CancelReceived,
    RevokeReceived,
    TokenReceived,
    UserChangeReceived,
    UserReceived,
)
from orchestrator.core.model.people import KnownToken, KnownUser
from orchestrator.core.rights.people import unknown_user
from orchestrator.core.rights.rules import Action
from orchestrator.enrolment import EnrolmentSettings
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.new_token import draw

_AT_ONCE: Final = 100
"""Jobs of a disabled user that are cancelled at once."""


class PeopleApi:
    """Routes /v1/users, /v1/tokens and /v1/ca. `ca` is a PEM file, empty if clients need none.
    `enrolment`: nodes join with secrets, so agents need no token.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        tokens: TokenStore,
        access: AccessTable,
        open_requests: StreamRevocation,
        ca: bytes,
        enrolment: EnrolmentSettings | None,
    ) -> None:
        self._coordinator = coordinator
        self._tokens = tokens
        self._access = access
        self._open_requests = open_requests
        self._ca = ca
        self._enrolment = enrolment

    async def users(self, _request: web.Request) -> web.Response:
        people = (await self._coordinator.durable_state()).people
        jobs, tokens = self._jobs(), Counter(token.user for token in people.tokens.values())
        found = sorted(people.users.values(), key=lambda user: user.name)
        return reply(UserList(tuple(_user(user, tokens, jobs) for user in found)))

    async def add_user(self, request: web.Request) -> web.Response:
        """Add a user: `{"name": "bob", "role": "user", "teams": ["lab"]}`."""
        asked, by = await struct_body(request, UserRequest), request[TOKEN].user
        request[SUBJECT] = asked.name
        if problem := user_name_problem(asked.name):
            raise bad_field("name", problem, asked.name)
        teams = tuple(dict.fromkeys(asked.teams))
        await self._changed(
            await self._coordinator.request(
                lambda rid: UserReceived(rid, asked.name, asked.role, teams, by)
            )
        )
        return reply(await self._answer(asked.name, changed=True), status=201)

    async def change_user(self, request: web.Request) -> web.Response:
        """Change the role or the teams of a user, or enable the user again."""
        asked, by = await struct_body(request, UserChange), request[TOKEN].user
        name = request.match_info["id"]
        teams = UNSET if asked.teams is None else tuple(dict.fromkeys(asked.teams))
        changed = await self._changed(
            await self._coordinator.request(
                lambda rid: UserChangeReceived(
                    rid,
                    name,
                    by,
                    UNSET if asked.role is None else asked.role,
                    teams,
                    False if asked.enable else UNSET,
                )
            )
        )
        return reply(await self._answer(name, changed=changed))

    async def disable_user(self, request: web.Request) -> web.Response:
        """Accept no token of the user any more; `{"end_jobs": true}` also cancels the jobs."""
        asked, by = await struct_body(request, DisableRequest), request[TOKEN].user
        name = request.match_info["id"]
        changed = await self._changed(
            await self._coordinator.request(
                lambda rid: UserChangeReceived(rid, name, by, disabled=True)
            )
        )
        ended = await self._end_jobs(name, by) if asked.end_jobs else 0
        return reply(await self._answer(name, changed=changed, ended=ended))

    async def tokens(self, request: web.Request) -> web.Response:
        query = read_query(request, TokensQuery)
        people = (await self._coordinator.durable_state()).people
        jobs = self._jobs()
        return reply(
            TokenList(
                tuple(
                    self._token(token, jobs)
                    for token in people.tokens.values()
                    if query.user in (None, token.user)
                    and self._access.allows(request, Action.SEE_TOKEN, token.user)
                )
            )
        )

    async def create_token(self, request: web.Request) -> web.Response:
        """Create a token: `{"user": "bob", "label": "laptop", "expires_s": 2592000}`."""
        asked, by = await struct_body(request, TokenRequest), request[TOKEN].user
        if not asked.label.isprintable():
            raise bad_field("label", "has characters that cannot be shown")
        if asked.join and (asked.user or asked.role):
            raise bad_field("join", "excludes user and role: a join token has neither")
        if asked.join and self._enrolment is not None:
            detail = "nodes of this cluster join with a secret, and their agents need no token"
            raise ApiError(409, "no_join_tokens", detail, "make one: muster token create --join")
        user = "" if asked.join else asked.user or by
        class_ = TokenClass.JOIN if asked.join else TokenClass.USER
        drawn = draw(class_)
        now = self._coordinator.now().wall
        expires = None if asked.expires_s is None else now + asked.expires_s
        request[SUBJECT] = user or TokenClass.JOIN.value
        await self._changed(
            await self._coordinator.request(
                lambda rid: TokenReceived(
                    rid,
                    drawn.id,
                    class_,
                    drawn.sha256,
                    user,
                    asked.label.strip(),
                    asked.role,
                    expires,
                    by,
                )
            )
        )
        view = await self._shown(drawn.id)
        ca = hashlib.sha256(self._ca).hexdigest() if self._ca else ""
        address = "" if self._enrolment is None else self._enrolment.address
        return reply(NewToken(view, drawn.text, ca, await self._pin(), address), status=201)

    async def revoke_token(self, request: web.Request) -> web.Response:
        """Revoke a token, and return it as it was."""
        name, by = request.match_info["id"], request[TOKEN].user
        await struct_body(request, RevokeRequest)
        view = await self._shown(name)
        await self._changed(
            await self._coordinator.request(lambda rid: RevokeReceived(rid, name, by))
        )
        return reply(view)

    async def ca(self, _request: web.Request) -> web.Response:
        """Return the CA, to clients that know its digest."""
        if not self._ca:
            hint = "the coordinator's configuration names none as tls.ca"
            raise ApiError(404, "no_ca", "clients need no CA of this coordinator", hint)
        return web.Response(body=self._ca, content_type="application/x-pem-file")

    async def _pin(self) -> str:
        """Return the pin of the coordinator's public key; empty if nobody can install Muster from
        here."""
        if self._enrolment is None:
            return ""
        wheels = await asyncio.to_thread(self._enrolment.read_wheels)
        return "" if wheels is None else wheels.pin

    async def _changed(self, result: Result) -> bool:
        """Return whether anything was changed. Raises ApiError for a refusal."""
        match result:
            case PeopleChanged(anything):
                return anything
            case Declined():
                raise declined(result)
            case _:
                raise AssertionError(f"a request about people was answered with {result}")

    async def _end_jobs(self, user: str, by: str) -> int:
        """Cancel the jobs of a disabled user, and return their number."""
        state = await self._coordinator.durable_state()
        jobs = [name for name in self._coordinator.index.open if state.jobs[name].user == user]
        for at in range(0, len(jobs), _AT_ONCE):
            await asyncio.gather(*(self._end(name, user, by) for name in jobs[at : at + _AT_ONCE]))
        return len(jobs)

    async def _end(self, job: JobId, user: str, by: str) -> None:
        reason = f"the user {user} was disabled"
        await self._coordinator.request(lambda rid: CancelReceived(rid, job, by, reason))

    async def _answer(self, name: str, *, changed: bool, ended: int = 0) -> UserAnswer:
        people = (await self._coordinator.durable_state()).people
        user = people.users.get(name)
        if user is None:
            raise declined(unknown_user(name))
        tokens = Counter({name: len(people.tokens_of(name))})
        return UserAnswer(_user(user, tokens, self._jobs()), changed, ended)

    async def _shown(self, name: str) -> TokenView:
        token = (await self._coordinator.durable_state()).people.tokens.get(name)
        if token is None:
            raise no_such_token(name)
        return self._token(token, self._jobs())

    def _jobs(self) -> Counter[str]:
        """Count the jobs that have not ended, by user."""
        jobs = self._coordinator.state.jobs
        return Counter(jobs[name].user for name in self._coordinator.index.open)

    def _jobs_on(self, nodes: Collection[NodeName]) -> int:
        known = self._coordinator.state.nodes
        return len({job for name in nodes if name in known for job, _ in known[name].holders})

    def _token(self, token: KnownToken, jobs: Counter[str]) -> TokenView:
        role = self._tokens.role(token)
        join = token.class_ is TokenClass.JOIN
        agents = self._open_requests.nodes_with(token.id) if join else set()
        return TokenView(
            id=token.id,
            role=TokenClass.JOIN.value if join else role.value if role else "",
            user=token.user,
            label=token.label,
            created=timestamp(token.created),
            expires=maybe_timestamp(token.expires),
            used=maybe_timestamp(self._tokens.last_use(token)),
            jobs=self._jobs_on(agents) if join else jobs[token.user],
            problem=self._tokens.why_not(token),
            agents=len(agents),
        )


def _user(user: KnownUser, tokens: Counter[str], jobs: Counter[str]) -> UserView:
    return UserView(
        name=user.name,
        role=user.role,
        teams=user.teams,
        disabled=user.disabled,
        tokens=tokens[user.name],
        jobs=jobs[user.name],
        since=timestamp(user.since),
    )
