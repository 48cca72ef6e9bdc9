"""Communicators: whose last word counts, and what goes between hosts at all."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.fabric.nccl_log import NcclLog, merged
from muster.protocol.observations.traffic import NcclEvidence
from tests.fabric.nccl_lines import info

WORLD, PAIR = "0x9a7f3c1e", "0x11b2"


def init(rank: int, size: int, comm: str = WORLD, what: str = "START") -> str:
    return info(
        f"ncclCommInitRank comm 0x55d0c0ffee rank {rank} nranks {size} cudaDev {rank % 8} "
        f"nvmlDev {rank % 8} busId 1b000 commId {comm} - Init {what}"
    )


def word(network: str) -> str:
    return info(f"Using network {network}")


def channel(one: int, other: int, network: str = "Socket", way: str = "send") -> str:
    return info(f"Channel 00/0 : {one}[0] -> {other}[0] [{way}] via NET/{network}/0")


def world(rank: int, size: int, network: str, *channels: str) -> str:
    """A process that makes the communicator of all ranks."""
    made = init(rank, size) + "".join(channels) + init(rank, size, what="COMPLETE")
    return word(network) + made


def host(*processes: str) -> NcclEvidence:
    """Return the evidence of all processes of one host together."""
    found = []
    for text in processes:
        log = NcclLog()
        log.feed(text.encode())
        found.append(log.evidence())
    return merged(found)


def test_channels_between_ranks_of_one_host_prove_nothing() -> None:
    # Two processes of one host, of a world of two: P2P and SHM are switched off.
    found = host(
        world(0, 2, "Socket", channel(0, 1)), world(1, 2, "Socket", channel(0, 1, way="receive"))
    )
    assert (found.sockets, found.over_tcp, found.decided) == (0, 0, 0)


@pytest.mark.parametrize("network", ["Socket", "IB"])
def test_only_channels_between_hosts_count_in_a_gang(network: str) -> None:
    # Ranks 0 and 1 of four are here: 0 -> 1 stays, 1 -> 2 and 3 -> 0 do not.
    found = host(
        world(0, 4, network, channel(0, 1, network), channel(3, 0, network, "receive")),
        world(1, 4, network, channel(0, 1, network, "receive"), channel(1, 2, network)),
    )
    over = (found.over_tcp, found.over_rdma)
    assert over == ((2, 0) if network == "Socket" else (0, 2))
    assert found.sockets == (2 if network == "Socket" else 0)


def test_sockets_inside_a_host_take_nothing_from_rdma_between_hosts() -> None:
    # A second communicator, of the two ranks of this host, went over sockets.
    inner = [word("Socket") + init(at, 2, PAIR) + channel(0, 1) for at in (0, 1)]
    found = host(
        world(0, 4, "IB", channel(3, 0, "IB", "receive")) + inner[0],
        world(1, 4, "IB", channel(1, 2, "IB")) + inner[1],
    )
    assert (found.sockets, found.network, found.over_rdma, found.over_tcp) == (0, "IB", 2, 0)


def test_the_last_word_counts_though_channels_came_before_it() -> None:
    text = world(0, 2, "IB", channel(0, 1, "IB"))
    assert host(text).sockets == 0
    # The next communicator of the same ranks found no device any more.
    again = text + word("Socket") + init(0, 2, PAIR)
    assert (host(again).sockets, host(again).network) == (1, "Socket")
    # And the one after it did.
    third = again + world(0, 2, "IB").replace(WORLD, "0x77")
    assert host(third).sockets == 0


def test_a_word_before_any_name_is_the_next_communicator_s() -> None:
    # The thread is the same: the word comes first, then the name.
    log = NcclLog()
    log.feed((word("IB") + init(0, 2) + channel(0, 1, "IB") + word("Socket")).encode())
    assert log.evidence().sockets == 1


def test_channels_that_are_opened_later_are_not_taken_for_another_communicator_s() -> None:
    # Opened at the first collective, after both communicators were made: 0 -> 1 of the world goes
    # to another host, 0 -> 1 of the pair does not, and the line does not say which it is.
    pair = [word("Socket") + init(at, 2, PAIR) + init(at, 2, PAIR, "COMPLETE") for at in (0, 1)]
    here = world(0, 2, "Socket") + pair[0] + channel(0, 1)
    other = pair[1]
    assert host(here, other).over_tcp == 1


@pytest.mark.parametrize("words", [1, 2])
def test_an_nccl_that_names_no_communicator(words: int) -> None:
    one = word("Socket") * words + channel(0, 1)
    two = word("Socket") * words + channel(0, 1, way="receive")
    # With several of them ranks of one number may be of different ones.
    assert host(one, two).over_tcp == (0 if words == 1 else 2)
    # Its ranks are on two hosts.
    assert host(one).over_tcp == 1


def test_earlier_evidence_is_not_forgotten() -> None:
    first = NcclLog()
    first.feed((word("IB") + init(0, 4) + channel(0, 1, "IB")).encode())
    then = NcclLog(first.evidence())
    then.feed(channel(3, 0, "IB", "receive").encode())
    other = NcclLog()
    other.feed(world(1, 4, "IB").encode())
    assert merged([then.evidence(), other.evidence()]).over_rdma == 1
    assert then.evidence().over_rdma == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=12))
def test_hosts_together_count_each_channel_that_leaves_one(
    channels: list[tuple[int, int, bool]],
) -> None:
    # Ranks 0 and 1 on one host, 2 and 3 on the other; both ends write a line.
    said = {rank: [word("IB"), init(rank, 4)] for rank in range(4)}
    for one, other, tcp in channels:
        network = "Socket" if tcp else "IB"
        said[one].append(channel(one, other, network))
        said[other].append(channel(one, other, network, "receive"))
    found = [host(*("".join(said[rank]) for rank in ranks)) for ranks in ((0, 1), (2, 3))]
    leaving = [tcp for one, other, tcp in channels if one // 2 != other // 2]
    assert sum(it.over_tcp for it in found) == 2 * sum(leaving)
    assert sum(it.over_rdma for it in found) == 2 * (len(leaving) - sum(leaving))


def test_many_communicators_cost_no_memory() -> None:
    log = NcclLog()
    for n in range(2000):
        text = word("IB") + init(n % 8, 64, hex(n)) + channel(n, n + 1, "IB")
        log.feed(text.replace(":4799 ", f":{n} ").encode())
    found = log.evidence()
    assert len(found.comms) <= 66
    assert sum(len(comm.pairs) for comm in found.comms) <= 400
    assert sys.getsizeof(found.comms) < 1000
    assert found.over_rdma == 2000
