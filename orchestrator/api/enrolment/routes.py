"""Routes by which nodes join, and by which operators decide about them."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from aiohttp import web
from msgspec.structs import replace

from muster.http.enrolment import (
    CLOCK_IN_DOUBT,
    AcceptRequest,
    EnrolmentList,
    JoinAnswer,
    JoinRequest,
    JoinSecretRequest,
    JoinSecretView,
    NewJoinSecret,
    RenewAnswer,
    RenewRequest,
    RevokeNodeRequest,
    RevokeSecretRequest,
    WaitingNode,
)
from muster.protocol.ids import NodeName
from muster.protocol.timestamp import timestamp
from muster.protocol.tokens import digest, make_join
from orchestrator.api.http.access import SUBJECT, TOKEN
from orchestrator.api.http.problems import ApiError, bad_field
from orchestrator.api.http.rate_limit import RateLimit
from orchestrator.api.http.request_parsing import struct_body
from orchestrator.api.http.responses import reply
from orchestrator.api.http.tokens import NodeCredential
from orchestrator.api.jobs import declined
from orchestrator.core.facts.effects import Declined, PeopleChanged, Result
from orchestrator.core.facts.inputs import (
    AcceptReceived,
    JoinReceived,
    JoinSecretReceived,
    JoinSecretRevokeReceived,
    RenewReceived,
    RevokeNodeReceived,
)
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.people import JoinSecret, NodeKey
from orchestrator.core.nodes.enrolment import BAD_SECRET, find_secret, known_secret, unknown_secret
from orchestrator.enrolment import EnrolmentSettings
from orchestrator.shell.agent_sessions import is_local
from orchestrator.shell.coordinator import Coordinator

if TYPE_CHECKING:
    from muster.daemon.certificates import NodeCertificate

_ID_BYTES: Final = 4
_SECRET_BYTES: Final = 32
_JOIN_EVERY_S: Final = 60.0
_JOINS_AT_ONCE: Final = 5
_CLOCK_AGAIN_S: Final = 60


class EnrolmentApi:
    """Routes /v1/join, /v1/agent/certificate, and those that accept and revoke nodes. Without
    settings, no node joins."""

    def __init__(
        self, coordinator: Coordinator, settings: EnrolmentSettings | None, refusals_per_s: float
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._refusals = RateLimit(refusals_per_s)
        self._joins = join_limit()

    async def show(self, _request: web.Request) -> web.Response:
        known = (await self._coordinator.durable_state()).enrolment
        found = tuple(self._view(secret) for secret in known.secrets.values())
        waiting = tuple(
            WaitingNode(name, each.peer, each.waiting.fingerprint, each.current is not None)
            for name, each in sorted(known.nodes.items())
            if each.waiting is not None
        )
        return reply(EnrolmentList(found, waiting))

    async def create_secret(self, request: web.Request) -> web.Response:
        """Create a join secret: `{"uses": 16, "names": "gpu-*"}`."""
        asked, by, settings = (
            await struct_body(request, JoinSecretRequest),
            request[TOKEN].user,
            self._enrolling(),
        )
        if not asked.label.isprintable():
            raise bad_field("label", "has characters that cannot be shown")
        name, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
        expires = self._coordinator.now().wall + asked.expires_s
        request[SUBJECT] = name
        self._changed(
            await self._coordinator.request(
                lambda rid: JoinSecretReceived(
                    rid,
                    name,
                    digest(secret),
                    asked.uses,
                    expires,
                    asked.names,
                    asked.pool,
                    settings.approve,
                    asked.label.strip(),
                    by,
                )
            )
        )
        made = (await self._coordinator.durable_state()).enrolment.secrets[name]
        ca = hashlib.sha256(settings.authority.cert).hexdigest()
        view = self._view(made)
        text = make_join(ca, name, secret)
        wheels = await asyncio.to_thread(settings.read_wheels)
        pin = wheels.pin if wheels is not None else ""
        answer = NewJoinSecret(view, text, settings.run_as, pin, settings.python, settings.address)
        return reply(answer, status=201)

    async def revoke_secret(self, request: web.Request) -> web.Response:
        """Revoke a join secret, and return it as it was."""
        name, by = request.match_info["id"], request[TOKEN].user
        await struct_body(request, RevokeSecretRequest)
        secret = (await self._coordinator.durable_state()).enrolment.secrets.get(name)
        if secret is None:
            raise declined(unknown_secret(name))
        view = self._view(secret)
        self._changed(
            await self._coordinator.request(lambda rid: JoinSecretRevokeReceived(rid, name, by))
        )
        return reply(view)

    async def join(self, request: web.Request) -> web.Response:
        """Sign a certificate for a node that shows a join secret."""
        asked, settings = await struct_body(request, JoinRequest), self._enrolling()
        request[SUBJECT] = asked.node
        wait_s = self._refusals.take(request.remote, request.loop.time())
        if wait_s:
            raise _too_many(f"from {request.remote}", wait_s)
        name, _, rest = asked.secret.partition("-")
        node, shown = NodeName(asked.node), digest(rest)
        # Before anything is read, because that takes time.
        known = known_secret(self._coordinator.state.enrolment, name, shown)
        if isinstance(known, Declined):
            raise _refused(known)
        self._trust_clock(request, node)
        from muster.daemon.certificates import BadRequestError, node_certificate, requested_key

        try:
            key = requested_key(asked.request, node)
        except BadRequestError as error:
            raise ApiError(422, "bad_signing_request", str(error)) from error
        # Each is a record in the journal. Another machine with this secret has a key of its own, so
        # it keeps no node out; a secret lets only a few keys in.
        wait_s = self._joins.take((name, asked.node, key), request.loop.time())
        if wait_s:
            raise _too_many(f"of {asked.node}", wait_s)
        now = self._coordinator.now().wall
        known = find_secret(self._coordinator.state.enrolment, name, shown, key, now)
        if isinstance(known, Declined):
            raise _refused(known)
        made = node_certificate(
            settings.authority, asked.request, node, now, settings.certificate_s
        )
        peer = request.remote or ""
        of_node = replace(_key(made, now), machine=asked.machine)
        local = is_local(request, peer)
        result = await self._coordinator.request(
            lambda rid: JoinReceived(rid, name, shown, node, of_node, peer, local, settings.approve)
        )
        waits = self._changed(result)
        pem = made.pem.decode()
        return reply(JoinAnswer(pem, settings.agents_port, known.pool, waits), status=201)

    async def renew(self, request: web.Request) -> web.Response:
        """Sign the next certificate of the node that shows its current one."""
        asked, settings = await struct_body(request, RenewRequest), self._enrolling()
        shown = request[TOKEN]
        if not isinstance(shown, NodeCredential):
            raise ApiError(403, "forbidden", "only a node with a certificate can renew it")
        from muster.daemon.certificates import BadRequestError, node_certificate

        node, now = shown.node, self._coordinator.now().wall
        self._trust_clock(request, node)
        try:
            made = node_certificate(
                settings.authority, asked.request, node, now, settings.certificate_s
            )
        except BadRequestError as error:
            raise ApiError(422, "bad_signing_request", str(error)) from error
        self._changed(
            await self._coordinator.request(
                lambda rid: RenewReceived(rid, node, shown.sha256, _key(made, now))
            )
        )
        return reply(RenewAnswer(made.pem.decode()))

    async def accept(self, request: web.Request) -> web.Response:
        """Accept the machine that waits for a name; `{"reject": true}` forgets it."""
        name, by = NodeName(request.match_info["id"]), request[TOKEN].user
        asked = await struct_body(request, AcceptRequest)
        self._changed(
            await self._coordinator.request(lambda rid: AcceptReceived(rid, name, by, asked.reject))
        )
        return await self.show(request)

    async def revoke_node(self, request: web.Request) -> web.Response:
        """Accept no certificate of a node any more, which closes its connections."""
        name, by = NodeName(request.match_info["id"]), request[TOKEN].user
        await struct_body(request, RevokeNodeRequest)
        self._changed(
            await self._coordinator.request(lambda rid: RevokeNodeReceived(rid, name, by))
        )
        return await self.show(request)

    def _enrolling(self) -> EnrolmentSettings:
        if self._settings is None:
            raise ApiError(
                404,
                "no_enrolment",
                "this coordinator signs no certificates of nodes",
                "set tls.ca_key and listen_agents in its configuration, as `muster up` does",
            )
        return self._settings

    def _trust_clock(self, request: web.Request, node: NodeName) -> None:
        """Raise ApiError (503) if a certificate might begin in the future or be over at once. The
        node's own clock counts, too.
        """
        known = self._coordinator.state.nodes.get(node)
        counted = known is not None and known.link is LinkState.CONNECTED
        ahead_s = [] if counted else [_ahead_s(request, self._coordinator.now().wall)]
        doubt = self._coordinator.clock_doubt(*ahead_s)
        if doubt:
            raise ApiError(
                503,
                CLOCK_IN_DOUBT,
                f"no certificate is signed, because {doubt}: set the coordinator's clock, or "
                "theirs",
                "then ask again, as agents do by themselves",
                headers={"Retry-After": str(_CLOCK_AGAIN_S)},
            )

    def _changed(self, result: Result) -> bool:
        """Return whether the node waits for an operator. Raises ApiError for a refusal."""
        match result:
            case PeopleChanged(_, waits):
                return waits
            case Declined():
                raise _refused(result)
            case _:
                raise AssertionError(f"a request about nodes was answered with {result}")

    def _view(self, secret: JoinSecret) -> JoinSecretView:
        return JoinSecretView(
            id=secret.id,
            uses=secret.uses,
            used=len(secret.keys),
            names=secret.names,
            pool=secret.pool,
            approve=secret.approve,
            label=secret.label,
            by=secret.by,
            created=timestamp(secret.created),
            expires=timestamp(secret.expires),
            problem=secret.why_not("", self._coordinator.now().wall),
        )


def join_limit() -> RateLimit:
    """Return the bound on joins of one node with one secret and key, which may be repeated."""
    return RateLimit(1 / _JOIN_EVERY_S, burst=_JOINS_AT_ONCE)


def _ahead_s(request: web.Request, now: float) -> float:
    """Return how far the clock of a request's author is ahead; 0 if the request does not say."""
    try:
        return parsedate_to_datetime(request.headers["Date"]).timestamp() - now
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0


def _key(made: NodeCertificate, now: float) -> NodeKey:
    return NodeKey(made.fingerprint, made.key_sha256, made.expires, begins=now)


def _refused(result: Declined) -> ApiError:
    if result.code == BAD_SECRET:
        return ApiError(403, result.code, result.text, result.hint)
    return declined(result)


def _too_many(whose: str, wait_s: float) -> ApiError:
    headers = {"Retry-After": str(math.ceil(wait_s))}
    return ApiError(429, "too_many_joins", f"too many joins {whose}", headers=headers)
