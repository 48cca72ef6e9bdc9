"""Communicators in the NCCL logs of one node's processes.

Channels between ranks of one host, and the network of a communicator inside one host, do not show
the traffic between hosts. The ranks of this host are known because each process's file names its
own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

SOCKET: Final = "Socket"
COMMS_MAX: Final = 64
"""Limit per process. Further communicators count as one between hosts."""
_PAIRS_MAX: Final = 256
ENTRIES_MAX: Final = 4096
"""Limit of communicators, own ranks and pairs together, of all processes of a task."""
_THREAD: Final = re.compile(r":(\d{1,10}:\d{1,10}) \[")
_INIT: Final = re.compile(
    r"comm 0x[0-9a-fA-F]{1,16} rank (\d{1,7}) nranks (\d{1,7}) .{0,200}?"
    r"commId (0x[0-9a-fA-F]{1,16}).{0,80}?Init (START|COMPLETE)"
)
_RANKS: Final = re.compile(
    r" (\d{1,7})(?:\[[0-9a-fx]{1,16}\])? -> (\d{1,7})(?:\[[0-9a-fx]{1,16}\])? "
    r"(?:\[(send|receive)\])?"
)


class RankPair(msgspec.Struct, frozen=True, array_like=True):
    """Channels over the network between two ranks (-1: unknown): their number, and the numbers over
    sockets and without a copy in host memory.
    """

    one: int
    other: int
    count: int
    tcp: int = 0
    gdr: int = 0


class Communicator(msgspec.Struct, frozen=True, omit_defaults=True):
    """A communicator in one process's log. `id` is the same in all of its processes, "" if unknown;
    `own` are its ranks in this process. `word` is its network, logged as the `at`-th of the
    process.
    """

    id: str = ""
    size: int = 0
    own: tuple[int, ...] = ()
    word: str = ""
    at: int = 0
    pairs: tuple[RankPair, ...] = ()


class Room:
    """Number of communicators, own ranks and pairs that the logs of a task may still add."""

    def __init__(self, known: Iterable[Communicator] = ()) -> None:
        """`known` are those of an earlier agent process."""
        self._left = ENTRIES_MAX - sum(1 + len(one.own) + len(one.pairs) for one in known)

    def take(self) -> bool:
        """Take one, if there is one left."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True


@dataclass(slots=True)
class _Comm:
    size: int = 0
    own: set[int] = field(default_factory=set)
    word: str = ""
    at: int = 0
    pairs: dict[tuple[int, int], RankPair] = field(default_factory=dict)


