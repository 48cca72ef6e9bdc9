"""Users and tokens: what admins ask for, and what becomes of it."""

import pytest

from muster.protocol.ids import NodeName
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Inventory
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass
from muster.spec.model import JobSpec, Shell
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.turn import turn
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.base import Durability
from orchestrator.core.facts.cluster import NodeRegistered
from orchestrator.core.facts.people import TokenUsed
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.people import KnownToken, KnownUser, People
from orchestrator.core.model.state import State
from orchestrator.core.rights import people as rules

DAY_S = 86400.0
REQUEST = a.RequestId(1)


class Site:
    """A state with the admin ada, and requests that she makes at `now`."""

    def __init__(self) -> None:
        self.state, self.now = State(), 1000.0
        people = People(
            {"ada": KnownUser("ada", Role.ADMIN)},
            {"ada1": KnownToken("ada1", TokenClass.USER, "0" * 64, "ada")},
            "digest",
        )
        self.give(s.CoordinatorStarted(1, "here", people=people))

    def give(self, given: s.Input) -> a.Result | None:
        done = turn(self.state, given, Instant(self.now, self.now), Limits())
        self.facts = done.facts
        answers = [effect.result for effect in done.effects if isinstance(effect, a.Answer)]
        return answers[0] if answers else None

    def code(self, given: s.Input) -> str:
        """Return the code of a refusal, or "" if something was changed."""
        result = self.give(given)
        if isinstance(result, a.Declined):
            assert not self.facts
            return result.code
        assert isinstance(result, a.PeopleChanged)
        assert result.anything is bool(self.facts)
        return "" if result.anything else "same"


def user(name: str, role: Role = Role.USER) -> s.UserReceived:
    return s.UserReceived(REQUEST, name, role, ("lab",), "ada")


def token(
    name: str,
    whose: str = "bob",
    expires: float | None = None,
    class_: TokenClass = TokenClass.USER,
) -> s.TokenReceived:
    return s.TokenReceived(REQUEST, name, class_, "1" * 64, whose, "", None, expires, "ada")


def change(name: str, **fields: object) -> s.UserChangeReceived:
    return s.UserChangeReceived(REQUEST, name, "ada", **fields)  # type: ignore[arg-type]


def revoke(name: str) -> s.RevokeReceived:
    return s.RevokeReceived(REQUEST, name, "ada")


def test_a_user_comes_changes_and_goes() -> None:
    site = Site()
    assert site.code(user("bob")) == ""
    assert site.code(user("bob")) == "user_exists"
    assert site.code(change("bob", role=Role.OPERATOR)) == ""
    assert site.code(change("bob", role=Role.OPERATOR)) == "same"
    assert site.code(change("eve", role=Role.OPERATOR)) == "unknown_user"
    assert site.code(token("bob1")) == ""
    assert site.code(token("bob1")) == "token_exists"
    assert site.code(token("eve1", "eve")) == "unknown_user"
    assert site.code(token("join1", "", class_=TokenClass.JOIN)) == ""
    assert site.code(change("bob", disabled=True)) == ""
    assert site.code(change("bob", disabled=True)) == "same"
    assert site.code(change("bob", teams=("web",))) == "user_disabled"
    assert site.code(change("bob", disabled=False, teams=("web",))) == ""
    known = site.state.people.users["bob"]
    assert (known.role, known.teams, known.disabled) == (Role.OPERATOR, ("web",), False)
    assert site.code(revoke("bob1")) == ""
    assert site.code(revoke("bob1")) == "unknown_token"
    assert set(site.state.people.tokens) == {"ada1", "join1"}


@pytest.mark.parametrize(
    "last",
    [
        change("ada", disabled=True),
        change("ada", role=Role.OPERATOR),
        revoke("ada1"),
    ],
)
def test_the_last_admin_stays(last: s.UserChangeReceived | s.RevokeReceived) -> None:
    site = Site()
    assert site.code(last) == "last_admin"
    # Another admin counts only with a valid token.
    assert site.code(user("eve", Role.ADMIN)) == ""
    assert site.code(last) == "last_admin"
    assert site.code(token("eve1", "eve", expires=site.now + DAY_S)) == ""
    assert site.code(last) == "last_admin"
    assert site.code(token("eve2", "eve", expires=site.now + 2 * DAY_S)) == ""
    assert site.code(last) == ""


