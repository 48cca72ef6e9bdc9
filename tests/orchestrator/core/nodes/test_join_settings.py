"""Settings of joins that bind: the pool of a secret, approval, and how often a join is repeated."""

from __future__ import annotations

from msgspec.structs import replace

from muster.protocol.ids import SessionId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Hello, Inventory, NodeObservations
from orchestrator.api.enrolment.routes import join_limit
from orchestrator.core.engine.turn import turn
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.model.node import LinkState
from orchestrator.core.nodes.enrolment import refusal_of
from orchestrator.core.views.display import node_seen
from orchestrator.core.views.joined import joined_seen
from tests.orchestrator.core.nodes.test_enrolment import (
    GPU,
    HOUR_S,
    REQUEST,
    Site,
    join,
    renew,
    secret,
)


def of_pool(pool: str, name: str = "s1") -> s.Input:
    ends = 1000.0 + HOUR_S
    return s.JoinSecretReceived(REQUEST, name, "d" * 64, 9, ends, "*", pool, False, "", "ada")


def says_hello(site: Site, session: int, certificate: str, pool: str) -> str:
    """Say hello from a pool; returns the code of the refusal, or ""."""
    inventory = Inventory("10.0.0.1", "m", pool=pool)
    hello = Hello(GPU, "agent", "boot", "0.1.0", NodeObservations(inventory))
    given = s.HelloReceived(SessionId(session), hello, "10.0.0.1", certificate=certificate)
    done = turn(site.state, given, Instant(site.now, site.now), site.limits)
    site.facts += [(fact, site.now) for fact in done.facts]
    return "".join(e.refused.code for e in done.effects if isinstance(e, a.RefuseSession))


def test_a_node_is_in_the_pool_of_its_secret_alone() -> None:
    site = Site()
    site.give(of_pool("lab"))
    assert site.code(join("a1")) == ""
    assert says_hello(site, 1, "a1", "prod") == "wrong_pool"
    text = joined_seen(site.state, GPU, Instant(0.0, site.now)).state.text
    assert (
        "joined with a secret for pool lab, and its agent says pool prod: set `pool: lab`" in text
    )
    assert says_hello(site, 2, "a1", "lab") == ""
    assert site.state.nodes[GPU].link is LinkState.CONNECTED


def test_a_known_node_that_is_refused_says_why_until_it_connects_or_joins_again() -> None:
    site = Site()
    site.give(of_pool("lab"))
    site.code(join("a1"))
    assert says_hello(site, 1, "a1", "lab") == ""

    def seen() -> str:
        return node_seen(site.state, site.state.nodes[GPU], Instant(0.0, site.now)).state.text

    # A second agent with its key changes nothing about a node that is connected.
    assert says_hello(site, 2, "a1", "prod") == "wrong_pool"
    assert seen() == "free"
    site.give(s.SessionEnded(SessionId(1)))
    assert "refused" not in seen()
    assert says_hello(site, 3, "a1", "prod") == "wrong_pool"
    said = "its agent is refused: gpu-01 joined with a secret for pool lab"
    assert said in seen()
    assert refusal_of(site.state, "a1").startswith("gpu-01 joined with a secret for pool lab")
    before = len(site.facts)
    assert says_hello(site, 4, "a1", "prod") == "wrong_pool"
    assert len(site.facts) == before
    assert says_hello(site, 5, "a1", "lab") == ""
    site.give(s.SessionEnded(SessionId(5)))
    assert said not in seen()
    assert refusal_of(site.state, "a1") == ""
    assert says_hello(site, 6, "a1", "prod") == "wrong_pool"
    site.give(of_pool("prod", "s2"))
    assert site.code(join("a2", name="s2", machine="m")) == ""
    assert said not in seen()


def test_a_renewed_certificate_is_for_the_same_pool() -> None:
    site = Site()
    site.give(of_pool("lab"))
    site.code(join("a1"))
    assert site.code(renew("a1", "b1")) == ""
    assert says_hello(site, 1, "b1", "prod") == "wrong_pool"
    assert says_hello(site, 2, "b1", "lab") == ""


def test_a_node_that_was_accepted_is_in_the_pool_of_its_secret() -> None:
    site = Site()
    site.give(secret(uses=2))
    site.code(join("a1"))
    site.give(of_pool("lab", "s2"))
    assert site.code(join("b1", name="s2")) == "waits"
    site.code(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert says_hello(site, 1, "b1", "prod") == "wrong_pool"
    assert says_hello(site, 2, "b1", "lab") == ""


def test_a_secret_without_a_pool_leaves_the_choice_to_the_node() -> None:
    site = Site()
    site.give(secret())
    site.code(join("a1"))
    assert says_hello(site, 1, "a1", "prod") == ""


def test_another_secret_is_how_a_node_gets_into_another_pool() -> None:
    site = Site()
    site.give(of_pool("lab"))
    site.give(of_pool("prod", "s2"))
    site.code(join("a1"))
    assert site.code(join("a2", name="s2")) == ""
    assert says_hello(site, 1, "a2", "prod") == ""


def test_approval_that_was_turned_on_holds_nodes_with_earlier_secrets() -> None:
    site = Site()
    site.give(secret(uses=2))

    def joins(cert: str, node: str) -> str:
        given = join(cert, node)
        assert isinstance(given, s.JoinReceived)
        return site.code(replace(given, approve=True))

    assert site.code(join("a1")) == ""
    assert joins("b1", "gpu-02") == "waits"
    # Not the machine that was in before and repeats its line.
    assert joins("a2", GPU) == ""


def test_a_join_is_repeated_five_times_at_once_and_then_once_a_minute() -> None:
    """Each is a record in the journal."""
    limit = join_limit()
    passed = [now for now in range(0, 3600, 2) if limit.take("gpu-01", float(now)) == 0.0]
    assert len(passed) in {64, 65}
    assert passed[:5] == [0, 2, 4, 6, 8]
    assert passed[5] >= 58
