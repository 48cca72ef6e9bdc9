"""Principals, the objects they act on, and the site's policy."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from muster.protocol.roles import Role


class Kind(enum.Enum):
    """Kind of a principal."""

    NOBODY = "nobody"
    NODE = "node"
    USER = "user"


class Principal(msgspec.Struct, frozen=True):
    """Author of a request or a message. Only a user has a role and teams."""

    kind: Kind
    name: str = ""
    role: Role | None = None
    teams: frozenset[str] = frozenset()


NOBODY: Final = Principal(Kind.NOBODY)
NODE: Final = Principal(Kind.NODE)


class Owned(msgspec.Struct, frozen=True):
    """A job or a token as an object of actions: its owner, and the owner's teams. `itself`: it is
    the token of the request.
    """

    owner: str
    teams: frozenset[str] = frozenset()
    itself: bool = False


class Visibility(enum.Enum):
    """Users who see the line of a job in lists, besides its owner and operators."""

    PUBLIC = "public"
    TEAM = "team"
    PRIVATE = "private"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The site's choices. `roles` and `teams` have the highest priorities of their jobs."""

    visibility: Visibility = Visibility.PUBLIC
    roles: Mapping[Role, int] = {}
    teams: Mapping[str, int] = {}

    def priority_max(self, who: Principal) -> int | None:
        """Return the largest of the limits of the role and the teams; None without any."""
        found = [self.teams[team] for team in who.teams if team in self.teams]
        if who.role is not None and who.role in self.roles:
            found.append(self.roles[who.role])
        return max(found, default=None)
