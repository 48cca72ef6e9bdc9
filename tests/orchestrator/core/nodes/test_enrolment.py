"""Joining with a secret: who gets a certificate, for which name, and how long it is accepted."""

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
from orchestrator.core.model.people import Joined, NodeKey
from orchestrator.core.model.state import Node, State
from orchestrator.core.nodes.enrolment import certificate_warnings, refuse_certificate, shown
from orchestrator.core.views.display import node_seen

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


def key(text: str, generation: int = 0) -> NodeKey:
    """A certificate of the key `k` whose fingerprint is `kN` for any suffix N."""
    return NodeKey(text, text[0], 1e9, generation)


def signed(cert: str, begins: float, lifetime_s: float = 90 * DAY_S) -> NodeKey:
    return NodeKey(cert, cert[0], begins + lifetime_s, begins=begins)


def join(cert: str, node: str = GPU, name: str = "s1", sha256: str = "d" * 64) -> s.Input:
    return s.JoinReceived(REQUEST, name, sha256, NodeName(node), key(cert), "10.0.0.1")


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
    assert site.code(join("a2")) == ""
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
    assert site.code(join("a2")) == "waits"


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
        (90 * DAY_S, 62 * DAY_S, 64 * DAY_S),  # due after 60 days
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
    assert site.code(join("a3")) == "waits"
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
    assert said() == revoked
    site.code(s.AcceptReceived(REQUEST, GPU, "ada", reject=True))
    assert said() == revoked
    assert not site.accepts("")
    assert site.code(join("a2")) == "waits"
    site.code(s.AcceptReceived(REQUEST, GPU, "ada"))
    assert said()[0] == "unreachable"


def test_a_secret_for_one_node_is_good_for_one_name() -> None:
    site = Site()
    site.give(secret())
    assert site.code(join("a1")) == ""
    assert site.code(join("a2", "gpu-02")) == "bad_join_secret"
    assert site.code(join("a2")) == ""

    site.give(s.RevokeNodeReceived(REQUEST, GPU, "ada"))
    assert site.code(join("a3", "gpu-02")) == ""


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
