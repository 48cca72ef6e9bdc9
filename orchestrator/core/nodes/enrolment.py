"""Nodes that join with a secret, and the certificates by which they are known from then on.

Only certificates that are on record are accepted. A name that is known belongs to the machine whose
key joined first; any other machine waits for an operator.
"""

from __future__ import annotations

import hmac
from fnmatch import fnmatchcase
from typing import Final, assert_never

from msgspec.structs import replace

from muster.http.enrolment import KEY_RETIRED
from muster.protocol.certificate_ends import missed_renewal_warning
from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import Refused
from muster.spec.units import duration_text
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import enrolment as ef
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.decision import Decision
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.people import Enrolment, Joined, JoinSecret, NodeKey
from orchestrator.core.model.state import Node, State
from orchestrator.core.nodes.admission import refuse_name

SECRETS_MAX: Final = 10_000
RENEWED_EVERY_S: Final = 60.0
"""The pause before a renewal is repeated; a tenth of the certificate's lifetime if that is less."""
_WHY_CHARS_MAX: Final = 500
_UNKNOWN: Final = "0" * 64

OfEnrolmentReceived = (
    s.JoinSecretReceived
    | s.JoinSecretRevokeReceived
    | s.JoinReceived
    | s.AcceptReceived
    | s.RevokeNodeReceived
    | s.RenewReceived
)
_Found = ef.OfEnrolment | a.Declined


def decide_enrolment(
    state: State, asked: OfEnrolmentReceived, now: float, limits: Limits
) -> Decision:
    """Decide on a request about join secrets or certificates. `now` is UTC seconds."""
    found: _Found | None
    match asked:
        case s.JoinSecretReceived():
            found = _create(state, asked, now)
        case s.JoinSecretRevokeReceived(_, name, by):
            known = name in state.enrolment.secrets
            found = ef.JoinSecretRevoked(name, by) if known else unknown_secret(name)
        case s.JoinReceived():
            found = _join(state, asked, now, limits)
        case s.AcceptReceived():
            found = _accept(state.enrolment, asked)
        case s.RevokeNodeReceived(_, node, by):
            found = _revoke(state.enrolment, node, by)
        case s.RenewReceived():
            found = _renew(state.enrolment, asked, now)
        case _:
            assert_never(asked)
    spares = isinstance(found, ef.JoinSecretRevoked | ef.NodeRejected | ef.NodeRevoked)
    if state.disk_full and not spares and not isinstance(found, a.Declined):
        found = a.no_room(state.disk_full, "no node joins, and no join secret is created")
    if isinstance(found, a.Declined):
        return Decision([], [a.Answer(asked.request, found)])
    return Decision([found], [a.Answer(asked.request, _answer(found))])


def _answer(fact: ef.OfEnrolment) -> a.Result:
    if isinstance(fact, ef.NodeRevoked) and fact.why:
        return a.Declined(RENEWED_TWICE, fact.why, f"join again: muster node accept {fact.node}")
    return a.PeopleChanged(anything=True, waits=isinstance(fact, ef.NodeJoined) and fact.waits)


RENEWED_TWICE: Final = "renewed_twice"
"""Code of a Declined: two keys asked for the certificate after the same one."""


def find_secret(
    enrolment: Enrolment, name: str, sha256: str, key_sha256: str, now: float
) -> JoinSecret | a.Declined:
    """Return the join secret that a node shows, or why the node cannot join with it."""
    secret = known_secret(enrolment, name, sha256)
    if isinstance(secret, a.Declined):
        return secret
    why = secret.why_not(key_sha256, now)
    return _bad_secret(f"is not accepted: {why}") if why else secret


def known_secret(enrolment: Enrolment, name: str, sha256: str) -> JoinSecret | a.Declined:
    """Return the join secret of this id and digest, or that there is none."""
    secret = enrolment.secrets.get(name)
    # Compare even without such an id, so that timing does not reveal ids.
    same = hmac.compare_digest(sha256, _UNKNOWN if secret is None else secret.sha256)
    if secret is None or not same:
        return _bad_secret("is wrong or revoked")
    return secret


def refuse_certificate(state: State, name: str, fingerprint: str) -> Refused | None:
    """Return why an agent that shows this certificate ("" for none) may not speak for a node."""
    enrolment = state.enrolment
    if not fingerprint:
        if NodeName(name) not in enrolment.nodes:
            return None
        return Refused(
            "needs_certificate",
            f"{name} has joined with a certificate of its own, and a join token does not stand for "
            "it: run `muster join` on this machine",
        )
    found = enrolment.key(fingerprint)
    if found is not None and found[0] == name:
        return None
    whose = "no node's" if found is None else f"{found[0]}'s"
    return Refused(
        "wrong_name",
        f"this agent calls itself {name}, but its certificate is {whose}: set `node` in its "
        "configuration, or run `muster join` for the new name",
    )


