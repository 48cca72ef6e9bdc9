"""Vouching: the agents of a gang keep its tasks running while the coordinator is away.

A task with a lease may run while, within the last lease counted from the moment of asking, its
agent had an answer of the coordinator or a vouch of every other member of the gang. An agent
vouches for the members of an attempt while it holds its own task of it, running or ended, and has
taken no stop of that task. The coordinator counts on it: once an agent has confirmed a stop, no
other member outlives its lease without the coordinator.

A round asks every other member. It counts once all have answered, from its begin.
"""

from __future__ import annotations

import hmac
from typing import Final, Literal

import msgspec

from agent.core.effects import Question
from agent.core.inputs import VouchReceived
from agent.core.state import HeldTask, State
from agent.core.task import task_state
from muster.protocol.ids import TaskId
from muster.protocol.states import TaskState

DATAGRAM_BYTES_MAX: Final = 512
_MAC: Final = "sha256"
_MAC_BYTES: Final = 32
ROUNDS: Final = 12
"""In a lease, if all members answer."""
ASK_S: Final = 2.0
"""A member that has not answered is asked again after so long, or sooner if the lease is short."""


class Vouch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question, or the answer to it: the same with another `kind`. `nonce` names the round."""

    kind: Literal["ask", "yes"]
    cluster: str
    asker: TaskId
    asked: TaskId
    nonce: str


def asks(held: HeldTask) -> bool:
    """True if the agent asks the members of the task's gang: they matter until it has ended.

    An elastic gang may have no other member. Then a round is complete when it begins.
    """
    over = task_state(held) in (TaskState.EXITED, TaskState.CLEANED)
    leased = held.lease_s is not None
    named = held.terms is not None and bool(held.terms.members)
    return held.vouches and leased and named and not over and held.stop is None


def pause_s(held: HeldTask) -> float:
    """The wait for answers before the next round, in seconds."""
    assert held.lease_s is not None
    return min(ASK_S, held.lease_s / ROUNDS / 2)


def is_round_due(held: HeldTask, now: float) -> bool:
    """True if the next round is due: the last one is complete, or too old to be worth waiting."""
    assert held.lease_s is not None
    if held.asked_at is None:
        return True
    part = ROUNDS if not held.awaited else ROUNDS / 3
    return now - held.asked_at >= held.lease_s / part


def round_name(state: State, held: HeldTask) -> str:
    """The name of the current round, which no other round of any agent process has."""
    return f"{state.identity.instance}.{held.round}"


def questions(state: State, held: HeldTask) -> tuple[Question, ...]:
    """Datagrams to the members that have not answered in the current round."""
    assert held.arrange is not None
    return tuple(
        Question(
            member.address,
            member.port,
            _sealed(
                held.arrange.key,
                Vouch("ask", held.cluster, held.id, member.task, round_name(state, held)),
            ),
        )
        for member in map(held.peers.__getitem__, sorted(held.awaited))
    )


def answer(state: State, data: bytes) -> bytes | None:
    """Return the answer to a question, None if there is none to give: to anything else as well."""
    said = _read(data)
    if said is None or said.kind != "ask":
        return None
    held = state.tasks.get(said.asked)
    if held is None or not _genuine(held, said, data) or not _vouches(held, said.asker):
        return None
    assert held.arrange is not None
    return _sealed(held.arrange.key, msgspec.structs.replace(said, kind="yes"))


def vouched(state: State, data: bytes) -> VouchReceived | None:
    """Return the answer of a member to the current round, None for anything else."""
    said = _read(data)
    if said is None or said.kind != "yes":
        return None
    held = state.tasks.get(said.asker)
    if held is None or not _genuine(held, said, data) or said.nonce != round_name(state, held):
        return None
    return VouchReceived(held.id, said.asked, said.nonce) if said.asked in held.awaited else None


def _vouches(held: HeldTask, other: TaskId) -> bool:
    return held.stop is None and not held.forgotten and other in held.peers


def _genuine(held: HeldTask, said: Vouch, data: bytes) -> bool:
    """True if an agent of the same attempt has sent it."""
    if not held.vouches or said.cluster != held.cluster:
        return False
    assert held.arrange is not None
    right = hmac.digest(held.arrange.key.encode(), data[_MAC_BYTES:], _MAC)
    return hmac.compare_digest(right, data[:_MAC_BYTES])


def _read(data: bytes) -> Vouch | None:
    if not _MAC_BYTES < len(data) <= DATAGRAM_BYTES_MAX:
        return None
    try:
        return _decoder.decode(data[_MAC_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _sealed(key: str, said: Vouch) -> bytes:
    payload = msgspec.json.encode(said)
    return hmac.digest(key.encode(), payload, _MAC) + payload


_decoder: Final = msgspec.json.Decoder(Vouch)
