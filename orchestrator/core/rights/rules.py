"""Actions, their rules, and the decision."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple, assert_never

from muster.protocol.roles import Role
from orchestrator.core.rights.principals import Kind, Owned, Policy, Principal, Visibility


class Action(enum.Enum):
    """Everything that a request or a message can ask for."""

    CHECK_HEALTH = "health.check"
    CONNECT = "link.connect"
    REPORT = "link.report"
    SHIP_LOGS = "link.logs"
    FETCH_CODE = "link.code"
    JOIN = "link.join"
    RENEW = "link.renew"
    READ_CLUSTER = "cluster.read"
    READ_METRICS = "metrics.read"
    OPERATE_NODE = "node.operate"
    ENROL_NODE = "node.enrol"
    LIST_JOBS = "jobs.list"
    LIST_EVENTS = "events.list"
    SEND_CODE = "code.send"
    SUBMIT_JOB = "job.submit"
    SEE_JOB = "job.see"
    READ_JOB = "job.read"
    CHANGE_JOB = "job.change"
    RERUN_JOB = "job.rerun"
    READ_AUDIT = "audit.read"
    READ_CA = "ca.read"
    INSTALL = "muster.install"
    MANAGE_PEOPLE = "people.manage"
    LIST_TOKENS = "tokens.list"
    SEE_TOKEN = "token.see"  # noqa: S105 - a name
    REVOKE_TOKEN = "token.revoke"  # noqa: S105 - a name


class Rule(NamedTuple):
    """A rule allows an action to `kinds` of principals. Of users it asks for at least the role
    `own` for a job or a token of their own, `itself` for the token of the request, `shown` for a
    job whose line the site shows to them, and `all` for everything.
    """

    text: str
    all: Role | None = None
    own: Role | None = None
    shown: Role | None = None
    itself: Role | None = None
    kinds: frozenset[Kind] = frozenset({Kind.USER})

    @property
    def owned(self) -> bool:
        """True if the action has an object with an owner: a job or a token."""
        return self.own is not None


_ALL_KINDS: Final = frozenset(Kind)
_NODES: Final = frozenset({Kind.NODE})

RULES: Final[Mapping[Action, Rule]] = {
    Action.CHECK_HEALTH: Rule("ask whether the coordinator lives and is ready", kinds=_ALL_KINDS),
    Action.CONNECT: Rule("open an agent's connection", kinds=_NODES),
    Action.REPORT: Rule("report on the node of this connection and its tasks", kinds=_NODES),
    Action.SHIP_LOGS: Rule("send the output of tasks of this node", kinds=_NODES),
    Action.FETCH_CODE: Rule("fetch the code of a task of this node, by its ticket", kinds=_NODES),
    Action.JOIN: Rule("join as a node, with a join secret", kinds=_ALL_KINDS),
    Action.RENEW: Rule("renew the certificate of this node", kinds=_NODES),
    Action.READ_CLUSTER: Rule("read nodes, hardware, versions", Role.VIEWER),
    Action.READ_METRICS: Rule("scrape the metrics of the cluster", Role.VIEWER),
    Action.OPERATE_NODE: Rule(
        "drain, resume, remove, declare lost; accept nodes that join, revoke their certificates",
        Role.OPERATOR,
    ),
    Action.ENROL_NODE: Rule("create and revoke join secrets", Role.ADMIN),
    Action.LIST_JOBS: Rule("list jobs, each if `job.see` allows it", Role.VIEWER),
    Action.LIST_EVENTS: Rule("list events, those of a job if `job.read` allows it", Role.VIEWER),
    Action.SEND_CODE: Rule("upload code, refer to what the same user has uploaded", Role.USER),
    Action.SUBMIT_JOB: Rule("submit and validate a job, check a node", Role.USER),
    Action.SEE_JOB: Rule(
        "see the line of a job in the list, wait for its end",
        Role.OPERATOR,
        own=Role.VIEWER,
        shown=Role.VIEWER,
    ),
    Action.READ_JOB: Rule(
        "read everything else of a job: spec, environment, logs, events, stacks, evidence, reasons",
        Role.OPERATOR,
        own=Role.VIEWER,
    ),
    Action.CHANGE_JOB: Rule(
        "cancel, signal, hold, release, change a job", Role.OPERATOR, own=Role.USER
    ),
    Action.RERUN_JOB: Rule(
        "submit a job again, which passes its hidden values to the new owner",
        Role.ADMIN,
        own=Role.USER,
    ),
    Action.READ_AUDIT: Rule("read the audit log", Role.ADMIN),
    Action.READ_CA: Rule("read the CA of the coordinator's certificate", kinds=_ALL_KINDS),
    Action.INSTALL: Rule("fetch the script and the wheels that install Muster", kinds=_ALL_KINDS),
    Action.MANAGE_PEOPLE: Rule("add, change and disable users, create tokens", Role.ADMIN),
    Action.LIST_TOKENS: Rule("list tokens, each if `token.see` allows it", Role.VIEWER),
    Action.SEE_TOKEN: Rule("see a token in the list", Role.ADMIN, own=Role.VIEWER),
    Action.REVOKE_TOKEN: Rule("revoke a token", Role.ADMIN, own=Role.USER, itself=Role.VIEWER),
}


def may(who: Principal, action: Action, job: Owned | None, policy: Policy) -> bool:
    """True if `who` may do this. `job` is the object of an action that has one."""
    rule = RULES.get(action)
    if rule is None or who.kind not in rule.kinds:
        return False
    if who.kind is not Kind.USER or Kind.NOBODY in rule.kinds:
        return True
    if _holds(who, rule.all):
        return True
    if job is None:
        return False
    if job.owner == who.name and _holds(who, rule.own):
        return True
    if job.itself and _holds(who, rule.itself):
        return True
    return _holds(who, rule.shown) and _shows(who, job, policy.visibility)


def may_with_some(who: Principal, action: Action) -> bool:
    """True if there can be an object with which `who` may do this."""
    everything = Policy(visibility=Visibility.PUBLIC)
    return may(who, action, Owned(who.name, itself=True), everything)


def least_role(action: Action) -> Role | None:
    """Return the least role that may do this with some object, or None if no role may."""
    return next((r for r in Role if may_with_some(Principal(Kind.USER, role=r), action)), None)


def _holds(who: Principal, needed: Role | None) -> bool:
    return needed is not None and who.role is not None and who.role.includes(needed)


def _shows(who: Principal, job: Owned, visibility: Visibility) -> bool:
    match visibility:
        case Visibility.PUBLIC:
            return True
        case Visibility.TEAM:
            return not who.teams.isdisjoint(job.teams)
        case Visibility.PRIVATE:
            return False
        case _:
            assert_never(visibility)
