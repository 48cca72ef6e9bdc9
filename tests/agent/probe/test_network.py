"""Network probe of an agent: from made-up links and sysfs, and in a real namespace."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.probe.netlink import LinkAddress, NetworkLink, NetworkSnapshot
from agent.probe.network import NetworkProbe, interfaces_of, pin
from examples.rig.rig import missing
from muster.protocol.observations.interfaces import (
    ADDRESSES_MAX,
    INTERFACES_MAX,
    Interface,
    InterfaceKind,
    problem,
)

UP = 0x1 | 0x40


def needs_namespaces() -> None:
    if why := missing():
        pytest.skip(why)


LO = NetworkLink(1, "lo", 772, UP, mtu=65536)
ETH = NetworkLink(2, "eth0", 1, UP, mtu=1500)


def found(
    *links: NetworkLink, root: Path = Path("/nowhere"), **addresses: str | tuple[str, ...]
) -> dict[str, Interface]:
    """The interfaces by name; `addresses` are those of each link."""
    index = {link.name.replace("-", "_"): link.index for link in links}
    events = [
        LinkAddress(index[name], address)
        for name, some in addresses.items()
        for address in ((some,) if isinstance(some, str) else some)
    ]
    return {i.name: i for i in interfaces_of(NetworkSnapshot(links, tuple(events)), root)}


def sysfs(root: Path, link: NetworkLink, *, rdma: bool = False, **files: str) -> None:
    folder = root / "sys/class/net" / link.name
    folder.mkdir(parents=True)
    for name, text in {"ifindex": f"{link.index}\n", **files}.items():
        (folder / name).write_text(text)
    if rdma:
        (folder / "device/infiniband/mlx5_0").mkdir(parents=True)


def test_an_ethernet_card_with_its_speed(tmp_path: Path) -> None:
    sysfs(tmp_path, ETH, speed="100000\n")
    assert found(ETH, root=tmp_path, eth0="10.0.0.5/16") == {
        "eth0": Interface(
            "eth0",
            InterfaceKind.ETHERNET,
            ("10.0.0.5/16",),
            mtu=1500,
            speed_mbps=100_000,
        )
    }


@pytest.mark.parametrize("speed", ["-1\n", "4294967295\n", "\n"])
def test_a_driver_that_knows_no_speed(tmp_path: Path, speed: str) -> None:
    sysfs(tmp_path, ETH, speed=speed)
    assert found(ETH, root=tmp_path, eth0="10.0.0.5/16")["eth0"].speed_mbps == 0


def test_rdma_behind_a_card_a_vlan_and_a_bond(tmp_path: Path) -> None:
    plain = NetworkLink(3, "eth1", 1, UP)
    cards = [NetworkLink(4, "ens1", 1, UP, master=6), NetworkLink(5, "ens2", 1, UP, master=6)]
    bond = NetworkLink(6, "bond0", 1, UP, "bond")
    vlan = NetworkLink(7, "bond0.7", 1, UP, "vlan", lower=6)
    sysfs(tmp_path, plain)
    for card in cards:
        sysfs(tmp_path, card, rdma=True)
    everything = interfaces_of(
        NetworkSnapshot(
            (plain, *cards, bond, vlan),
            tuple(LinkAddress(i, f"10.{i}.0.1/16") for i in (3, 6, 7)),
        ),
        tmp_path,
    )
    assert [(i.name, i.kind, i.rdma) for i in everything] == [
        ("eth1", InterfaceKind.ETHERNET, False),
        ("bond0", InterfaceKind.BOND, True),
        ("bond0.7", InterfaceKind.VLAN, True),
    ]


def test_ipoib_is_known_by_its_type() -> None:
    ib = NetworkLink(9, "ibs192", 32, UP, "ipoib")
    assert found(ib, ibs192="10.1.0.1/24")["ibs192"].kind is InterfaceKind.INFINIBAND
    assert found(ib, ibs192="10.1.0.1/24")["ibs192"].rdma


def test_a_bridge_is_a_network_only_where_a_card_is_its_port() -> None:
    docker = NetworkLink(10, "docker0", 1, UP, "bridge")
    to_container = NetworkLink(11, "vethab", 1, UP, "veth", lower=3, master=10)
    to_machine = NetworkLink(12, "vnet0", 1, UP, "tun", master=10)
    host = NetworkLink(13, "br0", 1, UP, "bridge")
    card = NetworkLink(14, "eno1", 1, UP, master=13)
    guest = NetworkLink(15, "vnet1", 1, UP, "tun", master=13)
    kinds = found(
        docker,
        to_container,
        to_machine,
        host,
        card,
        guest,
        docker0="172.17.0.1/16",
        br0="10.0.0.1/24",
    )
    assert kinds["docker0"].kind is InterfaceKind.VIRTUAL
    assert kinds["br0"].kind is InterfaceKind.BRIDGE


@pytest.mark.parametrize(
    ("hardware_type", "kind", "expected"),
    [
        (1, "veth", InterfaceKind.VETH),
        (1, "macvlan", InterfaceKind.VLAN),
        (1, "dummy", InterfaceKind.VIRTUAL),
        (1, "tun", InterfaceKind.VIRTUAL),
        (65534, "tun", InterfaceKind.TUNNEL),
        (65534, "wireguard", InterfaceKind.TUNNEL),
        (768, "ipip", InterfaceKind.TUNNEL),
        (1, "vxlan", InterfaceKind.TUNNEL),
        (1, "something-new", InterfaceKind.VIRTUAL),
        (772, "", InterfaceKind.LOOPBACK),
    ],
)
def test_other_interfaces_are_listed(
    hardware_type: int, kind: str, expected: InterfaceKind
) -> None:
    link = NetworkLink(5, "x0", hardware_type, UP, kind)
    assert found(link, x0="10.0.0.1/24")["x0"].kind is expected


def test_another_namespaces_sysfs_is_not_believed(tmp_path: Path) -> None:
    sysfs(tmp_path, NetworkLink(77, "eth0", 1, UP), rdma=True, speed="1000\n")
    mine = found(ETH, root=tmp_path, eth0="10.0.0.5/16")["eth0"]
    assert (mine.rdma, mine.speed_mbps) == (False, 0)


def test_primary_addresses_come_first_and_link_local_ones_not_at_all() -> None:
    network = NetworkSnapshot(
        (ETH,),
        (
            LinkAddress(2, "10.0.0.9/24", secondary=True),
            LinkAddress(2, "10.0.0.5/24"),
            LinkAddress(2, "169.254.3.1/16"),
            LinkAddress(2, "fe80::1/64"),
            LinkAddress(2, "fd00::5/64"),
        ),
    )
    (mine,) = interfaces_of(network)
    assert mine.addresses == ("10.0.0.5/24", "fd00::5/64", "10.0.0.9/24")


def test_an_interface_without_an_address_or_a_usable_name_is_left_out() -> None:
    odd = NetworkLink(3, "a,b", 1, UP)
    network = NetworkSnapshot((ETH, odd), (LinkAddress(3, "10.0.0.1/24"),))
    assert interfaces_of(network) == ()


def test_an_interface_that_is_down_is_marked() -> None:
    down = NetworkLink(2, "eth0", 1, 0x1)
    assert not found(down, eth0="10.0.0.5/24")["eth0"].running


def test_a_report_stays_small_and_leaves_out_what_ends_here_first() -> None:
    links = [NetworkLink(i, f"v{i}", 1, UP, "dummy") for i in range(1, 200)]
    addresses = [LinkAddress(link.index, f"10.0.{link.index}.1/24") for link in links]
    addresses += [LinkAddress(500, f"10.9.0.{i}/24") for i in range(1, 50)]
    network = NetworkSnapshot((*links, NetworkLink(500, "eth0", 1, UP)), tuple(addresses))
    reported = interfaces_of(network)
    assert len(reported) == INTERFACES_MAX
    assert len(next(i for i in reported if i.name == "eth0").addresses) == ADDRESSES_MAX
    assert problem(reported) is None


@pytest.mark.parametrize(
    ("address", "name", "written"),
    [
        ("10.0.0.5", "eth0", "10.0.0.5/16"),
        ("127.0.0.12", "lo", "127.0.0.12/8"),
        ("::1", "lo", "::1/128"),
        ("203.0.113.4", "", "203.0.113.4/32"),
        ("2001:db8::4", "", "2001:db8::4/128"),
    ],
)
def test_a_pinned_address_stands_alone_on_its_interface(
    address: str, name: str, written: str
) -> None:
    everything = interfaces_of(
        NetworkSnapshot(
            (LO, ETH),
            (
                LinkAddress(1, "127.0.0.1/8"),
                LinkAddress(1, "::1/128"),
                LinkAddress(2, "10.0.0.4/16"),
                LinkAddress(2, "10.0.0.5/16"),
            ),
        )
    )
    pinned = [i for i in pin(everything, address, None) if i.pinned]
    assert [(i.name, i.addresses) for i in pinned] == [(name, (written,))]
    assert problem(pin(everything, address, None)) is None


def test_a_pinned_interface() -> None:
    both = tuple(
        found(ETH, NetworkLink(3, "eth1", 1, UP), eth0="10.0.0.5/16", eth1="10.1.0.5/16").values()
    )
    assert [i.name for i in pin(both, None, "eth1") if i.pinned] == ["eth1"]
    assert pin(both, None, None) == both


def test_a_pinned_interface_that_is_gone_is_not_replaced_by_another() -> None:
    both = pin(tuple(found(ETH, eth0="10.0.0.5/16").values()), None, "ib0")
    assert [(i.name, i.addresses, i.running) for i in both if i.pinned] == [("ib0", (), False)]


@pytest.mark.parametrize(
    "bad",
    [
        Interface("eth0\nFOO=1", InterfaceKind.ETHERNET, ("10.0.0.1/8",)),
        Interface("eth0", InterfaceKind.ETHERNET, ("10.0.0.1/8 evil",)),
        Interface("eth0", InterfaceKind.ETHERNET, ("10.0.0.1",)),
        Interface("eth0", InterfaceKind.ETHERNET, ("0.0.0.0/0",)),
        Interface("eth0", InterfaceKind.ETHERNET, ("fe80::1%eth0/64",)),
        Interface("", InterfaceKind.ETHERNET, ("10.0.0.1/8",)),
        Interface("eth0", InterfaceKind.ETHERNET, ("10.0.0.1/8",) * (ADDRESSES_MAX + 1)),
    ],
)
def test_interfaces_that_a_coordinator_refuses(bad: Interface) -> None:
    assert problem((bad,)) is not None
    assert problem((bad,) * (INTERFACES_MAX + 1)) is not None


def test_this_machine_has_its_loopback_and_asks_the_kernel_once() -> None:
    probe = NetworkProbe()
    # A network of the machine may come or go between two looks, hardly between all of these.
    looks = [probe.interfaces() for _ in range(20)]
    assert any(one is before for before, one in itertools.pairwise(looks))
    mine = looks[-1]
    lo = next(i for i in mine if i.kind is InterfaceKind.LOOPBACK)
    assert "127.0.0.1/8" in lo.addresses
    assert problem(mine) is None


@pytest.mark.root
def test_a_change_is_noticed_when_it_has_settled() -> None:
    needs_namespaces()
    program = """
