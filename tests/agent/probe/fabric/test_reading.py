"""Probe of a node from any incomplete tree, independent of this machine."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json

from agent.probe import netlink
from agent.probe.fabric.probe import ProbeOptions, probe
from agent.probe.fabric.report import doctor_text, probe_text
from muster.fabric.model import Probe, Severity
from tests.agent.probe.fabric.trees import (
    V1,
    V2,
    GidRow,
    Node,
    by_key,
    classical,
    mapped,
    problems_of,
    refusing,
    used,
    words,
)

CARD = "pci0000:00/0000:00:01.0/0000:01:00.0"


def whole(root: Path) -> Node:
    """A node that has a bit of everything."""
    node = Node(root)
    node.gpu("pci0000:00/0000:00:02.0/0000:02:00.0")
    node.file("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: \t\t H100\n")
    node.hca("mlx5_0", path=CARD, hca_type="MT4129", fw_ver="28.41.1000")
    node.port("mlx5_0", gids=classical("10.1.0.5", "eth2"), slots=8, lid="0x0", sm_lid="0x0")
    node.file("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "7\n")
    node.file(f"sys/devices/{CARD}/net/eth2/ifindex", "3\n")
    for name, text in {"type": "1", "flags": "0x1003", "operstate": "up", "mtu": "9000"}.items():
        node.file(f"sys/devices/{CARD}/net/eth2/{name}", f"{text}\n")
    node.link("sys/class/net/eth2", f"../../devices/{CARD}/net/eth2")
    node.link(f"sys/devices/{CARD}/net/eth2/device", "../..")
    node.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
    node.file("dev/infiniband/uverbs0", "")
    node.file("proc/net/fib_trie", FIB)
    node.file("proc/net/route", ROUTES)
    node.file("proc/net/if_inet6", SIXTH)
    node.file("etc/hostname", "gpu-07\n")
    node.file("etc/hosts", "127.0.0.1 localhost\n10.1.0.5 gpu-07\n")
    node.file("etc/os-release", 'ID="ubuntu"\n')
    node.file("etc/nccl.conf", "# nothing\n")
    node.file("proc/sys/kernel/osrelease", "6.8.0-40-generic\n")
    node.file("proc/self/limits", LIMITS)
    return node


FIB = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.1.0.0/16 2 0 2
        |-- 10.1.0.0
           /16 link UNICAST
        |-- 10.1.0.5
           /32 host LOCAL
        |-- 10.1.255.255
           /32 link BROADCAST
"""
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth2\t00000000\t0100010A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth2\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
SIXTH = "fd000000000000000000000000000007 03 40 00 80     eth2\n"
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 1048576              files
Max locked memory         unlimited            unlimited            bytes
"""


def test_a_whole_node(tmp_path: Path) -> None:
    found = whole(tmp_path).probe()
    (hca,) = found.hcas
    assert found.hostname == "gpu-07"
    assert (hca.name, hca.port, hca.pci, hca.numa_node) == ("mlx5_0", 1, "0000:01:00.0", 0)
    assert hca.netdevs == ("eth2",)
    assert hca.addresses == ("10.1.0.5", "fd00::7")
    assert hca.uverbs == "/dev/infiniband/uverbs0"
    assert hca.counters.xmit_bytes == 28
    (network,) = found.networks
    assert network.addresses == ("10.1.0.5/16", "fd00::7/64")
    assert (network.running, network.mtu, network.hcas) == (True, 9000, ("mlx5_0",))
    assert found.gpus[0].name == "H100"
    assert found.env["NCCL_SOCKET_IFNAME"] == "=eth2"
    assert (found.limits.memlock, found.limits.nofile) == ("unlimited", 1048576)
    assert not problems_of(found)
    assert found.fingerprint == whole(tmp_path / "again").probe().fingerprint


def test_each_file_missing_by_itself(tmp_path: Path) -> None:
    node = whole(tmp_path)
    for file in files(tmp_path):
        node.refused = {file}
        check(node.probe())


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EACCES, errno.ENODATA, errno.EIO])
def test_no_file_readable(tmp_path: Path, number: int) -> None:
    whole(tmp_path)
    found = probe(tmp_path, ProbeOptions(), refusing(tmp_path, files(tmp_path), number))
    check(found)
    # Nothing speaks against the port.
    assert used(found) == ["mlx5_0:1"]
    assert found.hcas[0].unknown["state"]


def test_an_empty_root(node: Node) -> None:
    found = node.probe()
    check(found)
    assert (found.hcas, found.problems, found.hostname) == ((), (), "unknown")
    assert "0 problems, no RDMA here: TCP" in doctor_text(found)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole node that nobody changes."""
    return whole(tmp_path_factory.mktemp("known")).root


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_bytes_in_any_file(known: Path, data: st.DataObject) -> None:
    names = files(known)
    odd = data.draw(
        st.dictionaries(
            st.sampled_from(names),
            st.one_of(
                st.binary(max_size=200),
                st.text(max_size=60).map(str.encode),
                st.sampled_from(ODD),
            ),
            max_size=len(names),
        )
    )
    inner = refusing(known, ())

    def read(path: str) -> bytes:
        return odd[path] if path in odd else inner(path)

    check(probe(known, ProbeOptions(), read))


