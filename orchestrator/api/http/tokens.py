"""Lookup of the tokens that requests show, in the state of this moment."""

import hmac
from collections.abc import Callable
from typing import Final

from muster.daemon.clock import Clock
from muster.protocol.certificate_refusals import HEADER, REPLACED, WAITS
from muster.protocol.ids import NodeName
from muster.protocol.roles import Role
from muster.protocol.timestamp import timestamp
from muster.protocol.tokens import BadToken, TokenClass, digest, parse
from orchestrator.core.model.people import Enrolment, KnownToken, People

_UNKNOWN: Final = digest("")
_ASK_S: Final = 3600.0
_WAITING_S: Final = 5
_WAITING_PER_S: Final = 100


def waiting_pause_s(nodes: int) -> int:
    """Return how long each of so many nodes that wait for an operator should wait before it asks
    again, in seconds. An agent waits up to 60 % longer.
    """
    return max(_WAITING_S, nodes // _WAITING_PER_S)


class NodeCredential(KnownToken, frozen=True):
    """The certificate of a node, in the place of a token: `sha256` is its fingerprint."""

    node: NodeName = NodeName("")


class TokenStore:
    """The users and tokens of the state. A change holds from the turn that decides it."""

    def __init__(
        self,
        people: People,
        clock: Clock,
        seen: Callable[[str], None] = lambda _: None,
        enrolment: Enrolment | None = None,
    ) -> None:
        """`seen` is called with the id of a token whose use is to be recorded."""
        self._people = people
        self._enrolment = enrolment or Enrolment()
        self._clock = clock
        self._seen = seen
        self._used: dict[str, float] = {}
        self._asked: dict[str, float] = {}  # when the record of a use was asked for

    def find(self, text: str) -> KnownToken | None:
        """Return the token `text`, or None. Call `why_not` to check its validity: it may have been
        revoked.
        """
        try:
            given = parse(text)
        except BadToken:
            return None
        known = self._people.tokens.get(given.id) or self._people.revoked.get(given.id)
        # Compare even without such an id, so that timing does not reveal ids.
        same = hmac.compare_digest(
            digest(given.secret), known.sha256 if known is not None else _UNKNOWN
        )
        if known is None or not same or known.class_ is not given.class_:
            return None
        return known

    def of_node(self, fingerprint: str) -> NodeCredential | None:
        """Return the certificate of a node by its fingerprint. Call `why_not` to check it."""
        name = self._enrolment.owners.get(fingerprint)
        if name is None:
            return None
        found = self._enrolment.key(fingerprint)
        expires = None if found is None else found[1].expires
        return NodeCredential(
            fingerprint[:8], TokenClass.JOIN, fingerprint, expires=expires, node=name
        )

    def has_join_tokens(self) -> bool:
        """True if agents may connect with a token."""
        tokens = self._people.tokens.values()
        return any(it.class_ is TokenClass.JOIN and not self.why_not(it) for it in tokens)

    def knows(self, token: KnownToken) -> bool:
        """True if the token has not been revoked, valid or not."""
        if isinstance(token, NodeCredential):
            return self._enrolment.key(token.sha256) is not None
        known = self._people.tokens.get(token.id)
        return known is not None and known.sha256 == token.sha256

    def why_not(self, token: KnownToken) -> str:
        """Return why a token is no longer valid, or ""."""
        if isinstance(token, NodeCredential):
            return self._why_not_certificate(token)
        if not self.knows(token):
            return "the token has been revoked"
        # The wall clock decides here because people write the expiry dates.
        if token.expires is not None and token.expired(self._clock.now().wall):
            until = f"{timestamp(token.expires):%Y-%m-%dT%H:%M:%SZ}"
            return f"the token {token.id} has expired ({until})"
        if token.class_ is TokenClass.JOIN:
            return ""
        user = self._people.users.get(token.user)
        if user is None or user.disabled:
            return f"the user {token.user} is disabled"
        return ""

    def replaced(self, shown: KnownToken) -> bool:
        """True if this certificate was renewed, and the next one is in use. A renewal of it shows
        that there are two copies of its key."""
        joined = (
            self._enrolment.nodes.get(shown.node) if isinstance(shown, NodeCredential) else None
        )
        earlier = () if joined is None else joined.previous
        return any(each.fingerprint == shown.sha256 for each in earlier)

    def refusal_headers(self, shown: KnownToken) -> dict[str, str]:
        """Return the headers by which an agent knows why its certificate is refused."""
        if not isinstance(shown, NodeCredential):
            return {}
        if self._waits(shown):
            return {HEADER: WAITS, "Retry-After": f"{waiting_pause_s(self._enrolment.waiting)}"}
        return {HEADER: REPLACED} if self.replaced(shown) else {}

    def _waits(self, shown: NodeCredential) -> bool:
        joined = self._enrolment.nodes.get(shown.node)
        waiting = None if joined is None else joined.waiting
        return waiting is not None and waiting.fingerprint == shown.sha256

    def _why_not_certificate(self, shown: NodeCredential) -> str:
        found = self._enrolment.key(shown.sha256)
        if found is not None:
            ended = found[1].expires <= self._clock.now().wall
            return f"the certificate of {shown.node} has expired" if ended else ""
        if self._waits(shown):
            return f"{shown.node} waits for an operator: muster node accept {shown.node}"
        return f"the certificate of {shown.node} has been revoked or replaced"

    def role(self, token: KnownToken) -> Role | None:
        """Return the role of a token's user, limited by that of the token; None for agents."""
        user = self._people.users.get(token.user)
        if user is None:
            return None
        limit = token.role
        return limit if limit is not None and user.role.includes(limit) else user.role

    def users(self) -> frozenset[str]:
        """Return all users."""
        return frozenset(self._people.users)

    def teams_of(self, user: str) -> frozenset[str]:
        """Return the teams of a user."""
        known = self._people.users.get(user)
        return frozenset() if known is None else frozenset(known.teams)

    def owner(self, token: str) -> str | None:
        """Return the user of a token, by its id; None if there is no such token."""
        known = self._people.tokens.get(token)
        return None if known is None else known.user

    def used(self, token: KnownToken) -> None:
        """Remember the use of a token. The journal has one use a day at most."""
        if isinstance(token, NodeCredential):
            return
        now = self._clock.now().wall
        self._used[token.id] = now
        if not token.seen_today(now) and not 0 <= now - self._asked.get(token.id, 0) < _ASK_S:
            self._asked[token.id] = now
            self._seen(token.id)

    def last_use(self, token: KnownToken) -> float | None:
        """Return when a token was last used, in UTC seconds. After a restart of the coordinator,
        it may have been used for up to a day longer.
        """
        return self._used.get(token.id, token.used)
