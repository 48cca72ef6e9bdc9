"""The users who may submit, of whom nodes that run jobs as their submitters have to know."""

from __future__ import annotations

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import Welcome
from muster.protocol.link.given import USERS_MAX, GiveUsers
from muster.protocol.roles import Role
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.effects import RequestId
from orchestrator.core.model.people import KnownUser, People
from orchestrator.core.nodes.submitters import submitters
from orchestrator.core.views.display import node_view
from tests.orchestrator.core.playbook import Cluster

WHY = "no user of the cluster (ada) has an account here"


def add(cluster: Cluster, user: str, role: Role = Role.USER) -> None:
    cluster.turn(s.UserReceived(RequestId(99), user, role, (), "ada"))


def given(cluster: Cluster, node: str) -> list[GiveUsers]:
    return [it for it in cluster.sent[NodeName(node)] if isinstance(it, GiveUsers)]


def test_a_node_learns_of_a_new_user_while_it_refuses_every_job() -> None:
    cluster = Cluster()
    add(cluster, "ada", Role.ADMIN)
    add(cluster, "eve", Role.VIEWER)
    cluster.join("a", "b")
    welcome = cluster.sent[NodeName("a")][0]
    assert isinstance(welcome, Welcome)
    assert welcome.users == ("ada",)
    cluster.observe("a", refuses_jobs=WHY)
    state = node_view(cluster.node("a"), cluster.now).state
    assert (state.code, state.text) == ("refuses_jobs", f"refuses every job: {WHY}")
    add(cluster, "ann")
    assert given(cluster, "a") == [GiveUsers(("ada", "ann"))]
    assert given(cluster, "b") == []
    cluster.observe("a", refuses_jobs="")
    assert node_view(cluster.node("a"), cluster.now).state.code == "free"
    add(cluster, "bob")
    assert len(given(cluster, "a")) == 1


def test_too_many_users_are_not_named_and_a_disabled_one_neither() -> None:
    people = People()
    for number in range(USERS_MAX + 1):
        name = f"user-{number:03}"
        people.users[name] = KnownUser(name, Role.USER, disabled=number == 0)
    assert len(submitters(people) or ()) == USERS_MAX
    people.users["user-000"] = KnownUser("user-000", Role.USER)
    assert submitters(people) is None