import asyncio, subprocess
from agent.monitors.interfaces import InterfaceMonitor
from agent.probe.network import NetworkProbe
def ip(*words): subprocess.run(["ip", *words], check=True)
async def story():
    heard = asyncio.Queue()
    watching = asyncio.create_task(InterfaceMonitor(NetworkProbe(), heard.put_nowait, 0.2).run())
    await asyncio.sleep(0)
    ip("link", "set", "lo", "up")
    ip("addr", "add", "10.7.0.1/24", "dev", "lo")
    async with asyncio.timeout(180):
        while "10.7.0.1/24" not in (await heard.get()).changes.interfaces[0].addresses:
            pass
    watching.cancel()
    print("seen")
asyncio.run(story())
"""
    command = ["unshare", "--net", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "seen\n", done.stderr


@pytest.mark.root
def test_a_namespace_is_read_as_it_is_and_read_again_when_it_changes() -> None:
    needs_namespaces()
    program = """
import json, subprocess, time
import msgspec
from agent.probe.network import NetworkProbe
def ip(*words): subprocess.run(["ip", *words], check=True)
def until(running):
    # The kernel looks at a link's carrier when it has time, up to a second later.
    deadline = time.monotonic() + 20
    while {i.name: i.running for i in probe.interfaces()}["eth0"] is not running:
        assert time.monotonic() < deadline, probe.interfaces()
        time.sleep(0.02)
