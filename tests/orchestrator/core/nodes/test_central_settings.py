"""Settings that the coordinator gives to agents: which of them a node gets, and what it reports."""

from __future__ import annotations

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import Welcome
from muster.protocol.observations.node_settings import GiveSettings, NodeSetting
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.limits import CentralSettings, Limits, Settings
from orchestrator.core.views.display import node_view
from tests.orchestrator.core.playbook import Cluster


def given(origin: str, **values: str) -> Settings:
    return tuple(NodeSetting(name, value, origin) for name, value in values.items())


CENTRAL = CentralSettings(
    pools={"lab": given("pool", a="1", b="1", c="1")},
    labels={"rack=a1": given("rack", b="2", c="2", d="2"), "kind=h100": given("kind", d="3")},
    names={"n1": given("name", c="4")},
)


def test_a_name_goes_before_a_label_and_a_label_before_a_pool() -> None:
    both = {"kind": "h100", "rack": "a1"}
    found = {it.name: (it.value, it.origin) for it in CENTRAL.of("n1", "lab", both)}
    assert found == {
        "a": ("1", "pool"),
        "b": ("2", "rack"),
        "c": ("4", "name"),
        "d": ("3", "kind"),  # the later one of the configuration
    }
    assert CENTRAL.of("n2", "other", {"rack": "b1"}) == ()


def test_the_welcome_has_them() -> None:
    cluster = Cluster(limits=Limits(node_settings=CENTRAL))
    cluster.join("n1", pool="lab")
    (welcome,) = cluster.sent[NodeName("n1")]
    assert isinstance(welcome, Welcome)
    assert welcome.settings == CENTRAL.of("n1", "lab", {})


def test_a_change_is_sent_to_the_connected_nodes_that_it_is_for() -> None:
    cluster = Cluster(limits=Limits(node_settings=CENTRAL))
    for name in ("n1", "n2", "n3"):
        cluster.join(name, pool="lab" if name != "n2" else "other")
    cluster.leave("n3")
    before = {name: len(sent) for name, sent in cluster.sent.items()}
    after = CentralSettings(pools={"lab": given("pool", a="9")}, labels=CENTRAL.labels)
    cluster.limits = Limits(node_settings=after)
    cluster.turn(s.SettingsRead(CENTRAL))
    new = {name: sent[before[name] :] for name, sent in cluster.sent.items()}
    assert new == {"n1": [GiveSettings(after.of("n1", "lab", {}))], "n2": [], "n3": []}
    # The same file again.
    cluster.turn(s.SettingsRead(after))
    assert len(cluster.sent[NodeName("n1")]) == before[NodeName("n1")] + 1


def test_what_a_node_reports_is_shown_in_one_line_each() -> None:
    cluster = Cluster()
    cluster.join("n1")
    cluster.observe("n1", settings=(NodeSetting("a", '"x"', "de\nfault"),))
    (shown,) = node_view(cluster.state.nodes[NodeName("n1")], cluster.now).settings
    assert (shown.name, shown.value, shown.origin) == ("a", '"x"', "de fault")