def refuse_pool(state: State, pool: str, fingerprint: str) -> Refused | None:
    """Return why a node with this certificate may not be in a pool, or None: a join secret for one
    pool gives no jobs of another.
    """
    found = state.enrolment.key(fingerprint)
    if found is None or found[1].pool in {"", pool}:
        return None
    own = found[1].pool
    return Refused(
        "wrong_pool",
        f"{found[0]} joined with a secret for pool {own}, and its agent says pool {pool}: set "
        f"`pool: {own}` in its configuration and restart it, or join with a secret for {pool} "
        f"(muster token create --join --pool {pool})",
    )


def shown(state: State, name: NodeName, fingerprint: str) -> list[ef.NodeKeyTaken]:
    """Return the fact that a node shows its renewed certificate for the first time, if it does."""
    joined = state.enrolment.nodes.get(name)
    key = joined and joined.next
    return [ef.NodeKeyTaken(name)] if key and key.fingerprint == fingerprint else []


def certificate_warnings(enrolment: Enrolment, name: NodeName, now: float) -> tuple[str, ...]:
    """Return warnings: the node's certificate ends soon, although the agent renews it in time, or
    the coordinator itself revoked it, or another machine waits for the name. `now` is UTC seconds.
    """
    joined = enrolment.nodes.get(name)
    if joined is None:
        return ()
    found = [joined.why or _end_text(joined.newest, now)]
    if joined.waiting is not None:
        ask = f"muster node accept {name} (or --reject)"
        found.append(f"a machine at {joined.peer} waits to be {name}: {ask}")
    return tuple(filter(None, found))


def end_warnings(enrolment: Enrolment, now: float) -> list[str]:
    """Return a sentence for each node whose certificate ends soon. `now` is UTC seconds."""
    found = ((name, _end_text(joined.newest, now)) for name, joined in enrolment.nodes.items())
    return [f"{name}: {text}" for name, text in found if text]


def _end_text(key: NodeKey | None, now: float) -> str:
    said = key and missed_renewal_warning("its certificate", key.begins, key.expires, now)
    if key is None or not said:
        return ""
    if key.expires <= now:
        return f"{said}: run `muster join` on it again"
    return f"{said}: the agent's log has `certificate_not_renewed` and the reason"


def never_connected(state: State) -> list[NodeName]:
    """Return the nodes that have joined, or wait for an operator, and never said hello."""
    return [name for name in state.enrolment.nodes if name not in state.nodes]


def joined_refused(state: State, fingerprint: str, why: str) -> list[ef.JoinedRefused]:
    """Return the fact that an agent which shows this certificate was refused, if it is news, and
    its node is not connected.
    """
    found = state.enrolment.key(fingerprint)
    if found is None or _is_connected(state, found[0]):
        return []
    name, text = found[0], why[:_WHY_CHARS_MAX]
    same = state.enrolment.nodes[name].refused == text
    return [] if same else [ef.JoinedRefused(name, text)]


def refusal_of(state: State, fingerprint: str) -> str:
    """Return why the node with this certificate was refused when it last said hello, or ""."""
    found = state.enrolment.key(fingerprint)
    if found is None or _is_connected(state, found[0]):
        return ""
    return state.enrolment.nodes[found[0]].refused


def refused_warning(enrolment: Enrolment, node: Node) -> str:
    """Return why the agent of a node that has connected before is refused now, or ""."""
    joined = enrolment.nodes.get(node.name)
    if joined is None or not joined.refused or node.link is LinkState.CONNECTED:
        return ""
    return f"its agent is refused: {joined.refused}"


def _is_connected(state: State, name: NodeName) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.link is LinkState.CONNECTED


def copied_key_text(name: NodeName) -> str:
    """Return what an operator does about a second agent that shows a certificate of a node."""
    return (
        f"that agent has the key of {name}: if it is not on this node, run `muster node revoke "
        f"{name}`, then `muster join` on the node again"
    )


