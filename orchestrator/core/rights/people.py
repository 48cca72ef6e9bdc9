"""Users and tokens: requests of admins, and the facts about them."""

from __future__ import annotations

from typing import Final, assert_never

from msgspec import UNSET
from msgspec.structs import replace

from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts import people as pf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.model.people import KnownToken, KnownUser, People
from orchestrator.core.model.state import State

USERS_MAX: Final = 10_000
TOKENS_MAX: Final = 50_000
_LASTS_S: Final = 86400.0

OfPeopleReceived = (
    s.UserReceived | s.UserChangeReceived | s.TokenReceived | s.RevokeReceived | s.TokenSeen
)


_Found = (
    pf.UserAdded
    | pf.UserChanged
    | pf.UserDisabled
    | pf.TokenCreated
    | pf.TokenRevoked
    | a.Declined
    | None
)


def decide_people(state: State, asked: OfPeopleReceived, now: float) -> Decision:
    """Decide on a request about users or tokens. `now` is UTC seconds."""
    if isinstance(asked, s.TokenSeen):
        return Decision(_seen(state, asked.token, now))
    found: _Found
    match asked:
        case s.UserReceived():
            found = _add(state.people, asked)
        case s.UserChangeReceived():
            found = _change(state.people, asked, now)
        case s.TokenReceived():
            found = _create(state.people, asked)
        case s.RevokeReceived():
            found = _revoke(state.people, asked, now)
        case _:
            assert_never(asked)
    # Tokens can be revoked and users disabled when the disk is full.
    spares = isinstance(found, pf.TokenRevoked | pf.UserDisabled)
    if state.disk_full and not spares and not isinstance(found, a.Declined | None):
        found = a.no_room(state.disk_full, "no user and no token is changed")
    if isinstance(found, a.Declined):
        return Decision([], [a.Answer(asked.request, found)])
    facts: list[f.Fact] = [] if found is None else [found]
    return Decision(facts, [a.Answer(asked.request, a.PeopleChanged(bool(facts)))])


def import_people(people: People) -> list[f.Fact]:
    """Return the facts that make a new cluster know the people of its tokens file."""
    facts: list[f.Fact] = [
        pf.UserAdded(user.name, user.role, user.teams) for user in people.users.values()
    ]
    facts += [
        pf.TokenCreated(
            token.id, token.class_, token.sha256, token.user, token.label, token.role, token.expires
        )
        for token in people.tokens.values()
    ]
    return [*facts, pf.TokensImported(people.imported)]


def apply_people(people: People, fact: pf.OfPeople, at: float) -> None:
    match fact:
        case pf.UserAdded(name, role, teams):
            people.users[name] = KnownUser(name, role, teams, since=at)
        case pf.UserChanged(name, role, teams):
            user = people.users[name]
            people.users[name] = replace(user, role=role, teams=teams, disabled=False)
        case pf.UserDisabled(name):
            people.users[name] = replace(people.users[name], disabled=True)
        case pf.TokenCreated(name, class_, sha256, user, label, role, expires):
            people.tokens[name] = KnownToken(name, class_, sha256, user, label, role, expires, at)
        case pf.TokenRevoked(name):
            people.revoke(name)
        case pf.TokenUsed(name):
            if name in people.tokens:  # recorded late, it may have been revoked meanwhile
                people.tokens[name] = replace(people.tokens[name], used=at)
        case pf.TokensImported(sha256):
            people.imported = sha256
        case _:
            assert_never(fact)


def _seen(state: State, name: str, now: float) -> list[f.Fact]:
    token = state.people.tokens.get(name)
    if token is None or state.disk_full or token.seen_today(now):
        return []
    return [pf.TokenUsed(name)]


def _add(people: People, asked: s.UserReceived) -> pf.UserAdded | a.Declined:
    if asked.user in people.users:
        return a.Declined(
            "user_exists",
            f"there is a user {asked.user} already",
            f"change it with: muster user set {asked.user}",
        )
    if len(people.users) >= USERS_MAX:
        return a.Declined("too_many_users", f"there are {USERS_MAX} users, which is the limit")
    return pf.UserAdded(asked.user, asked.role, asked.teams, asked.by)


def _change(
    people: People, asked: s.UserChangeReceived, now: float
) -> pf.UserChanged | pf.UserDisabled | a.Declined | None:
    user = people.users.get(asked.user)
    if user is None:
        return unknown_user(asked.user)
    role = user.role if asked.role is UNSET else asked.role
    teams = user.teams if asked.teams is UNSET else asked.teams
    disabled = user.disabled if asked.disabled is UNSET else asked.disabled
    if (role, teams, disabled) == (user.role, user.teams, user.disabled):
        return None
    if (disabled or role is not Role.ADMIN) and any(
        people.admins(at) == {user.name} for at in _moments(now)
    ):
        return _last_admin(user.name)
    if disabled and user.disabled:
        return a.Declined(
            "user_disabled",
            f"the user {user.name} is disabled",
            f"enable it with: muster user set {user.name} --enable",
        )
    if disabled:
        return pf.UserDisabled(user.name, asked.by)
    return pf.UserChanged(user.name, role, teams, asked.by)


def _create(people: People, asked: s.TokenReceived) -> pf.TokenCreated | a.Declined:
    if asked.class_ is not TokenClass.JOIN and asked.user not in people.users:
        return unknown_user(asked.user)
    if asked.token in people.tokens:
        return a.Declined("token_exists", f"there is a token {asked.token} already", "try again")
    if len(people.tokens) >= TOKENS_MAX:
        hint = "revoke those that have expired: muster token list"
        return a.Declined("too_many_tokens", f"there are {TOKENS_MAX} tokens, the limit", hint)
    return pf.TokenCreated(
        asked.token,
        asked.class_,
        asked.sha256,
        asked.user,
        asked.label,
        asked.role,
        asked.expires,
        asked.by,
    )


def _revoke(people: People, asked: s.RevokeReceived, now: float) -> pf.TokenRevoked | a.Declined:
    token = people.tokens.get(asked.token)
    if token is None:
        return unknown_token(asked.token)
    others = People(people.users, {k: v for k, v in people.tokens.items() if k != token.id})
    if any(people.admins(at) and not others.admins(at) for at in _moments(now)):
        return _last_admin(token.user)
    return pf.TokenRevoked(token.id, asked.by)


def unknown_user(name: str) -> a.Declined:
    """The answer to a request for a user who does not exist."""
    hint = f"list the users with: muster user list; add one with: muster user add {name}"
    return a.Declined(a.UNKNOWN_USER, f"there is no user {name}", hint)


def unknown_token(name: str) -> a.Declined:
    """The answer to a request for a token that does not exist."""
    hint = "list the tokens with: muster token list"
    return a.Declined(a.UNKNOWN_TOKEN, f"there is no token {name}", hint)


def _moments(now: float) -> tuple[float, float]:
    """Return when there must be an admin: now, and in a day, because tokens expire."""
    return now, now + _LASTS_S


def _last_admin(name: str) -> a.Declined:
    return a.Declined(
        "last_admin",
        f"{name} is the last admin with a token that does not expire within a day: nobody could "
        "manage users any more",
        "first add another admin, or another token of this one",
    )
