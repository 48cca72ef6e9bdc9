"""On which networks nodes are to meet."""

from typing import Any

from muster.check.networks import PEERS, doubled, networks_of
from muster.http.views import InterfaceView, NodeView, Reason


def interface(name: str, *addresses: str, kind: str = "ethernet", **more: Any) -> InterfaceView:
    return InterfaceView(
        name, kind, addresses, **{"running": True, "rdma": False, "speed_mbps": 0, **more}
    )


def node(name: str, address: str, *interfaces: InterfaceView, hostname: str = "") -> NodeView:
    return NodeView(
        name=name,
        link="connected",
        state=Reason("free", "free"),
        address=address,
        pool="default",
        gpus=0,
        gpu_model="",
        cpus=1,
        memory_bytes=1,
        labels={},
        job=None,
        attempt=None,
        last_seen_s=0.0,
        version="1",
        hostname=hostname or name,
        interfaces=interfaces,
    )


def test_each_subnet_that_two_nodes_have_is_one() -> None:
    found = networks_of(
        [
            node(
                "a", "10.0.0.1", interface("eth0", "10.0.0.1/24"), interface("ib0", "10.1.0.1/16")
            ),
            node(
                "b", "10.0.0.2", interface("eth0", "10.0.0.2/24"), interface("ib0", "10.1.0.2/16")
            ),
            node("c", "10.0.0.3", interface("eth0", "10.0.0.3/24", "fd00::3/64")),
        ]
    )
    assert found == {
        "10.0.0.0/24": {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"},
        "10.1.0.0/16": {"a": "10.1.0.1", "b": "10.1.0.2"},
    }


def test_local_and_down_interfaces_are_no_networks() -> None:
    docker = interface("docker0", "172.17.0.1/16", kind="virtual")
    down = [interface("eth1", f"10.9.0.{n}/24", running=False) for n in (1, 2)]
    nodes = [
        node(f"n{n}", f"10.0.0.{n}", interface("eth0", f"10.0.0.{n}/24"), docker, down[n - 1])
        for n in (1, 2)
    ]
    assert list(networks_of(nodes)) == ["10.0.0.0/24"]
    assert doubled(nodes) == {}


def test_nodes_with_subnets_of_their_own_meet_at_their_addresses() -> None:
    nodes = [node(f"n{n}", f"10.0.{n}.1", interface("eth0", f"10.0.{n}.1/31")) for n in (1, 2)]
    assert networks_of(nodes) == {PEERS: {"n1": "10.0.1.1", "n2": "10.0.2.1"}}


def test_agents_of_one_machine_meet_on_its_loopback() -> None:
    both = interface("eth0", "192.0.2.2/24")
    nodes = [
        node(
            f"n{n}",
            f"127.0.0.{n}",
            interface("lo", f"127.0.0.{n}/8", kind="loopback"),
            both,
            hostname="host",
        )
        for n in (11, 12)
    ]
    assert networks_of(nodes) == {"127.0.0.0/8": {"n11": "127.0.0.11", "n12": "127.0.0.12"}}
    assert doubled(nodes) == {}


def test_an_address_of_two_machines_is_reported_and_no_network() -> None:
    nodes = [
        node(name, own, interface("eth0", f"{own}/24"), interface("eth1", "10.5.0.9/24"))
        for name, own in (("a", "10.0.0.1"), ("b", "10.0.0.2"))
    ]
    assert doubled(nodes) == {"10.5.0.9": ["a", "b"]}
    assert list(networks_of(nodes)) == ["10.0.0.0/24"]