ODD = (
    b"",
    b"\n\n",
    b"-1\n",
    b"99999999999999999999999999999999\n",
    b"0x" + b"f" * 40,
    b"4: \x1b[31mACTIVE\n",
    b"N/A (no PMA)\n",
    b"400 Gb/sec (4X NDR)\n" * 40,
    b"a" * 100_000,
    "\u0664: \u0665".encode(),
    b"eth2\t0000010A\t00000000\t0001\t0\t0\t0\tZZZZ\n" * 3,
    b"NCCL_IB_HCA=\x00\n",
)


def files(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()
    ) + sorted(
        # The paths that the probe reads.
        f"sys/class/infiniband/mlx5_0/{path.relative_to(base)}"
        for base in [root / "sys/class/infiniband/mlx5_0"]
        for path in base.rglob("*")
        if path.is_file()
    )


def check(found: Probe) -> None:
    """Check that the probe can be encoded, shown and judged."""
    assert json.decode(json.encode(found), type=Probe) == found
    for text in (probe_text(found), doctor_text(found)):
        assert all(one == "\n" or one.isprintable() for one in text)
    assert all(problem.what and problem.fix for problem in found.problems)


def test_this_machine_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> object:
        raise AssertionError("this machine was asked")

    monkeypatch.setattr(netlink, "ask", never)
    monkeypatch.setattr(socket, "gethostname", never)
    monkeypatch.setattr(os, "statvfs", never)
    monkeypatch.setattr("resource.getrlimit", never)
    monkeypatch.setattr("importlib.import_module", never)
    found = whole(tmp_path).probe()
    assert used(found) == ["mlx5_0:1"]


def test_a_device_file_that_cannot_be_opened(node: Node) -> None:
    node.hca("mlx5_0")
    node.port("mlx5_0", link="InfiniBand")
    node.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
    # Not there is unknown, and kept.
    assert used(node.probe()) == ["mlx5_0:1"]
    assert node.probe().hcas[0].unknown["uverbs"] == "no such file"
    place = node.file("dev/infiniband/uverbs0", "")
    place.chmod(0o400)
    found = node.probe()
    if os.geteuid() == 0:
        assert used(found) == ["mlx5_0:1"]
    else:
        assert used(found) == []
        assert "permission denied" in found.hcas[0].reason
        assert problems_of(found, Severity.ERROR)