ip("link", "set", "lo", "up")
ip("link", "add", "eth0", "type", "veth", "peer", "name", "far")
for name in ("eth0", "far"):
    ip("link", "set", name, "addrgenmode", "none")
ip("link", "set", "far", "up")
ip("link", "set", "eth0", "mtu", "9000", "up")
ip("addr", "add", "10.7.0.1/24", "dev", "eth0")
ip("link", "add", "docker0", "type", "bridge")
ip("addr", "add", "172.17.0.1/16", "dev", "docker0")
probe = NetworkProbe()
until(running=True)
before = probe.interfaces()
same = probe.interfaces() is before
ip("addr", "add", "10.7.0.9/24", "dev", "eth0")
ip("addr", "add", "fd07::1/64", "dev", "eth0", "nodad")
ip("link", "set", "far", "down")
until(running=False)
print(json.dumps([same, msgspec.to_builtins(before), msgspec.to_builtins(probe.interfaces())]))
"""
    command = ["unshare", "--net", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    same, before, after = json.loads(done.stdout)
    assert same
    by_name = {interface["name"]: interface for interface in before}
    assert by_name["lo"]["kind"] == "loopback"
    assert (by_name["eth0"]["kind"], by_name["eth0"]["addresses"]) == ("veth", ["10.7.0.1/24"])
    assert by_name["eth0"]["mtu"] == 9000
    assert by_name["docker0"]["kind"] == "virtual"
    (changed,) = [interface for interface in after if interface["name"] == "eth0"]
    assert changed["addresses"] == ["10.7.0.1/24", "fd07::1/64", "10.7.0.9/24"]
