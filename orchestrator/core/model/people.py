"""Users and their access tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass

_DAY_S: Final = 86400.0
_REVOKED_MAX: Final = 1000


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
