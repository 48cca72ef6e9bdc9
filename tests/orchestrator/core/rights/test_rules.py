"""Rights: every action, with every principal, owner, team and visibility."""

from itertools import product
from typing import get_args

import pytest

from muster.protocol.link.control_channel import Command, Report
from muster.protocol.link.log_channel import Chunk, LogReport
from muster.protocol.roles import Role
from orchestrator.api.http.route import JOB_PATH, TOKEN_PATH
from orchestrator.api.routes import ROUTES
from orchestrator.core.rights.link import MESSAGES, node_may_send
from orchestrator.core.rights.principals import (
    NOBODY,
    NODE,
    Kind,
    Owned,
    Policy,
    Principal,
    Visibility,
)
from orchestrator.core.rights.rules import RULES, Action, least_role, may, may_with_some

ORDER = VIEWER, USER, OPERATOR, ADMIN = Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN
# The least role that may do this with anything, and with a job of one's own. Said here once more,
# independently of the product.
EXPECTED: dict[Action, tuple[Role | None, Role | None]] = {
    Action.CHECK_HEALTH: (VIEWER, VIEWER),
    Action.CONNECT: (None, None),
    Action.REPORT: (None, None),
    Action.SHIP_LOGS: (None, None),
    Action.FETCH_CODE: (None, None),
    Action.JOIN: (VIEWER, VIEWER),
    Action.RENEW: (None, None),
    Action.READ_CLUSTER: (VIEWER, VIEWER),
    Action.READ_METRICS: (VIEWER, VIEWER),
    Action.OPERATE_NODE: (OPERATOR, OPERATOR),
    Action.ENROL_NODE: (ADMIN, ADMIN),
    Action.LIST_JOBS: (VIEWER, VIEWER),
    Action.LIST_EVENTS: (VIEWER, VIEWER),
    Action.SEND_CODE: (USER, USER),
    Action.SUBMIT_JOB: (USER, USER),
    Action.SEE_JOB: (OPERATOR, VIEWER),
    Action.READ_JOB: (OPERATOR, VIEWER),
    Action.CHANGE_JOB: (OPERATOR, USER),
    Action.RERUN_JOB: (ADMIN, USER),
    Action.READ_AUDIT: (ADMIN, ADMIN),
    Action.READ_CA: (VIEWER, VIEWER),
    Action.INSTALL: (VIEWER, VIEWER),
    Action.MANAGE_PEOPLE: (ADMIN, ADMIN),
    Action.LIST_TOKENS: (VIEWER, VIEWER),
    Action.SEE_TOKEN: (ADMIN, VIEWER),
    Action.REVOKE_TOKEN: (ADMIN, USER),
}
OF_ALL = {Action.CHECK_HEALTH, Action.READ_CA, Action.JOIN, Action.INSTALL}
OF_NODES = OF_ALL | {
    Action.CONNECT,
    Action.REPORT,
    Action.SHIP_LOGS,
    Action.FETCH_CODE,
    Action.RENEW,
}
LAB = frozenset({"lab"})
JOBS = {
    "none": None,
    "own": Owned("bob", LAB),
    "team's": Owned("ann", LAB | {"other"}),
    "another's": Owned("ann", frozenset({"other"})),
    "of a longer name": Owned("bobby", frozenset()),
    "the token itself": Owned("bob", LAB, itself=True),
}


def user(role: Role, teams: frozenset[str] = LAB) -> Principal:
    return Principal(Kind.USER, "bob", role, teams)


def at_least(role: Role, needed: Role | None) -> bool:
    return needed is not None and ORDER.index(role) >= ORDER.index(needed)


def expected(action: Action, role: Role, whose: str, visibility: Visibility) -> bool:
    anything, own = EXPECTED[action]
    if at_least(role, anything):
        return True
    if whose == "the token itself" and action is Action.REVOKE_TOKEN:
        return True
    if whose in {"own", "the token itself"}:
        return at_least(role, own)
    if action is not Action.SEE_JOB or whose == "none":
        return False
    return visibility is Visibility.PUBLIC or (visibility is Visibility.TEAM and whose == "team's")


def test_every_user_with_every_job() -> None:
    asked = 0
    for action, role, whose, visibility in product(Action, Role, JOBS, Visibility):
        found = may(user(role), action, JOBS[whose], Policy(visibility=visibility))
        assert found is expected(action, role, whose, visibility), (action, role, whose, visibility)
        asked += 1
    assert asked == 26 * 4 * 6 * 3


def test_nodes_and_nobody() -> None:
    for action, job in product(Action, JOBS.values()):
        assert may(NODE, action, job, Policy()) is (action in OF_NODES)
        assert may(NOBODY, action, job, Policy()) is (action in OF_ALL)


def test_an_action_without_a_rule_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.core.rights.rules.RULES", {})
    for action in Action:
        assert not may(user(ADMIN), action, JOBS["own"], Policy())


def test_a_user_without_a_role_may_do_no_more_than_nobody() -> None:
    for action, job in product(Action, JOBS.values()):
        found = may(Principal(Kind.USER, "bob"), action, job, Policy())
        assert found is (action in OF_ALL), action


def test_every_action_has_a_rule_and_a_use() -> None:
    assert set(RULES) == set(Action) == set(EXPECTED)
    decided_within = {Action.REPORT, Action.SHIP_LOGS, Action.SEE_TOKEN}
    assert {route.action for route in ROUTES} | decided_within == set(Action)


def test_a_route_below_a_job_or_a_token_decides_about_it() -> None:
    for route in ROUTES:
        owned = route.path.startswith((JOB_PATH, TOKEN_PATH))
        assert RULES[route.action].owned is owned, (route.method, route.path)


def test_every_message_of_a_node_has_an_action() -> None:
    messages = {*get_args(Report), *get_args(LogReport), Chunk}
    assert set(MESSAGES) == messages
    assert all(node_may_send(message) for message in messages)
    assert not any(node_may_send(command) for command in get_args(Command))


def test_the_least_role() -> None:
    assert least_role(Action.SUBMIT_JOB) is USER
    assert least_role(Action.RERUN_JOB) is USER
    assert least_role(Action.OPERATE_NODE) is OPERATOR
    assert least_role(Action.CONNECT) is None
    assert not may_with_some(user(VIEWER), Action.CHANGE_JOB)


@pytest.mark.parametrize(
    ("role", "teams", "most"),
    [
        (USER, (), 50),
        (USER, ("lab",), 50),
        (USER, ("release",), 80),
        (USER, ("low",), 50),
        (OPERATOR, (), None),
        (OPERATOR, ("low",), 10),
    ],
)
def test_the_largest_limit_of_priorities_holds(
    role: Role, teams: tuple[str, ...], most: int | None
) -> None:
    policy = Policy(roles={USER: 50}, teams={"release": 80, "low": 10})
    assert policy.priority_max(user(role, frozenset(teams))) == most
