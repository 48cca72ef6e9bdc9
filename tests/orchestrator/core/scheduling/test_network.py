"""Choice of a gang's network: tables of the nodes' interfaces, and the network chosen."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import Inventory
from muster.protocol.observations.interfaces import Interface, InterfaceKind
from orchestrator.core.model.state import Node
from orchestrator.core.scheduling.network import (
    NoSharedNetwork,
    SharedNetwork,
    choose,
    reachable_gang,
)

K = InterfaceKind


def eth(name: str, *addresses: str, gbit: int = 0, **more: Any) -> Interface:
    return Interface(name, K.ETHERNET, addresses, speed_mbps=gbit * 1000, **more)


def ib(name: str, *addresses: str, **more: Any) -> Interface:
    return Interface(name, K.INFINIBAND, addresses, rdma=True, **more)


def roce(name: str, *addresses: str, gbit: int = 0) -> Interface:
    return eth(name, *addresses, gbit=gbit, rdma=True)


DOCKER = Interface("docker0", K.VIRTUAL, ("172.17.0.1/16",))
VIRBR = Interface("virbr0", K.VIRTUAL, ("192.168.122.1/24",))
LO = Interface("lo", K.LOOPBACK, ("127.0.0.1/8", "::1/128"))


def nodes(*each: tuple[Interface, ...], **more: Any) -> list[Node]:
    return [
        Node(
            NodeName(f"n{number}"),
            "id",
            "boot",
            "1",
            Inventory("192.0.2.1", "m", interfaces=interfaces, **more),
        )
        for number, interfaces in enumerate(each, 1)
    ]


def chosen(gang: list[Node], *networks: str) -> list[tuple[str, str]]:
    found = choose(gang, networks)
    assert isinstance(found, SharedNetwork), found
    assert [endpoint.node for endpoint in found.endpoints] == [node.name for node in gang]
    return [(endpoint.interface, endpoint.address) for endpoint in found.endpoints]


def apart(gang: list[Node], *networks: str) -> NoSharedNetwork:
    found = choose(gang, networks)
    assert isinstance(found, NoSharedNetwork), found
    return found


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        pytest.param(
            (
                (LO, DOCKER, VIRBR, eth("eth0", "10.0.0.1/24")),
                (LO, DOCKER, VIRBR, eth("eth0", "10.0.0.2/24")),
            ),
            [("eth0", "10.0.0.1"), ("eth0", "10.0.0.2")],
            id="docker and libvirt everywhere",
        ),
        pytest.param(
            (
                (eth("eth0", "10.0.0.1/24", gbit=400), ib("ib0", "10.1.0.1/24")),
                (eth("eth0", "10.0.0.2/24", gbit=400), ib("ib0", "10.1.0.2/24")),
            ),
            [("ib0", "10.1.0.1"), ("ib0", "10.1.0.2")],
            id="IPoIB before any Ethernet",
        ),
        pytest.param(
            (
                (eth("eth0", "10.0.0.1/24"), ib("ib0", "10.1.0.1/24")),
                (eth("eth0", "10.0.0.2/24"),),
                (eth("eth0", "10.0.0.3/24"), ib("ib0", "10.1.0.3/24")),
            ),
            [("eth0", "10.0.0.1"), ("eth0", "10.0.0.2"), ("eth0", "10.0.0.3")],
            id="IPoIB on some but not on all",
        ),
        pytest.param(
            (
                (eth("eth0", "10.0.0.1/24", gbit=100), roce("ens1", "10.2.0.1/24", gbit=25)),
                (eth("eth0", "10.0.0.2/24", gbit=100), roce("ens7", "10.2.0.2/24", gbit=25)),
            ),
            [("ens1", "10.2.0.1"), ("ens7", "10.2.0.2")],
            id="RoCE before faster Ethernet, under unequal names",
        ),
        pytest.param(
            (
                (roce("ens1", "10.2.0.1/24"), eth("eth1", "10.3.0.1/24")),
                (eth("ens1", "10.2.0.2/24"), eth("eth1", "10.3.0.2/24", gbit=10)),
            ),
            [("ens1", "10.2.0.1"), ("ens1", "10.2.0.2")],
            id="a network is as good as its worst member, in kind and in speed",
        ),
        pytest.param(
            (
                (eth("eth0", "10.0.0.1/24", gbit=10), eth("eth1", "10.3.0.1/24", gbit=100)),
                (eth("eth0", "10.0.0.2/24", gbit=10), eth("eth1", "10.3.0.2/24", gbit=100)),
            ),
            [("eth1", "10.3.0.1"), ("eth1", "10.3.0.2")],
            id="of two Ethernets the faster",
        ),
        pytest.param(
            (
                (eth("eth0", "10.0.0.1/24", gbit=10), eth("eth1", "10.3.0.1/24", gbit=100)),
                (eth("eth0", "10.0.0.2/24", gbit=10), eth("eth1", "10.4.0.2/24", gbit=100)),
            ),
            [("eth0", "10.0.0.1"), ("eth0", "10.0.0.2")],
            id="a fast one in two subnets is not shared",
        ),
        pytest.param(
            (
                tuple(ib(f"ib{i}", f"10.1.{i}.1/24") for i in (10, 2, 1)),
                tuple(ib(f"ib{i}", f"10.1.{i}.2/24") for i in (10, 2, 1)),
            ),
            [("ib1", "10.1.1.1"), ("ib1", "10.1.1.2")],
            id="of eight rails the first, in the order in which people count",
        ),
        pytest.param(
            (
                (ib("ib1", "10.1.0.11/16"), ib("ib0", "10.1.0.1/16", "10.1.0.99/16")),
                (ib("ib0", "10.1.0.2/16"), ib("ib1", "10.1.0.12/16")),
            ),
            [("ib0", "10.1.0.1"), ("ib0", "10.1.0.2")],
            id="several addresses of a node in one subnet do not multiply",
        ),
        pytest.param(
            ((eth("eth0", "fd00::1/64"),), (eth("eth0", "fd00::2/64"),)),
            [("eth0", "fd00::1"), ("eth0", "fd00::2")],
            id="IPv6 only",
        ),
        pytest.param(
            (
                (eth("eth0", "fd00::1/64", "10.0.0.1/24"),),
                (eth("eth0", "fd00::2/64", "10.0.0.2/24"),),
            ),
            [("eth0", "10.0.0.1"), ("eth0", "10.0.0.2")],
            id="IPv4 where one interface has both",
        ),
        pytest.param(
            (
                (eth("eth0", "10.0.0.1/24", running=False), eth("eth1", "10.3.0.1/24")),
                (eth("eth0", "10.0.0.2/24", gbit=100), eth("eth1", "10.3.0.2/24")),
            ),
            [("eth1", "10.3.0.1"), ("eth1", "10.3.0.2")],
            id="one that is down is none",
        ),
        pytest.param(
            (
                (eth("enp0s3", "10.0.2.15/24", gbit=100), eth("eth1", "192.168.56.11/24")),
                (eth("enp0s3", "10.0.2.15/24", gbit=100), eth("eth1", "192.168.56.12/24")),
            ),
            [("eth1", "192.168.56.11"), ("eth1", "192.168.56.12")],
            id="the same address on two machines",
        ),
        pytest.param(
            (
                (Interface("wg0", K.TUNNEL, ("10.9.0.1/24",)), eth("eth0", "10.0.0.1/24")),
                (Interface("wg0", K.TUNNEL, ("10.9.0.2/24",)), eth("eth0", "10.0.1.2/24")),
            ),
            [("wg0", "10.9.0.1"), ("wg0", "10.9.0.2")],
            id="a tunnel, where there is nothing better",
        ),
        pytest.param(
            (
                (eth("eth0", "10.0.0.1/24"), eth("eth9", "10.5.0.1/24", pinned=True)),
                (eth("eth0", "10.0.0.2/24"), eth("eth1", "10.5.0.2/24")),
            ),
            [("eth9", "10.5.0.1"), ("eth1", "10.5.0.2")],
            id="what one agent pins counts for all",
        ),
        pytest.param(
            (
                (Interface("lo", K.LOOPBACK, ("127.0.0.11/8",), pinned=True),),
                (Interface("lo", K.LOOPBACK, ("127.0.0.12/8",), pinned=True),),
            ),
            [("lo", "127.0.0.11"), ("lo", "127.0.0.12")],
            id="all pinned, on loopback",
        ),
        pytest.param(
            (
                (Interface("", K.VIRTUAL, ("203.0.113.1/32",), pinned=True), DOCKER),
                (Interface("", K.VIRTUAL, ("203.0.113.2/32",), pinned=True), DOCKER),
            ),
            [("", "203.0.113.1"), ("", "203.0.113.2")],
            id="all pinned to addresses that a translation makes",
        ),
        pytest.param(
            ((LO, DOCKER, eth("eth0", "10.0.0.1/24")),),
            [("eth0", "10.0.0.1")],
            id="a gang of one",
        ),
        pytest.param(((LO, DOCKER),), [("lo", "127.0.0.1")], id="a gang of one without a network"),
    ],
)
def test_the_chosen_network(
    each: tuple[tuple[Interface, ...], ...], expected: list[tuple[str, str]]
) -> None:
    assert chosen(nodes(*each)) == expected
    reversed_order = nodes(*(tuple(reversed(mine)) for mine in each))
    assert chosen(reversed_order) == expected


TWO = (
    (DOCKER, eth("eth0", "10.0.0.1/24"), ib("ib0", "10.1.0.1/24")),
    (DOCKER, eth("eth0", "10.0.0.2/24"), ib("ib0", "10.1.0.2/24")),
)


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        (("eth0",), ["10.0.0.1", "10.0.0.2"]),
        (("10.0.0.0/24",), ["10.0.0.1", "10.0.0.2"]),
        (("10.0.0.0/8",), ["10.1.0.1", "10.1.0.2"]),
        (("eth7", "192.0.2.0/24", "eth0", "ib0"), ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_operators_name_the_network(networks: tuple[str, ...], expected: list[str]) -> None:
    assert [address for _, address in chosen(nodes(*TWO), *networks)] == expected


def test_an_operator_may_name_a_network_that_is_routed() -> None:
    racks = nodes(
        (eth("eth0", "10.128.0.2/32"), DOCKER),
        (eth("eth0", "10.128.7.3/32"), DOCKER),
    )
    assert "10.128.0.2/32" in apart(racks).text
    for entry in ("10.128.0.0/16", "eth0"):
        assert chosen(racks, entry) == [("eth0", "10.128.0.2"), ("eth0", "10.128.7.3")]


def test_an_operator_may_name_a_bridge_but_not_one_address_for_two() -> None:
    bridges = nodes(
        (Interface("br-lab", K.VIRTUAL, ("10.6.0.1/24",)),),
        (Interface("br-lab", K.VIRTUAL, ("10.6.0.2/24",)),),
    )
    assert chosen(bridges, "br-lab") == [("br-lab", "10.6.0.1"), ("br-lab", "10.6.0.2")]
    both = apart(nodes((DOCKER,), (DOCKER,)), "docker0")
    assert "n1 and n2 both have 172.17.0.1" in both.text


def test_nothing_else_is_taken_where_what_is_named_is_not_there() -> None:
    refused = apart(nodes(*TWO), "ib7")
    assert "among `networks` (ib7)" in refused.text
    gone = Interface("ib7", K.VIRTUAL, (), running=False, pinned=True)
    pinned = apart(nodes((*TWO[0], gone), TWO[1]))
    assert "ib7 without an address (down, named in its configuration)" in pinned.text


def test_a_refusal_lists_what_each_node_has() -> None:
    refused = apart(
        nodes(
            (LO, DOCKER, eth("eth0", "10.0.0.1/24"), VIRBR),
            (LO, DOCKER, eth("eth0", "10.0.9.2/24", running=False)),
        )
    )
    assert refused.odd is None
    assert refused.text == (
        "its nodes share no network: n1 has docker0 172.17.0.1/16 (ends on this machine), eth0 "
        "10.0.0.1/24, virbr0 192.168.122.1/24 (ends on this machine); n2 has docker0 172.17.0.1/16 "
        "(ends on this machine), eth0 10.0.9.2/24 (down); connect them, or name in `networks` of "
        "the coordinator's configuration one on which they reach each other"
    )


def test_the_node_without_the_shared_network_is_named() -> None:
    three = nodes(
        (eth("eth0", "10.0.0.1/24"),), (eth("eth0", "10.9.0.2/24"),), (eth("eth0", "10.0.0.3/24"),)
    )
    assert apart(three).odd == "n2"


def test_many_nodes_without_a_network_in_common_are_distinguished_at_once() -> None:
    gang = nodes(*[(eth("e0", f"10.{number}.0.1/24"),) for number in range(64)])
    assert apart(gang).odd is None


def test_a_cloned_machine_id_hides_no_duplicate_and_a_shared_machine_has_none() -> None:
    same = ((eth("eth0", "10.0.0.1/24"),), (eth("eth0", "10.0.0.1/24"),))
    assert isinstance(choose(nodes(*same)), NoSharedNetwork)
    assert chosen(nodes(*same, shared_host=True)) == [("eth0", "10.0.0.1"), ("eth0", "10.0.0.1")]
    only_loopback = nodes((LO,), (LO,), shared_host=True)
    assert chosen(only_loopback) == [("lo", "127.0.0.1"), ("lo", "127.0.0.1")]
    assert isinstance(choose(nodes((LO,), (LO,))), NoSharedNetwork)


def test_unreadable_addresses_are_left_out() -> None:
    odd = nodes(
        (eth("a b", "10.0.0.1/24"), eth("eth1", "10.3.0.1/24", "nonsense")),
        (eth("eth0", "10.0.0.2/24"), eth("eth1", "10.3.0.2/24")),
    )
    assert chosen(odd) == [("eth1", "10.3.0.1"), ("eth1", "10.3.0.2")]


@pytest.mark.parametrize(
    ("gang", "networks", "text"),
    [
        (nodes(*TWO), (), "10.1.0.0/24 on ib0 (InfiniBand), the best that all 2 nodes share"),
        (nodes(*TWO), ("eth0",), "10.0.0.0/24 on eth0, from `networks` (eth0)"),
        (
            nodes(
                (roce("ens1", "10.2.0.1/24", gbit=200),), (roce("ens7", "10.2.0.2/24", gbit=100),)
            ),
            (),
            "10.2.0.0/24 on ens1, ens7 (RoCE, 100 Gbit/s), the best that all 2 nodes share",
        ),
        (
            nodes((eth("e", "10.0.0.1/24", pinned=True),), (eth("e", "10.9.0.1/24", pinned=True),)),
            (),
            "2 subnets on e, from the agents' configuration",
        ),
        (nodes((LO,)), (), "127.0.0.0/8 on lo, because all nodes are on one machine"),
    ],
)
def test_why_in_a_line(gang: list[Node], networks: tuple[str, ...], text: str) -> None:
    found = choose(gang, networks)
    assert isinstance(found, SharedNetwork)
    assert found.text == text


def test_a_gang_is_made_of_nodes_that_share_a_network() -> None:
    rack = [(eth("eth0", f"10.{1 + i % 3}.0.{i}/24"),) for i in range(1, 9)]
    everyone = nodes(*rack)
    gang = reachable_gang(everyone, 3)
    assert gang is not None
    assert [node.name for node in gang] == ["n1", "n4", "n7"]
    assert reachable_gang(everyone, 4) is None
    assert reachable_gang(everyone[:1], 2) is None
    routed = reachable_gang(everyone, 4, ("10.0.0.0/8",))
    assert routed is not None
    assert len(routed) == 4


def test_an_agent_that_reports_no_interfaces_is_left_as_it_is() -> None:
    old = nodes((), (eth("eth0", "10.0.0.2/24"),))
    assert reachable_gang(old, 2) == tuple(old)