def test_two_ports_of_one_card_each_with_its_interface(node: Node) -> None:
    for number, (name, place) in enumerate((("ib0", "0x0"), ("ib1", "0x1"))):
        folder = f"sys/devices/{CARD}/net/{name}"
        guid = f"00:02:c9:03:00:f9:bf:a{number + 1}"
        node.file(f"{folder}/type", "32\n")
        node.file(f"{folder}/dev_id", f"{place}\n")
        node.file(f"{folder}/address", f"80:00:00:48:fe:80:00:00:00:00:00:00:{guid}\n")
    node.hca("mlx4_0", path=CARD, kind="0x028000")
    prefix = "fe80:0000:0000:0000"
    for port in (1, 2):
        gid: dict[int, GidRow] = {0: (f"{prefix}:0002:c903:00f9:bfa{port}", V1, None)}
        node.port("mlx4_0", port, link="InfiniBand", gids=gid)
    found = by_key(node.probe())
    assert found["mlx4_0:1"].netdevs == ("ib0",)
    assert found["mlx4_0:2"].netdevs == ("ib1",)


def test_ports_are_identified_by_their_number_without_a_gid(node: Node) -> None:
    for place, name in enumerate(("eth4", "eth5")):
        node.file(f"sys/devices/{CARD}/net/{name}/dev_port", f"{place}\n")
    node.hca("mlx4_0", path=CARD)
    for port in (1, 2):
        node.port("mlx4_0", port)
    found = by_key(node.probe())
    assert found["mlx4_0:1"].netdevs == ("eth4",)
    assert found["mlx4_0:2"].netdevs == ("eth5",)


def test_a_bond_is_the_interface_of_its_ports(node: Node) -> None:
    node.hca("mlx5_bond_0", path=CARD)
    node.file(f"sys/devices/{CARD}/net/eth4/ifindex", "4\n")
    node.link(f"sys/devices/{CARD}/net/eth4/master", "../../../../../virtual/net/bond0")
    node.port("mlx5_bond_0")
    assert by_key(node.probe())["mlx5_bond_0:1"].netdevs == ("bond0",)


@pytest.mark.parametrize("of_gids", [False, True])
def test_a_bond_is_meant_by_the_names_of_its_members_too(node: Node, *, of_gids: bool) -> None:
    node.hca("mlx5_bond_0", path=CARD)
    node.file(f"sys/devices/{CARD}/net/eth4/dev_id", "0x0\n")
    node.link(f"sys/devices/{CARD}/net/eth4/master", "../../../../../virtual/net/bond0")
    node.port("mlx5_bond_0", gids=classical("10.0.0.5", "bond0") if of_gids else None)
    for name in ("eth4", "bond0"):
        assert used(node.probe(include=[name])) == ["mlx5_bond_0:1"]
        assert used(node.probe(exclude=[name])) == []
        assert not problems_of(node.probe(include=[name]))
    (hca,) = node.probe().hcas
    assert (hca.netdevs, hca.members) == (("bond0",), ("eth4",))


def test_a_virtual_function_names_its_owner(node: Node) -> None:
    owner = node.hca("mlx5_0", path=CARD)
    node.port("mlx5_0", link="InfiniBand")
    place = node.hca("mlx5_1", path=CARD.replace("01:00.0", "01:00.2"))
    node.link(f"{place}/../../physfn", "../0000:01:00.0")
    node.port("mlx5_1", link="InfiniBand")
    found = by_key(node.probe())
    assert owner
    assert found["mlx5_1:1"].physical_function == "0000:01:00.0"
    assert not found["mlx5_1:1"].use


def test_a_device_of_software(node: Node) -> None:
    folder = "sys/devices/virtual/infiniband/soft0"
    for name, text in {"state": "4: ACTIVE", "link_layer": "Ethernet"}.items():
        node.file(f"{folder}/ports/1/{name}", f"{text}\n")
    node.link("sys/class/infiniband/soft0", "../../devices/virtual/infiniband/soft0")
    (hca,) = node.probe().hcas
    assert (hca.virtual, hca.use) == (True, False)
    assert "software" in hca.reason


