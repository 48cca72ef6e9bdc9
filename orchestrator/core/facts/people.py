"""Facts about users and their access tokens."""

from __future__ import annotations

from muster.protocol.roles import Role
from muster.protocol.text import named
from muster.protocol.timestamp import timestamp
from muster.protocol.tokens import TokenClass
from orchestrator.core.facts.base import LAZY, SYNC, ClusterFact, Inert


class PeopleFact(ClusterFact, Inert, family=True, reschedules=False):
    """A fact about a user or a token. `by` is the admin who asked for it."""


class UserAdded(PeopleFact, durability=SYNC, milestone=True):
    """There is a new user."""

    user: str
    role: Role
    teams: tuple[str, ...] = ()
    by: str = ""

    def describe(self) -> str:
        return f"{_by(self.by)} added the user {self.user}, {_as(self.role, self.teams)}"


class UserChanged(PeopleFact, durability=SYNC, milestone=True):
    """A user has this role and these teams from now on, and is enabled."""

    user: str
    role: Role
    teams: tuple[str, ...] = ()
    by: str = ""

    def describe(self) -> str:
        return f"{_by(self.by)} made the user {self.user} {_as(self.role, self.teams)}"


class UserDisabled(PeopleFact, durability=SYNC, milestone=True):
    """No token of the user is accepted until the next UserChanged."""

    user: str
    by: str = ""

    def describe(self) -> str:
        return f"{_by(self.by)} disabled the user {self.user}"


class TokenCreated(PeopleFact, durability=SYNC, milestone=True):
    """There is a new token. `sha256` is the digest of its secret, `role` limits the role of its
    user, and `expires` is UTC seconds. A join token has no user.
    """

    token: str
    class_: TokenClass
    sha256: str
    user: str = ""
    label: str = ""
    role: Role | None = None
    expires: float | None = None
    by: str = ""

    def describe(self) -> str:
        whose = "of agents" if self.class_ is TokenClass.JOIN else f"of {self.user}"
        until = "" if self.expires is None else f", valid until {timestamp(self.expires)}"
        return f"{_by(self.by)} created the token {self.token} {whose}{until}"


class TokenRevoked(PeopleFact, durability=SYNC, milestone=True):
    """The token is not accepted any more."""

    token: str
    by: str = ""

    def describe(self) -> str:
        return f"{_by(self.by)} revoked the token {self.token}"


class TokenUsed(PeopleFact, durability=LAZY, milestone=False):
    """A token was used: recorded at most once a day for each token."""

    token: str

    def describe(self) -> str:
        return f"the token {self.token} was used"


class TokensImported(PeopleFact, durability=SYNC, milestone=True):
    """The tokens file with this digest was imported; it is not read again."""

    sha256: str

    def describe(self) -> str:
        return "users and tokens were imported from the tokens file"


def _as(role: Role, teams: tuple[str, ...]) -> str:
    return f"{role.value}{f' of {named(teams)}' if teams else ''}"


def _by(admin: str) -> str:
    return admin or "the coordinator"


OfPeople = (
    UserAdded
    | UserChanged
    | UserDisabled
    | TokenCreated
    | TokenRevoked
    | TokenUsed
    | TokensImported
)
