"""Bodies and responses of the routes of users and tokens."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from muster.protocol.roles import Role
from muster.protocol.timestamp import Timestamp

TOKEN_S_MAX: Final = 100 * 366 * 86400.0

# `$` alone also matches before a newline at the end.
_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}(?!\n)$"
_RESERVED: Final = "muster"

_Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
_Teams = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)]
_Label = Annotated[str, msgspec.Meta(max_length=100)]
_Lifetime = Annotated[float, msgspec.Meta(gt=0, le=TOKEN_S_MAX)]


def user_name_problem(name: str) -> str:
    """Return why no user may have this name, or ""."""
    if re.search(_NAME, name) is None:
        return "is not a valid user name: one has 1 to 64 of A-Za-z0-9_.@+-, at first none of .@+-"
    if name.lower() == _RESERVED:
        return "is not a valid user name: the coordinator itself acts under it"
    return ""


class UserRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/users`."""

    name: _Name
    role: Role = Role.USER
    teams: _Teams = ()


class UserChange(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `PATCH /v1/users/{id}`. What is null stays as it is; `enable` ends a `disable`."""

    role: Role | None = None
    teams: _Teams | None = None
    enable: bool = False


class DisableRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/users/{id}/disable`. With `end_jobs`, the user's jobs are cancelled."""

    end_jobs: bool = False


class UserView(msgspec.Struct, frozen=True):
    """A user. `tokens` counts the user's tokens, `jobs` those of the jobs that have not ended."""

    name: str
    role: Role
    teams: tuple[str, ...]
    disabled: bool
    tokens: int
    jobs: int
    since: Timestamp


class UserAnswer(msgspec.Struct, frozen=True):
    """Response of a change of a user. `changed` is false if nothing had to change. `ended` counts
    the jobs that were cancelled.
    """

    user: UserView
    changed: bool
    ended: int = 0


class UserList(msgspec.Struct, frozen=True):
    """The users by name."""

    users: tuple[UserView, ...]


class TokenRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/tokens`. `user` is the caller if it is empty; `role` limits the role that
    the user has. With `join`, the token is for agents and has neither.
    """

    user: Annotated[str, msgspec.Meta(max_length=256)] = ""
    label: _Label = ""
    role: Role | None = None
    expires_s: _Lifetime | None = None
    join: bool = False


class RevokeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/tokens/{id}/revoke`."""


class TokenView(msgspec.Struct, frozen=True):
    """A token, without its secret. `role` is the role that it gives, or `join`. `used` is the last
    use, which may be up to a day later if the coordinator has been restarted since. `jobs` counts
    the jobs of its user that have not ended. `problem` says why it is not accepted. Of a join
    token, `agents` counts those that are connected with it, and `jobs` those on their nodes.
    """

    id: str
    role: str
    user: str
    label: str
    created: Timestamp
    expires: Timestamp | None
    used: Timestamp | None
    jobs: int
    problem: str
    agents: int = 0


class TokenList(msgspec.Struct, frozen=True):
    """Tokens, the oldest first."""

    tokens: tuple[TokenView, ...]


class NewToken(msgspec.Struct, frozen=True):
    """A new token and its text, which is shown only here. `ca_sha256` is the digest of the CA that
    `GET /v1/ca` returns; empty if clients need none. `pin` is the coordinator's public key as
    curl's `--pinnedpubkey` takes it, if people can install Muster from there. `address` is the
    coordinator's HOST:PORT for people; empty if its settings name none.
    """

    token: TokenView
    text: str
    ca_sha256: str
    pin: str = ""
    address: str = ""