def apply_enrolment(enrolment: Enrolment, fact: ef.OfEnrolment, at: float) -> None:
    match fact:
        case ef.JoinSecretCreated(name, sha256, uses, expires, names, pool, approve, label, by):
            enrolment.secrets[name] = JoinSecret(
                name, sha256, uses, expires, names, pool, approve, label, by, at
            )
            for old in [each for each in enrolment.secrets.values() if each.expires <= at]:
                del enrolment.secrets[old.id]
        case ef.JoinSecretRevoked(name):
            enrolment.secrets.pop(name, None)
        case ef.NodeJoined(node, key, secret, peer, waits):
            known = enrolment.secrets.get(secret)
            if known is not None and key.key_sha256 not in known.keys:
                enrolment.secrets[secret] = replace(known, keys=(*known.keys, key.key_sha256))
            enrolment.put(node, _after_join(enrolment.nodes.get(node), key, peer, at, waits=waits))
        case ef.NodeAccepted(node):
            accepted = enrolment.nodes[node]
            enrolment.retire_keys(node)
            if accepted.waiting is not None:
                enrolment.retired_keys.pop(accepted.waiting.key_sha256, None)
            enrolment.put(node, Joined(current=accepted.waiting, since=at, origin=accepted.peer))
        case ef.NodeRejected(node):
            left = replace(enrolment.nodes[node], waiting=None, peer="")
            enrolment.put(node, left if left.accepted or left.revoked else None)
        case ef.NodeRevoked(node, _, why):
            enrolment.retire_keys(node)
            ended = replace(enrolment.nodes[node], current=None, next=None, previous=())
            enrolment.put(node, replace(ended, revoked=True, why=why))
        case ef.JoinedRefused(node, why):
            enrolment.put(node, replace(enrolment.nodes[node], refused=why))
        case ef.NodeKeyRenewed(node, key):
            enrolment.put(node, replace(enrolment.nodes[node], next=key))
        case ef.NodeKeyTaken(node):
            joined = enrolment.nodes[node]
            earlier = (*joined.previous, joined.current)
            valid = tuple(key for key in earlier if key is not None and key.expires > at)
            enrolment.put(node, replace(joined, current=joined.next, next=None, previous=valid))
        case _:
            assert_never(fact)


def _create(state: State, asked: s.JoinSecretReceived, now: float) -> _Found:
    known = state.enrolment.secrets
    if asked.secret in known:
        return a.Declined("secret_exists", f"there is a secret {asked.secret}", "try again")
    if sum(1 for each in known.values() if each.expires > now) >= SECRETS_MAX:
        hint = "revoke some: muster token list --join"
        return a.Declined("too_many_secrets", f"there are {SECRETS_MAX} join secrets", hint)
    return ef.JoinSecretCreated(
        asked.secret,
        asked.sha256,
        asked.uses,
        asked.expires,
        asked.names,
        asked.pool,
        asked.approve,
        asked.label,
        asked.by,
    )


def _join(state: State, asked: s.JoinReceived, now: float, limits: Limits) -> _Found:
    secret = find_secret(state.enrolment, asked.secret, asked.sha256, asked.key.key_sha256, now)
    if isinstance(secret, a.Declined):
        return secret
    bad = refuse_name(asked.node, frozenset() if asked.local else limits.own_names)
    if bad is not None:
        return a.Declined(bad.code, bad.text)
    if not fnmatchcase(asked.node, secret.names):
        return a.Declined(
            "name_not_allowed",
            f"this join secret is for nodes named {secret.names}, and not for {asked.node}",
            "ask an admin for another: muster token create --join --names PATTERN",
        )
    joined = state.enrolment.nodes.get(asked.node)
    known = joined is not None or asked.node in state.nodes
    if not known and len(state.enrolment.nodes) >= limits.nodes_max:
        return a.Declined("too_many_nodes", f"{limits.nodes_max} nodes are known, the limit")
    if not known and len(never_connected(state)) >= limits.new_nodes_per_hour:
        return a.Declined(
            "too_many_joined",
            f"{limits.new_nodes_per_hour} nodes have joined and never connected, the limit",
            "find out why their agents do not connect, or forget them: muster node remove",
        )
    retired = _refuse_key(state.enrolment, asked.key.key_sha256, asked.node)
    if retired is not None:
        return retired
    same = _is_same_machine(state, asked)
    other = None if joined is None else joined.waiting
    if joined and other and not same and other.key_sha256 != asked.key.key_sha256:
        return a.Declined(
            "name_waits",
            f"another machine, at {joined.peer}, waits to be {asked.node}",
            f"an operator decides about it first: muster node accept {asked.node} (or --reject)",
        )
    waits = not same and (known or secret.approve or asked.approve)
    # A renewal that the node has not shown yet stays on record as one.
    earlier = joined.next if joined is not None and same else None
    generation = 0 if earlier is None else earlier.generation
    of_node = replace(asked.key, pool=secret.pool, generation=generation)
    return ef.NodeJoined(asked.node, of_node, secret.id, asked.peer, waits)


def _accept(enrolment: Enrolment, asked: s.AcceptReceived) -> _Found:
    joined = enrolment.nodes.get(asked.node)
    if joined is None or joined.waiting is None:
        return a.Declined(
            "nothing_waits",
            f"no machine waits to be {asked.node}",
            "list those that wait with: muster token list --join",
        )
    if asked.reject:
        return ef.NodeRejected(asked.node, asked.by)
    return ef.NodeAccepted(asked.node, asked.by)


