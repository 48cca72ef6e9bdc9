"""The users who may submit jobs, for nodes that run jobs as their submitters."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.link.given import USERS_MAX, GiveUsers
from muster.protocol.roles import Role
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import people as pf
from orchestrator.core.facts.decision import Decision
from orchestrator.core.model.people import KnownUser, People
from orchestrator.core.model.state import State


def submitters(people: People) -> tuple[str, ...] | None:
    """Return the names of the users who may submit jobs; None if they are too many for a node."""
    return _named(people.users.values())


def with_users(state: State, decision: Decision) -> Decision:
    """Add to a change of people what nodes have to know: those that refuse every job may take jobs
    of a new user. The others get the users when they connect.
    """
    changed = {
        fact.user: KnownUser(fact.user, fact.role)
        for fact in decision.facts
        if isinstance(fact, pf.UserAdded | pf.UserChanged)
    }
    if changed:
        given = GiveUsers(_named({**state.people.users, **changed}.values()))
        decision.effects += [
            a.Send(name, node.session, given)
            for name, node in state.nodes.items()
            if node.refuses_jobs and node.session is not None
        ]
    return decision


def _named(users: Iterable[KnownUser]) -> tuple[str, ...] | None:
    found = [each.name for each in users if not each.disabled and each.role.includes(Role.USER)]
    return tuple(sorted(found)) if len(found) <= USERS_MAX else None