def test_an_invalid_device_is_reported_and_skipped(node: Node) -> None:
    node.link("sys/class/infiniband/scif0", "../../devices/virtual/infiniband/scif0")
    node.file("sys/class/infiniband/odd/node_type", "1: CA\n")
    node.file("sys/class/infiniband/none/ports/abc/state", "4: ACTIVE\n")
    found = node.probe()
    assert found.hcas == ()
    assert not problems_of(found)
    for text in ("scif0", "odd", "none"):
        assert text in words(found.problems)


def test_a_device_is_known_by_its_event_where_links_are_gone(node: Node) -> None:
    # `cp -rL` of a sysfs: folders where links were.
    folder = "sys/class/infiniband/mlx5_0"
    event = "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SLOT_NAME=0000:1A:00.0\n"
    node.file(f"{folder}/device/uevent", event)
    node.file(f"{folder}/device/numa_node", "1\n")
    node.port("mlx5_0", link="InfiniBand")
    (hca,) = node.probe().hcas
    assert (hca.pci, hca.pci_id, hca.driver) == ("0000:1a:00.0", "15b3:1021", "mlx5_core")
    assert hca.numa_node == 1


def test_vlans_and_addresses_of_roce_come_from_its_gids(node: Node) -> None:
    gids = classical("10.1.0.5", "eth2")
    gids |= {4: (mapped("10.9.0.5"), V1, "eth2.90"), 5: (mapped("10.9.0.5"), V2, "eth2.90")}
    node.hca("mlx5_0")
    node.port("mlx5_0", gids=gids)
    found = node.probe()
    assert found.hcas[0].netdevs == ("eth2", "eth2.90")
    assert {n.name: n.addresses for n in found.networks} == {
        "eth2": ("10.1.0.5",),
        "eth2.90": ("10.9.0.5",),
    }
    assert used(node.probe(exclude=["eth2.90"])) == []
    assert used(node.probe(include=["10.9.0.0/16"])) == ["mlx5_0:1"]


def test_gpus_of_other_makers_and_what_is_none(node: Node) -> None:
    for bus, kind, vendor, device in (
        (1, "0x030200", "10de", "2330"),
        (2, "0x030000", "10de", "1db4"),
        (3, "0x120000", "1002", "74a1"),
        (4, "0x0b4000", "1bcf", "001c"),
        (5, "0x0b4000", "8086", "2258"),
        (6, "0x0b4000", "8086", "4940"),
        (7, "0x030000", "1a03", "2000"),
        (8, "0x068000", "10de", "22a3"),
        (9, "0x040300", "10de", "10f1"),
    ):
        node.pci(f"pci0000:00/0000:00:0{bus}.0/0000:0{bus}:00.0", kind, vendor, device)
    found = [gpu.pci for gpu in node.probe().gpus]
    assert found == [f"0000:0{bus}:00.0" for bus in range(1, 6)]


def test_gpus_that_only_the_driver_names(node: Node) -> None:
    # hwloc's POWER9 tree: domains that are not 0, and no paths.
    for slot in ("0004:04:00.0", "0035:03:00.0"):
        text = f"Model: \t\t V100\nGPU UUID: \t GPU-{slot}\nBus Location: \t {slot}\n"
        node.file(f"proc/driver/nvidia/gpus/{slot}/information", text)
    found = node.probe().gpus
    assert [(gpu.pci, gpu.name) for gpu in found] == [
        ("0004:04:00.0", "V100"),
        ("0035:03:00.0", "V100"),
    ]
    assert found[0].uuid == "GPU-0004:04:00.0"


def test_no_version_two_is_reported(node: Node) -> None:
    node.hca("mlx5_0", hca_type="MT4103")
    node.port("mlx5_0", gids={0: (mapped("10.0.0.1"), V1, "eth0")})
    found = node.probe()
    assert used(found) == ["mlx5_0:1"]
    assert "RoCE v1" in words(problems_of(found, Severity.WARNING))
    assert V2 not in {gid.type for gid in found.hcas[0].gids}