def _revoke(enrolment: Enrolment, node: NodeName, by: str) -> _Found:
    joined = enrolment.nodes.get(node)
    if joined is None or joined.current is None:
        return a.Declined(
            "no_certificate",
            f"no certificate of {node} is accepted",
            "agents with a join token lose it by: muster token revoke",
        )
    return ef.NodeRevoked(node, by)


def _renew(enrolment: Enrolment, asked: s.RenewReceived, now: float) -> _Found:
    """Give a node its next certificate. If two keys ask for the one after the same certificate, one
    of them is a thief's, and nobody knows which.
    """
    joined = enrolment.nodes.get(asked.node)
    current = None if joined is None else joined.current
    if joined is None or current is None:
        return a.Declined("no_certificate", f"no certificate of {asked.node} is accepted")
    twice = any(asked.fingerprint == each.fingerprint for each in joined.previous) or (
        asked.fingerprint == current.fingerprint
        and joined.next is not None
        and joined.next.renewed
        and joined.next.key_sha256 != asked.key.key_sha256
    )
    if twice:
        return ef.NodeRevoked(
            asked.node,
            why=f"the certificate of {asked.node} was renewed twice, so a copy of its key is in "
            "use; neither is accepted any more",
        )
    if asked.fingerprint != current.fingerprint:
        return a.Declined("not_current", "only the current certificate of a node can be renewed")
    wait_s = _renewal_wait_s(joined.next or current, again=joined.next is not None, now=now)
    if wait_s:
        return a.Declined(
            a.SIGNED_TOO_OFTEN,
            f"the certificate of {asked.node} was renewed already, and can be renewed again in "
            f"{duration_text(wait_s)}",
            "the agent tries again by itself",
        )
    following = replace(
        asked.key,
        generation=current.generation + 1,
        machine=current.machine,
        pool=current.pool,
    )
    return ef.NodeKeyRenewed(asked.node, following)


def _renewal_wait_s(newest: NodeKey, *, again: bool, now: float) -> float:
    """Return how long a node has to wait with its next renewal. `again`: it has not shown the last
    one, whose answer may have been lost.

    A certificate that it has shown must have reached half of its age. So a thief who renews a copy
    again and again makes no long row of certificates: the node's own is known while it is valid.
    """
    lifetime_s, age_s = newest.expires - newest.begins, now - newest.begins
    if not newest.generation or not newest.begins or age_s < 0:
        return 0.0
    pause_s: float = min(RENEWED_EVERY_S, lifetime_s / 10) if again else lifetime_s / 2
    return max(0.0, pause_s - age_s)


def _after_join(
    before: Joined | None, key: NodeKey, peer: str, at: float, *, waits: bool
) -> Joined:
    if waits:
        return replace(before or Joined(since=at), waiting=key, peer=peer)
    if before is None:
        return Joined(current=key, since=at, origin=peer)
    # The certificate that the machine has is good until it shows this one.
    return replace(before, next=key, origin=peer, refused="")


def _is_same_machine(state: State, asked: s.JoinReceived) -> bool:
    """True if the machine that has this name repeats its join: it has the newest key of the name,
    and its machine id.
    """
    joined, node = state.enrolment.nodes.get(asked.node), state.nodes.get(asked.node)
    newest = None if joined is None else joined.newest
    if newest is None or newest.key_sha256 != asked.key.key_sha256:
        return False
    # Journals of earlier releases have no machine with the key, but the node has said its own.
    machine = newest.machine or ("" if node is None else node.inventory.machine_id)
    return machine == asked.key.machine


def _refuse_key(enrolment: Enrolment, key_sha256: str, node: NodeName) -> a.Declined | None:
    """Return why no machine joins as `node` with this key, or None."""
    holder = enrolment.retired_keys.get(key_sha256)
    why = f"it was {holder}'s, and is not accepted any more" if holder else ""
    for name, joined in enrolment.nodes.items():
        waiting = () if joined.waiting is None else (joined.waiting,)
        if name != node and any(k.key_sha256 == key_sha256 for k in (*joined.accepted, *waiting)):
            why = f"it is {name}'s"
    if not why:
        return None
    return a.Declined(KEY_RETIRED, f"no machine can join as {node} with this key: {why}")


def _bad_secret(why: str) -> a.Declined:
    return a.Declined(
        BAD_SECRET,
        f"the join secret {why}",
        "ask an admin for a new one: muster token create --join",
    )


BAD_SECRET: Final = "bad_join_secret"  # noqa: S105 - a code
"""Code of a Declined: the join secret is not accepted."""


def unknown_secret(name: str) -> a.Declined:
    """The answer to a request for a join secret that does not exist."""
    return a.Declined(
        a.UNKNOWN_TOKEN,
        f"there is no join secret {name}",
        "list the secrets with: muster token list --join",
    )
