"""Joining with a secret: who gets a certificate, for which name, and how long it is accepted."""

from typing import Any

import msgspec
import pytest

from muster.protocol.ids import NodeName, SessionId
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Hello, Inventory, NodeObservations
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.turn import turn
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.jobs import Fact
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.people import Enrolment, Joined, NodeKey
from orchestrator.core.model.state import Node, State
from orchestrator.core.nodes.enrolment import certificate_warnings, refuse_certificate, shown
from orchestrator.core.views.display import node_seen
from orchestrator.core.views.joined import joined_seen, listed_names

REQUEST = a.RequestId(1)
HOUR_S = 3600.0
DAY_S = 86400.0
GPU = NodeName("gpu-01")


class Site:
    """A state, and requests at `now`. Every fact is kept, for a replay."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.state, self.now, self.limits = State(), 1000.0, limits or Limits()
        self.facts: list[tuple[Fact, float]] = []
        self.give(s.CoordinatorStarted(1, "here"))

    def give(self, given: s.Input) -> a.Result | None:
        done = turn(self.state, given, Instant(self.now, self.now), self.limits)
        self.facts += [(fact, self.now) for fact in done.facts]
        answers = [effect.result for effect in done.effects if isinstance(effect, a.Answer)]
        return answers[0] if answers else None

    def code(self, given: s.Input) -> str:
        """Return the code of a refusal, "waits" for a node that waits, or ""."""
        result = self.give(given)
        if isinstance(result, a.Declined):
            return result.code
        assert isinstance(result, a.PeopleChanged)
        return "waits" if result.waits else ""

    def accepts(self, fingerprint: str, node: str = GPU) -> bool:
        return refuse_certificate(self.state, node, fingerprint) is None


def secret(name: str = "s1", *, uses: int = 1, names: str = "*", approve: bool = False) -> s.Input:
    ends = 1000.0 + HOUR_S
    return s.JoinSecretReceived(REQUEST, name, "d" * 64, uses, ends, names, "", approve, "", "ada")


def key(text: str, generation: int = 0, machine: str = "") -> NodeKey:
    """A certificate of the key `k` whose fingerprint is `kN` for any suffix N."""
    return NodeKey(text, text[0], 1e9, generation, machine=machine)


def signed(cert: str, begins: float, lifetime_s: float = 90 * DAY_S) -> NodeKey:
    return NodeKey(cert, cert[0], begins + lifetime_s, begins=begins)


def join(
    cert: str, node: str = GPU, name: str = "s1", sha256: str = "d" * 64, machine: str = ""
) -> s.Input:
    asked = key(cert, machine=machine)
    return s.JoinReceived(REQUEST, name, sha256, NodeName(node), asked, "10.0.0.1")


def renew(old: str, cert: str) -> s.Input:
    return s.RenewReceived(REQUEST, GPU, old, key(cert))


def hello(site: Site, fingerprint: str) -> None:
    """The node shows a certificate; the rest of a hello does not matter here."""
    for fact in shown(site.state, GPU, fingerprint):
        apply(site.state, fact, site.now)
        site.facts.append((fact, site.now))


def test_a_secret_lets_one_node_in_which_may_repeat_itself() -> None:
    site = Site()
    site.give(secret())
    assert site.code(join("a1")) == ""
    assert site.accepts("a1")
    # The answer may have been lost, so that the first one is good until the second is shown.
    assert site.code(join("a2")) == ""
    assert site.accepts("a2")
    assert site.accepts("a1")
    hello(site, "a2")
    assert site.accepts("a2")
    assert not site.accepts("a1")
    assert site.code(join("b1", "gpu-02")) == "bad_join_secret"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (join("a1", sha256="e" * 64), "bad_join_secret"),
        (join("a1", name="s2"), "bad_join_secret"),
        (join("a1", "cpu-01"), "name_not_allowed"),
        (join("a1", "gpu-01.lab"), "bad_name"),
        (join("a1", "localhost"), "bad_name"),
        (join("a1", "gpu-head"), "bad_name"),
    ],
)
def test_a_join_that_is_refused_changes_nothing(given: s.Input, code: str) -> None:
    site = Site(Limits(own_names=frozenset({"gpu-head"})))
    site.give(secret(names="gpu-*"))
    before = len(site.facts)
    assert site.code(given) == code
    assert len(site.facts) == before
    assert not site.state.enrolment.nodes


def test_a_secret_ends_by_time_and_by_revocation() -> None:
    site = Site()
    site.give(secret("s1"))
    site.give(secret("s2"))
    assert site.code(s.JoinSecretRevokeReceived(REQUEST, "s1", "ada")) == ""
    assert site.code(s.JoinSecretRevokeReceived(REQUEST, "s1", "ada")) == "unknown_token"
    assert site.code(join("a1", name="s1")) == "bad_join_secret"
    site.now += HOUR_S
    assert site.code(join("a1", name="s2")) == "bad_join_secret"


def test_a_known_name_of_another_key_waits_for_an_operator() -> None:
    site = Site()
    site.give(secret(uses=4))
    site.code(join("a1"))
    assert site.code(join("t1")) == "waits"
    assert site.accepts("a1")
    assert not site.accepts("t1")
    assert site.code(join("u1")) == "name_waits"
    assert site.code(s.AcceptReceived(REQUEST, GPU, "ada", reject=True)) == ""
    assert site.code(s.AcceptReceived(REQUEST, GPU, "ada")) == "nothing_waits"
    assert site.code(join("u1")) == "waits"
    assert site.code(s.AcceptReceived(REQUEST, GPU, "ada")) == ""
    assert site.accepts("u1")
    assert not site.accepts("a1")


def test_with_approval_every_new_node_waits() -> None:
    site = Site()
    site.give(secret(approve=True))
    assert site.code(join("a1")) == "waits"
    assert not site.accepts("a1")
    site.code(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert site.accepts("a1")


def test_a_revoked_node_is_cut_and_stays_so_until_it_is_accepted() -> None:
    site = Site()
    site.give(secret(uses=2))
    site.code(join("a1"))
    assert site.code(s.RevokeNodeReceived(REQUEST, GPU, "ada")) == ""
    assert not site.accepts("a1")
    assert site.code(s.RevokeNodeReceived(REQUEST, GPU, "ada")) == "no_certificate"
    assert site.code(join("b1")) == "waits"


def test_a_node_speaks_for_itself_only() -> None:
    site = Site()
    site.give(secret(uses=2))
    site.code(join("a1"))
    site.code(join("b1", "gpu-02"))
    assert not site.accepts("a1", "gpu-02")
    assert not site.accepts("", GPU)
    assert site.accepts("", "gpu-03")  # a cluster with agent tokens
    assert not site.accepts("x1", "gpu-03")


def test_a_renewed_certificate_ends_the_one_before_when_it_is_shown() -> None:
    site = Site()
    site.give(secret())
    site.code(join("a1"))
    assert site.code(renew("a1", "b1")) == ""
    assert site.code(renew("a1", "b2")) == ""  # the answer was lost: the same key again
    assert site.accepts("a1")
    assert not site.accepts("b1")
    hello(site, "b2")
    assert site.accepts("b2")
    assert not site.accepts("a1")
    assert site.code(renew("b2", "c1")) == ""


@pytest.mark.parametrize("used", [False, True])
def test_two_keys_after_one_certificate_are_both_refused(used: bool) -> None:
    site = Site()
    site.give(secret())
    site.code(join("a1"))
    assert site.code(renew("a1", "t1")) == ""
    if used:
        hello(site, "t1")
    assert site.code(renew("a1", "b1")) == "renewed_twice"
    for fingerprint in ("a1", "t1", "b1"):
        assert not site.accepts(fingerprint)


def test_a_join_whose_answer_was_lost_is_no_renewal() -> None:
    """The node has its certificate of before, and renews that with another key."""
    site = Site()
    site.give(secret(uses=2))
    site.code(join("a1"))
    hello(site, "a1")
    assert site.code(join("a2")) == ""  # never arrived
    assert site.code(renew("a1", "b1")) == ""
    hello(site, "b1")
    assert site.accepts("b1")
    for earlier in ("a1", "a2"):
        assert not site.accepts(earlier)
    # Nor is the next one, of a node that has renewed before.
    assert site.code(join("b2")) == ""
    assert site.code(renew("b1", "c1")) == ""


@pytest.mark.parametrize("thief", ["a2", "t1"])  # with the stolen key, or with one of its own
def test_a_join_after_a_renewal_does_not_hide_it(thief: str) -> None:
    site = Site()
    site.give(secret(uses=2))
    site.code(join("a1"))
    assert site.code(renew("a1", thief)) == ""
    assert site.code(join(f"{thief[0]}9")) == ""
    assert site.code(renew("a1", "b1")) == "renewed_twice"


def test_a_replay_knows_the_same() -> None:
    site = Site()
    site.give(secret(uses=3))
    for given in (join("a1"), join("t1"), renew("a1", "b1"), join("c1", "gpu-02")):
        site.give(given)
    hello(site, "b1")
    again = State()
    for fact, at in site.facts:
        apply(again, fact, at)
    assert again.enrolment == site.state.enrolment


def test_a_full_disk_lets_nobody_in_and_revokes() -> None:
    site = Site()
    site.give(secret())
    site.code(join("a1"))
    site.give(s.DiskSpaceChecked("the disk is full"))
    assert site.code(secret("s2")) == "disk_full"
    assert site.code(join("a2")) == "disk_full"
    assert site.code(s.RevokeNodeReceived(REQUEST, GPU, "ada")) == ""


@pytest.mark.parametrize(
    ("lifetime_s", "quiet_s", "late_s"),
    [
        (60.0, 41.0, 43.0),  # due at 40 s
        (90 * DAY_S, 60.5 * DAY_S, 61.5 * DAY_S),  # due after 60 days
        (365 * DAY_S, 334 * DAY_S, 336 * DAY_S),
    ],
)
def test_a_certificate_that_should_have_been_renewed_is_a_warning(
    lifetime_s: float, quiet_s: float, late_s: float
) -> None:
    state = State()
    made = NodeKey("a1", "a", 1000.0 + lifetime_s, begins=1000.0)
    state.enrolment.put(GPU, Joined(current=made))

    def said(age_s: float) -> str:
        return "".join(certificate_warnings(state.enrolment, GPU, 1000.0 + age_s))

    assert said(quiet_s) == ""
    assert "its certificate ends at" in said(late_s)
    assert "run `muster join`" in said(lifetime_s)
    # The next one has come, and the node shows it with its next connection.
    state.enrolment.put(GPU, Joined(current=made, next=NodeKey("a2", "b", 1e12, begins=1000.0)))
    assert said(lifetime_s) == ""
    assert certificate_warnings(state.enrolment, NodeName("gpu-02"), 0.0) == ()


def test_the_view_of_a_node_has_the_warning_about_its_certificate() -> None:
    state = State()
    state.nodes[GPU] = Node(GPU, "agent", "boot", "1", Inventory("10.0.0.1", "m"))
    state.enrolment.put(GPU, Joined(current=NodeKey("a1", "a", 1000.0)))
    (warning,) = node_seen(state, state.nodes[GPU], Instant(0.0, 900.0)).warnings
    assert warning.startswith("its certificate ends at 1970-01-01 00:16 UTC")


def test_a_stolen_certificate_is_a_warning_about_its_node_until_it_is_accepted_again() -> None:
    site = Site()
    site.give(secret(uses=3))
    site.code(join("a1"))
    site.state.nodes[GPU] = node = Node(GPU, "agent", "boot", "1", Inventory("10.0.0.1", "m"))
    site.code(renew("a1", "a2"))
    assert site.code(renew("a1", "b2")) == "renewed_twice"
    (warning,) = node_seen(site.state, node, Instant(0.0, 900.0)).warnings
    assert "was renewed twice, so a copy of its key is in use" in warning
    assert site.code(join("c1")) == "waits"
    site.code(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert node_seen(site.state, node, Instant(0.0, 900.0)).warnings == ()


def test_a_revoked_node_is_called_so_until_it_is_accepted_again() -> None:
    site = Site()
    site.give(secret(uses=3))
    site.code(join("a1"))
    site.state.nodes[GPU] = node = Node(GPU, "agent", "boot", "1", Inventory("10.0.0.1", "m"))
    node.link = LinkState.SUSPECT

    def said() -> tuple[str, str]:
        view = node_seen(site.state, node, Instant(0.0, 900.0))
        return view.state.code, view.state.text

    assert said()[0] == "unreachable"
    site.code(s.RevokeNodeReceived(REQUEST, GPU, "ada"))
    revoked = ("revoked", f"revoked; to take it back: muster join, then muster node accept {GPU}")
    assert said() == revoked
    # A thief who asks for the name, and is rejected, changes nothing.
    assert site.code(join("b1")) == "waits"
    waits = "a machine at 10.0.0.1 waits to be gpu-01: muster node accept gpu-01 (or --reject)"
    assert said() == (revoked[0], f"{revoked[1]}; {waits}")
    site.code(s.AcceptReceived(REQUEST, GPU, "ada", reject=True))
    assert said() == revoked
    assert not site.accepts("")
    assert site.code(join("c1")) == "waits"
    site.code(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert said()[0] == "unreachable"


def test_a_secret_for_one_node_is_good_for_one_name() -> None:
    site = Site()
    site.give(secret())
    assert site.code(join("a1")) == ""
    # `muster join` makes another key, for which the secret is used up.
    assert site.code(join("a2", "gpu-02")) == "key_retired"
    assert site.code(join("b1", "gpu-02")) == "bad_join_secret"
    assert site.code(join("a2")) == ""


@pytest.mark.parametrize(("lifetime_s", "pause_s"), [(90 * DAY_S, 60.0), (100.0, 10.0)])
def test_a_node_renews_its_certificate_so_often(lifetime_s: float, pause_s: float) -> None:
    site = Site()
    site.give(secret())

    def renews(old: str, cert: str) -> str:
        made = signed(cert, site.now, lifetime_s)
        return site.code(s.RenewReceived(REQUEST, GPU, old, made))

    made = signed("a1", site.now, lifetime_s)
    site.give(s.JoinReceived(REQUEST, "s1", "d" * 64, GPU, made, "10.0.0.1"))
    assert renews("a1", "b1") == ""
    recorded = len(site.facts)
    assert renews("a1", "b2") == "signed_too_often"
    assert len(site.facts) == recorded
    site.now += pause_s
    assert renews("a1", "b2") == ""
    hello(site, "b2")
    assert renews("b2", "c1") == "signed_too_often"
    # A clock that was set back locks nobody out.
    site.now -= DAY_S
    assert renews("b2", "c1") == ""


def test_a_copy_of_a_key_is_noticed_however_soon() -> None:
    site = Site()
    site.give(secret())
    site.give(join("a1"))
    assert site.code(s.RenewReceived(REQUEST, GPU, "a1", signed("b1", site.now))) == ""
    assert site.code(renew("a1", "c1")) == "renewed_twice"


def test_a_copied_certificate_that_is_renewed_ends_none_while_the_node_is_connected() -> None:
    site = Site()
    site.give(secret())
    site.give(join("a1"))

    def says_hello(session: int, agent: str, certificate: str) -> None:
        inventory = Inventory("10.0.0.1", f"machine-{agent}", cpus=4)
        hello = Hello(GPU, agent, f"boot-{agent}", "0.1.0", NodeObservations(inventory))
        peer = "10.0.0.1"
        site.give(s.HelloReceived(SessionId(session), hello, peer, certificate=certificate))

    says_hello(1, "own", "a1")
    assert site.code(renew("a1", "t1")) == ""
    says_hello(2, "thief", "t1")
    assert site.state.nodes[GPU].session == SessionId(1)
    assert site.accepts("a1")
    assert site.code(renew("a1", "b1")) == "renewed_twice"


def test_a_known_name_with_its_key_from_another_machine_waits() -> None:
    site = Site()
    site.give(secret(uses=4))
    assert site.code(join("a1", machine="m1")) == ""
    for machine in ("m2", ""):
        assert site.code(join("a2", machine=machine)) == "waits"
        assert not site.accepts("a2")
        site.give(s.AcceptReceived(REQUEST, GPU, "ada", reject=True))
    assert site.code(join("a3", machine="m1")) == ""
    # A renewed key is of the same machine.
    hello(site, "a3")
    site.give(renew("a3", "b1"))
    hello(site, "b1")
    assert site.code(join("b2", machine="m2")) == "waits"


def test_a_node_whose_machine_no_record_has_is_compared_with_what_it_says_of_itself() -> None:
    site = Site()
    site.give(secret(uses=4))
    assert site.code(join("a1")) == ""
    site.state.nodes[GPU] = Node(GPU, "agent", "boot", "1", Inventory("10.0.0.1", "m1"))
    assert site.code(join("a2", machine="m2")) == "waits"
    assert site.code(join("a3", machine="m1")) == ""


@pytest.mark.parametrize("secret_name", ["s1", "s2"])
def test_a_key_that_belongs_to_a_node_lets_nobody_in_as_another(secret_name: str) -> None:
    site = Site()
    site.give(secret(uses=4))
    site.give(secret("s2"))
    site.code(join("a1"))
    before = len(site.facts)
    result = site.give(join("a2", "gpu-02", secret_name))
    assert isinstance(result, a.Declined)
    assert (result.code, len(site.facts)) == ("key_retired", before)
    assert "with this key: it is gpu-01's" in result.text
    # One that waits belongs to its node, too, and so does one that was renewed.
    assert site.code(join("w1")) == "waits"
    assert site.code(join("w2", "gpu-02")) == "key_retired"
    site.give(renew("a1", "b1"))
    hello(site, "b1")
    assert site.code(join("a2", "gpu-02")) == "key_retired"
    assert site.code(join("b2", "gpu-02")) == "key_retired"


def test_a_key_that_was_revoked_or_replaced_is_good_for_no_name() -> None:
    site = Site()
    site.give(secret(uses=9))
    site.code(join("a1"))
    site.give(renew("a1", "b1"))
    site.give(s.RevokeNodeReceived(REQUEST, GPU, "ada"))
    for cert in ("a2", "b2"):
        for node in ("gpu-01", "gpu-02"):
            result = site.give(join(cert, node))
            assert isinstance(result, a.Declined)
            assert result.code == "key_retired"
            assert "it was gpu-01's, and is not accepted any more" in result.text
    # The machine's new key is accepted, and the one of the machine that it replaces retired.
    assert site.code(join("c1")) == "waits"
    site.give(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert site.code(join("d1")) == "waits"
    site.give(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert site.code(join("c2", "gpu-03")) == "key_retired"
    again = State()
    for fact, at in site.facts:
        apply(again, fact, at)
    assert again.enrolment == site.state.enrolment


def test_the_keys_that_are_retired_are_bounded() -> None:
    known = Enrolment()
    for number in range(10_050):
        known.put(GPU, Joined(current=NodeKey(f"f{number}", f"k{number}", 1e9)))
        known.retire_keys(GPU)
    assert len(known.retired_keys) == 10_000
    assert "k10049" in known.retired_keys
    assert "k49" not in known.retired_keys


def test_a_join_with_the_key_before_a_renewal_that_was_not_shown_waits() -> None:
    """Somebody renewed a copy, or the answer was lost. An operator knows which."""
    site = Site()
    site.give(secret(uses=4))
    site.code(join("a1"))
    site.give(renew("a1", "t1"))
    assert site.code(join("a2")) == "waits"


def test_a_copy_that_is_renewed_again_and_again_leaves_the_nodes_own_known() -> None:
    """The node was off meanwhile. Its certificate is known while it is valid, so that its own
    renewal ends the copies."""
    site = Site()
    site.give(secret())
    lifetime_s = 90 * DAY_S

    def renews(old: str, cert: str) -> str:
        return site.code(s.RenewReceived(REQUEST, GPU, old, signed(cert, site.now, lifetime_s)))

    own = signed("a1", site.now, lifetime_s)
    site.give(s.JoinReceived(REQUEST, "s1", "d" * 64, GPU, own, "10.0.0.1"))
    last, number = "a1", 0
    while site.now + 600.0 < own.expires:
        cert = f"{chr(ord('b') + number)}1"
        if renews(last, cert) == "":
            hello(site, cert)
            last, number = cert, number + 1
        site.now += 600.0
    assert number == 2
    assert renews("a1", "z1") == "renewed_twice"
    assert not site.accepts(last)


def said_of(site: Site, node: str = GPU) -> tuple[str, str]:
    view = joined_seen(site.state, NodeName(node), Instant(0.0, site.now))
    assert (view.link, view.name) == ("offline", node)
    return view.state.code, view.state.text


def says_hello(site: Site, session: int, certificate: str, **about: Any) -> None:
    given = Hello(GPU, "agent", "boot", "0.1.0", NodeObservations(Inventory("10.0.0.1", "m")))
    given = msgspec.structs.replace(given, **about)
    site.give(s.HelloReceived(SessionId(session), given, "10.0.0.1", certificate=certificate))


def test_a_node_that_joined_and_never_connected_is_listed_and_says_what_to_do() -> None:
    site = Site()
    site.give(secret())
    site.code(join("a1"))
    assert listed_names(site.state) == [GPU]
    code, text = said_of(site)
    assert code == "joined"
    assert text.startswith("joined at 1970-01-01 00:16 UTC from 10.0.0.1, not connected since; ")
    assert "muster doctor" in text
    assert "muster node remove gpu-01" in text
    # Its agent dials, and is refused.
    says_hello(site, 1, "a1", protocol_min=99, protocol_max=99)
    assert "not connected since; refused: this coordinator" in said_of(site)[1]
    says_hello(site, 2, "a1", node=NodeName("gpu-09"))
    assert (
        "refused: this agent calls itself gpu-09, but its certificate is gpu-01's"
        in (said_of(site)[1])
    )
    recorded = len(site.facts)
    says_hello(site, 3, "a1", node=NodeName("gpu-09"))
    assert len(site.facts) == recorded, "nothing new"
    says_hello(site, 4, "a1")
    assert listed_names(site.state) == [GPU]
    assert site.state.nodes[GPU].link is LinkState.CONNECTED


def test_a_node_that_never_connected_is_listed_while_it_waits_and_when_it_is_revoked() -> None:
    site = Site()
    site.give(secret(approve=True, uses=2))
    site.code(join("a1"))
    code, text = said_of(site)
    assert code == "waits"
    assert text == (
        "joined at 1970-01-01 00:16 UTC, not accepted yet; a machine at 10.0.0.1 waits to be "
        "gpu-01: muster node accept gpu-01 (or --reject)"
    )
    site.give(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert said_of(site)[0] == "joined"
    site.give(s.RevokeNodeReceived(REQUEST, GPU, "ada"))
    assert said_of(site)[0] == "revoked"


def test_another_machine_that_waits_for_the_name_of_a_node_is_a_warning() -> None:
    site = Site()
    site.give(secret(uses=2))
    site.code(join("a1"))
    says_hello(site, 1, "a1")
    site.code(join("b1"))
    (warning,) = node_seen(site.state, site.state.nodes[GPU], Instant(0.0, 900.0)).warnings
    assert "a machine at 10.0.0.1 waits to be gpu-01: muster node accept gpu-01" in warning


def test_a_node_that_never_connected_can_be_forgotten() -> None:
    site = Site()
    site.give(secret(uses=2))
    site.code(join("a1"))
    asked = s.RemoveReceived(REQUEST, GPU, "ada")
    assert isinstance(site.give(asked), a.NodeServiceChanged)
    assert listed_names(site.state) == []
    result = site.give(asked)
    assert isinstance(result, a.Declined)
    assert result.code == a.UNKNOWN_NODE
    again = State()
    for fact, at in site.facts:
        apply(again, fact, at)
    assert again.enrolment == site.state.enrolment


def test_the_nodes_that_never_connect_are_bounded() -> None:
    site = Site(Limits(new_nodes_per_hour=3))
    site.give(secret(uses=9))
    for number in range(3):
        assert site.code(join(f"{number}1", f"n{number}")) == ""
    assert site.code(join("a1")) == "too_many_joined"
    assert site.code(join("02", "n0")) == "", "a join that is repeated"
    site.give(s.RemoveReceived(REQUEST, NodeName("n1"), "ada"))
    assert site.code(join("a1")) == ""


def test_nodes_that_wait_are_counted() -> None:
    site = Site()
    site.give(secret(uses=9))
    site.code(join("a1"))
    for _ in range(2):
        assert site.code(join("b1")) == "waits"
        assert site.state.enrolment.waiting == 1
    site.give(s.AcceptReceived(REQUEST, GPU, "ada", reject=True))
    assert site.state.enrolment.waiting == 0
    assert site.code(join("c1")) == "waits"
    site.give(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert site.state.enrolment.waiting == 0
