"""Credentials: users and their access tokens, join secrets, and the certificates of nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from muster.protocol.ids import NodeName
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass

_DAY_S: Final = 86400.0
_REVOKED_MAX: Final = 1000
_RETIRED_MAX: Final = 10_000


class KnownUser(msgspec.Struct, frozen=True):
    """A user. `since` is UTC seconds, for display only."""

    name: str
    role: Role
    teams: tuple[str, ...] = ()
    disabled: bool = False
    since: float = 0.0


class KnownToken(msgspec.Struct, frozen=True):
    """An access token, without its secret. `role` limits the role of its user. `user` is empty for
    the join tokens of agents. `created` and `used` are for display only. Times are UTC seconds.
    """

    id: str
    class_: TokenClass
    sha256: str
    user: str = ""
    label: str = ""
    role: Role | None = None
    expires: float | None = None
    created: float = 0.0
    used: float | None = None

    def expired(self, now: float) -> bool:
        """True if it ended before `now` (UTC seconds)."""
        return self.expires is not None and self.expires <= now

    def seen_today(self, now: float) -> bool:
        """True if a use in the last day is on record."""
        return self.used is not None and self.used > now - _DAY_S


@dataclass(slots=True)
class People:
    """Users by name, and tokens by id. `imported` is the digest of the tokens file from which they
    were imported; empty before that. `revoked` has the newest revoked tokens, so that their use is
    known as such.
    """

    users: dict[str, KnownUser] = field(default_factory=dict)
    tokens: dict[str, KnownToken] = field(default_factory=dict)
    imported: str = ""
    revoked: dict[str, KnownToken] = field(default_factory=dict)

    def tokens_of(self, user: str) -> list[KnownToken]:
        """Return the tokens of a user."""
        return [token for token in self.tokens.values() if token.user == user]

    def revoke(self, name: str) -> None:
        """Take a token out of use, and remember it."""
        self.revoked[name] = self.tokens.pop(name)
        if len(self.revoked) > _REVOKED_MAX:
            del self.revoked[next(iter(self.revoked))]

    def admins(self, now: float) -> set[str]:
        """Return the users who can act as an admin at `now` (UTC seconds): enabled, with a valid
        token that allows it.
        """
        return {
            token.user
            for token in self.tokens.values()
            if token.role in (None, Role.ADMIN)
            and not token.expired(now)
            and (user := self.users.get(token.user)) is not None
            and user.role is Role.ADMIN
            and not user.disabled
        }


class JoinSecret(msgspec.Struct, frozen=True):
    """A secret with which nodes join, as its digest. `uses` is how many nodes may, `names` a
    pattern of their names, `pool` their pool ("" for the node's own choice). With `approve`, each
    waits for an operator. `keys` are digests of the keys that have joined. Times are UTC seconds.
    """

    id: str
    sha256: str
    uses: int
    expires: float
    names: str = "*"
    pool: str = ""
    approve: bool = False
    label: str = ""
    by: str = ""
    created: float = 0.0
    keys: tuple[str, ...] = ()

    def why_not(self, key_sha256: str, now: float) -> str:
        """Return why a node with this key cannot join at `now` (UTC seconds), or "". A node may
        repeat a join whose answer was lost.
        """
        if self.expires <= now:
            return "it has expired"
        if key_sha256 not in self.keys and len(self.keys) >= self.uses:
            return "it is used up"
        return ""


class NodeKey(msgspec.Struct, frozen=True):
    """A certificate of a node: digests of it and of its public key, its end (UTC seconds), how many
    renewals led to it since the join, and its begin, 0 in old journals. `machine` is the id of the
    machine that joined with it, "" in old journals. `pool` is the one of the join secret, "" for
    the node's own choice.
    """

    fingerprint: str
    key_sha256: str
    expires: float
    generation: int = 0
    begins: float = 0.0
    machine: str = ""
    pool: str = ""

    @property
    def renewed(self) -> bool:
        """True if a certificate before it was renewed; a join may repeat one of a renewal."""
        return self.generation > 0


class Joined(msgspec.Struct, frozen=True):
    """A node that has joined. `current` is its certificate (None: it has none), `next` one that it
    got later and has not shown yet, `previous` are those before that are still valid. `waiting` is
    the certificate of another machine at the address `peer` that claims the name. `revoked`: the
    last certificate was revoked, and none has been accepted since. `why` is the coordinator's own
    reason for that. `since` is when it joined or was accepted (UTC seconds), from the address
    `origin`. `refused` is why its last hello was refused, until it connects.
    """

    current: NodeKey | None = None
    next: NodeKey | None = None
    previous: tuple[NodeKey, ...] = ()
    waiting: NodeKey | None = None
    peer: str = ""
    revoked: bool = False
    why: str = ""
    since: float = 0.0
    origin: str = ""
    refused: str = ""

    @property
    def newest(self) -> NodeKey | None:
        """The last certificate that is accepted."""
        return self.next or self.current

    @property
    def accepted(self) -> tuple[NodeKey, ...]:
        """The certificates of this node now and before, without one that waits."""
        return tuple(key for key in (self.current, self.next, *self.previous) if key)


@dataclass(slots=True)
class Enrolment:
    """Join secrets by id, and nodes with a certificate by name. `retired_keys` has the newest keys
    that are accepted no more, each with its node.
    """

    secrets: dict[str, JoinSecret] = field(default_factory=dict)
    nodes: dict[NodeName, Joined] = field(default_factory=dict)
    owners: dict[str, NodeName] = field(default_factory=dict)  # by fingerprint: all of `nodes`
    waiting: int = 0  # nodes that wait for an operator
    retired_keys: dict[str, NodeName] = field(default_factory=dict)

    def put(self, name: NodeName, joined: Joined | None) -> None:
        """Replace what is known of a node; None forgets it."""
        known = self.nodes.pop(name, Joined())
        self.waiting -= known.waiting is not None
        for fingerprint in _fingerprints(known):
            self.owners.pop(fingerprint, None)
        if joined is not None:
            self.nodes[name] = joined
            self.waiting += joined.waiting is not None
            self.owners.update(dict.fromkeys(_fingerprints(joined), name))

    def retire_keys(self, name: NodeName) -> None:
        """Remember the keys of a node as those that nobody joins with any more."""
        for key in self.nodes.get(name, Joined()).accepted:
            self.retired_keys.pop(key.key_sha256, None)
            self.retired_keys[key.key_sha256] = name
        while len(self.retired_keys) > _RETIRED_MAX:
            del self.retired_keys[next(iter(self.retired_keys))]

    def key(self, fingerprint: str) -> tuple[NodeName, NodeKey] | None:
        """Return the node and the accepted certificate with this fingerprint, or None."""
        name = self.owners.get(fingerprint)
        if name is None:
            return None
        for key in (self.nodes[name].current, self.nodes[name].next):
            if key is not None and key.fingerprint == fingerprint:
                return name, key
        return None


def _fingerprints(joined: Joined) -> list[str]:
    waiting = () if joined.waiting is None else (joined.waiting,)
    return [key.fingerprint for key in (*joined.accepted, *waiting)]