class Comms:
    """Collects the communicators of one process from its lines in order."""

    def __init__(self, known: Iterable[Communicator], room: Room) -> None:
        self._room = room
        self._comms = {
            one.id: _Comm(
                one.size,
                set(one.own),
                one.word,
                one.at,
                {(pair.one, pair.other): pair for pair in one.pairs},
            )
            for one in known
        }
        self._words = max((one.at for one in self._comms.values()), default=0)
        # By thread: the communicator being created, and the network logged before its name.
        self._making: dict[str, str] = {}
        self._word: dict[str, str] = {}

    def init(self, line: str) -> None:
        """Process a line that names a communicator."""
        found = _INIT.search(line)
        if not found:
            return
        thread, name = _thread(line), found[3].lower()
        comm = self._comm(name)
        comm.size = int(found[2])
        self._add_own(comm, int(found[1]))
        if found[4] == "START":
            self._making[thread] = name
            if len(self._making) > COMMS_MAX:
                self._making.pop(next(iter(self._making)))
        else:
            # Channels opened later may come from any thread.
            self._making.pop(thread, None)
        if thread in self._word:
            self._set_network(comm, self._word.pop(thread))

    def word(self, line: str, network: str) -> None:
        """Process `Using network IB`: it belongs to the communicator that the thread creates or is
        about to create.
        """
        thread = _thread(line)
        name = self._making.get(thread)
        if name is not None and not self._comm(name).word:
            self._set_network(self._comm(name), network)
            return
        # Each has one network: this is the next one's.
        self._making.pop(thread, None)
        self._words += thread in self._word
        if len(self._word) >= COMMS_MAX:
            self._word.pop(next(iter(self._word)))
        self._word[thread] = network

    def channel(self, line: str, *, tcp: bool, gdr: bool) -> None:
        """Process a line about a channel over the network."""
        name = self._making.get(_thread(line), "")
        comm = self._comm(name)
        found = _RANKS.search(line)
        one, other = (-1, -1) if found is None else (int(found[1]), int(found[2]))
        if found is not None and found[3] is not None and not name:
            self._add_own(comm, one if found[3] == "send" else other)
        if (one, other) not in comm.pairs and not (
            len(comm.pairs) < _PAIRS_MAX and self._room.take()
        ):
            one = other = -1
        known = comm.pairs.get((one, other), RankPair(one, other, 0))
        comm.pairs[one, other] = RankPair(
            one, other, known.count + 1, known.tcp + tcp, known.gdr + gdr
        )

    def known(self) -> tuple[Communicator, ...]:
        """Return all communicators. A network without a name belongs to an unnamed one."""
        found = dict(self._comms)
        if self._word:
            bare = found.get("", _Comm())
            *_, word = self._word.values()
            at = self._words + len(self._word)
            found[""] = _Comm(bare.size, bare.own, word, at, bare.pairs)
        return tuple(
            Communicator(
                name,
                comm.size,
                tuple(sorted(comm.own)),
                comm.word,
                comm.at,
                tuple(comm.pairs.values()),
            )
            for name, comm in found.items()
        )

    def _comm(self, name: str) -> _Comm:
        if name not in self._comms and not (len(self._comms) < COMMS_MAX and self._room.take()):
            name = ""
        return self._comms.setdefault(name, _Comm())

    def _add_own(self, comm: _Comm, rank: int) -> None:
        if rank not in comm.own and len(comm.own) < _PAIRS_MAX and self._room.take():
            comm.own.add(rank)

    def _set_network(self, comm: _Comm, network: str) -> None:
        self._words += 1
        comm.word, comm.at = network, self._words


class Between(msgspec.Struct, frozen=True):
    """The traffic of one process between hosts: channels, the last network, and whether it uses
    sockets. `local`: the log names communicators, and all of them are inside this host.
    """

    rdma: int
    tcp: int
    gdr: int
    word: str
    sockets: bool
    local: bool


Here = Mapping[str, frozenset[int]]
"""The ranks of each communicator that are on this host."""


def between(own: tuple[Communicator, ...], here: Here) -> Between:
    """Return what is between hosts. `here` is of all processes of this host, including this one."""
    rdma = tcp = gdr = 0
    words: list[tuple[int, str, bool]] = []
    whole = [_whole(one, here) for one in own]
    for one, on_host in zip(own, whole, strict=True):
        over = 0
        for pair in one.pairs:
            if on_host or _on_host(pair, one, own, here):
                continue
            tcp += pair.tcp
            rdma += pair.count - pair.tcp
            gdr += pair.gdr
            over += pair.count - pair.tcp
        if one.word and not on_host:
            words.append((one.at, one.word, over > 0))
    last = max(words, default=(0, "", False))
    # A channel is better evidence than the earlier network line.
    return Between(
        rdma, tcp, gdr, last[1], bool(tcp) or (last[1] == SOCKET and not last[2]), all(whole)
    )


def ranks_here(every: Iterable[Communicator]) -> Here:
    """Return the ranks of each communicator that are on this host."""
    found: dict[str, set[int]] = {}
    for one in every:
        found.setdefault(one.id, set()).update(one.own)
    return {name: frozenset(ranks) for name, ranks in found.items()}


def _whole(one: Communicator, here: Here) -> bool:
    """True if all of it is on this host."""
    return bool(one.id) and 0 < one.size <= len(here[one.id])


def _on_host(
    pair: RankPair,
    one: Communicator,
    own: tuple[Communicator, ...],
    here: Here,
) -> bool:
    """True if both ends are known to be on this host."""
    ends = {pair.one, pair.other}
    if one.id:
        return ends <= here[one.id]
    named = [it for it in own if it.id and it.size > max(ends)]
    if named:
        # The line does not say which of them it belongs to.
        return all(ends <= here[it.id] for it in named)
    # This NCCL names none: the ranks belong to the only communicator.
    return one.at <= 1 and ends <= here[one.id]


def _thread(line: str) -> str:
    found = _THREAD.search(line)
    return found[1] if found else ""