def test_the_last_admin_stays_although_the_last_token_ends_soon() -> None:
    site = Site()
    assert site.code(user("eve", Role.ADMIN)) == ""
    assert site.code(token("eve1", "eve", expires=site.now + 10.0 + DAY_S)) == ""
    assert site.code(revoke("ada1")) == ""
    site.now += DAY_S
    assert site.code(revoke("eve1")) == "last_admin"
    assert site.code(change("eve", disabled=True)) == "last_admin"
    assert site.code(token("ada2", "ada", expires=site.now + 20.0)) == ""
    assert site.code(revoke("eve1")) == ""
    site.now += 20.0
    # Nobody can manage users any more, and it makes no difference.
    assert site.code(revoke("ada2")) == ""


def test_a_full_disk_takes_away_access_and_gives_none() -> None:
    site = Site()
    assert [site.code(user("bob")), site.code(token("bob1"))] == ["", ""]
    site.give(s.DiskSpaceChecked("the disk is full"))
    for given in (user("eve"), token("bob2"), change("bob", role=Role.ADMIN)):
        assert site.code(given) == a.DISK_FULL
    site.give(s.TokenSeen("bob1"))
    assert not site.facts
    assert site.code(revoke("bob1")) == ""
    assert site.code(change("bob", disabled=True)) == ""


def test_a_use_is_recorded_once_a_day() -> None:
    site = Site()
    for seconds, recorded in ((0.0, True), (1.0, False), (DAY_S, True)):
        site.now += seconds
        site.give(s.TokenSeen("ada1"))
        assert site.facts == ([TokenUsed("ada1")] if recorded else [])
    assert TokenUsed.durability is Durability.LAZY
    assert site.state.people.tokens["ada1"].used == site.now
    site.give(s.TokenSeen("gone"))
    assert not site.facts


def test_users_and_tokens_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "USERS_MAX", 2)
    monkeypatch.setattr(rules, "TOKENS_MAX", 2)
    site = Site()
    assert [site.code(user("bob")), site.code(user("eve"))] == ["", "too_many_users"]
    assert [site.code(token("bob1")), site.code(token("bob2"))] == ["", "too_many_tokens"]


def test_the_newest_revoked_tokens_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.core.model.people._REVOKED_MAX", 2)
    site = Site()
    for name in ("one", "two", "three"):
        assert site.code(token(name, "ada")) == ""
        assert site.code(revoke(name)) == ""
    assert list(site.state.people.revoked) == ["two", "three"]


def test_people_are_imported_once() -> None:
    site = Site()
    other = People({"eve": KnownUser("eve", Role.ADMIN)}, {}, "another")
    site.give(s.CoordinatorStarted(2, people=other))
    assert set(site.state.people.users) == {"ada"}
    assert site.state.people.imported == "digest"


def test_a_submit_that_is_decided_after_its_user_was_disabled_is_refused() -> None:
    site = Site()
    node = NodeRegistered(NodeName("n1"), "agent", "boot", "0.1.0", Inventory("10.0.0.1", "m1"))
    apply(site.state, node, 0.0)
    submit = s.SubmitReceived(REQUEST, JobSpec(name="demo", run=Shell("true")), "bob")
    assert site.code(user("bob")) == ""
    assert isinstance(site.give(submit), a.Submitted)
    assert site.code(change("bob", disabled=True)) == ""
    refused = site.give(submit)
    assert isinstance(refused, a.Declined)
    assert (refused.code, site.facts) == (a.UNAUTHORIZED, [])
    assert site.code(change("bob", disabled=False)) == ""
    assert isinstance(site.give(submit), a.Submitted)
