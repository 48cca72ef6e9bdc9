"""Roles of users, from the least to the most."""

from __future__ import annotations

import enum
from typing import Final


class Role(enum.Enum):
    """Role of a user. A viewer reads; a user also submits jobs and changes their own; an operator
    also reads and changes the jobs of all and takes nodes in and out of service; an admin also
    manages people.
    """

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """True if this role may do everything that `other` may."""
        return _RANKS[self] >= _RANKS[other]


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}
