"""Layouts that users reported, retyped with other addresses: what each of them is to lead to."""

from __future__ import annotations

import pytest

from muster.fabric.gids import nccl_index
from muster.fabric.model import AffinityClass, Severity
from tests.agent.probe.fabric.trees import (
    LINK_LOCAL,
    V1,
    V2,
    GidRow,
    Node,
    by_key,
    classical,
    mapped,
    problems_of,
    used,
    words,
)


def pod(address: str, netdev: str) -> dict[int, GidRow]:
    """A table in a container: the entries of others look empty (NVIDIA/nccl#1573)."""
    return {
        4: (LINK_LOCAL, V1, netdev),
        5: (LINK_LOCAL, V2, netdev),
        6: (mapped(address), V1, netdev),
        7: (mapped(address), V2, netdev),
    }


def test_a_table_with_holes_in_a_pod(node: Node) -> None:
    # NVIDIA/nccl#1573
    for number in range(2):
        node.hca(f"mlx5_{number}")
        node.port(f"mlx5_{number}", gids=pod(f"10.77.{number}.12", f"net{number + 1}"), slots=16)
    found = node.probe()
    assert [hca.gid_index for hca in found.hcas] == [7, 7]
    assert [hca.addresses for hca in found.hcas] == [("10.77.0.12",), ("10.77.1.12",)]
    assert [hca.netdevs for hca in found.hcas] == [("net1",), ("net2",)]
    assert "NCCL_IB_GID_INDEX" not in found.env
    assert not problems_of(found)
    for version in ("2.19.3", "2.20.5", "2.21.5", "2.25.1"):
        assert node.probe(nccl=version).env["NCCL_IB_GID_INDEX"] == "7"
    assert "NCCL_IB_GID_INDEX" not in node.probe(nccl="2.26.2").env


def test_the_only_entries_stand_far_behind(node: Node) -> None:
    # The Run:ai document of seeds S1 and S4; k8s-rdma-shared-dev-plugin#164 starts at 14.
    for name, first in (("mlx5_bond_0", 8), ("mlx5_bond_1", 14)):
        node.hca(name)
        gid = mapped("10.0.4.9")
        gids = {first: (gid, V1, "bond0"), first + 1: (gid, V2, "bond0")}
        node.port(name, gids=gids, slots=20)
    assert [hca.gid_index for hca in node.probe().hcas] == [9, 15]


def test_an_address_before_the_link_local_ones(node: Node) -> None:
    # NVIDIA/nccl#1587
    gid = mapped("10.5.0.3")
    gids: dict[int, GidRow] = {6: (gid, V1, "net1"), 7: (gid, V2, "net1")}
    gids |= {8: (LINK_LOCAL, V1, "net1"), 9: (LINK_LOCAL, V2, "net1")}
    node.hca("mlx5_3")
    node.port("mlx5_3", gids=gids, slots=12)
    assert by_key(node.probe())["mlx5_3:1"].gid_index == 7


def test_two_hcas_in_one_network(node: Node) -> None:
    # NVIDIA/nccl#1131
    for number, netdev in enumerate(("ens3np0", "ens2np0")):
        node.hca(f"mlx5_{number}")
        gids = classical(f"192.0.2.{72 + number}", netdev)
        node.port(f"mlx5_{number}", gids=gids, slots=5)
    found = node.probe()
    assert used(found) == ["mlx5_0:1", "mlx5_1:1"]
    assert [hca.gid_index for hca in found.hcas] == [3, 3]
    (problem,) = problems_of(found)
    assert problem.severity is Severity.WARNING
    assert "ARP" in problem.what
    assert "NCCL_IB_GID_INDEX" not in node.probe(nccl="2.21.5").env
    assert node.probe(nccl="2.20.5").env["NCCL_IB_GID_INDEX"] == "3"
    # No problem is reported if each interface answers ARP only for itself.
    node.file("proc/sys/net/ipv4/conf/all/arp_ignore", "1\n")
    node.file("proc/sys/net/ipv4/conf/all/arp_announce", "2\n")
    assert not problems_of(node.probe())


def test_both_families_on_one_port(node: Node) -> None:
    # A vendor's multi-tenancy guide for rail fabrics (autoconfigured IPv6 beside IPv4).
    gids = classical("10.20.1.10", "gpu0_eth")
    sixth = "fc00:0200:0000:0002:5054:00ff:fe3b:506a"
    gids |= {4: (sixth, V1, "gpu0_eth"), 5: (sixth, V2, "gpu0_eth")}
    node.hca("mlx5_6")
    node.port("mlx5_6", gids=gids, slots=8)
    found = node.probe()
    (hca,) = found.hcas
    assert hca.gid_index == 3
    assert "NCCL_IB_ADDR_FAMILY" not in found.env
    # With NCCL_IB_ADDR_FAMILY=AF_INET6: 1 is link-local, 4 is v1.
    assert nccl_index(hca.gids, hca.gid_slots or 0, "AF_INET6") == 5
    assert hca.addresses == ("10.20.1.10", "fc00:200:0:2:5054:ff:fe3b:506a")


def test_ipv6_alone(node: Node) -> None:
    # kvcache-ai/Mooncake#1617: names that do not begin with mlx5, and a front-end card without IP.
    node.hca("rocep105s0")
    routable = "fd93:16d3:59b6:010d:0690:81ff:fe00:0001"
    gids: dict[int, GidRow] = {0: (LINK_LOCAL, V2, "enp105s0"), 1: (routable, V2, "enp105s0")}
    node.port("rocep105s0", gids=gids, slots=3)
    node.hca("rocep193s0f0")
    local: dict[int, GidRow] = {0: (LINK_LOCAL, V1, "enp193"), 1: (LINK_LOCAL, V2, "enp193")}
    node.port("rocep193s0f0", gids=local, slots=3)
    found = node.probe()
    assert used(found) == ["rocep105s0:1"]
    assert by_key(found)["rocep105s0:1"].gid_index == 1
    assert by_key(found)["rocep193s0f0:1"].gid_index is None
    assert found.env["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    assert found.env["NCCL_IB_HCA"] == "=rocep105s0:1"
    old = node.probe(nccl="2.18.3").env
    assert old["NCCL_IB_GID_INDEX"] == "1"
    assert "NCCL_IB_ADDR_FAMILY" not in old


def test_a_bond_without_an_address(node: Node) -> None:
    node.hca("mlx5_bond_0")
    gids: dict[int, GidRow] = {0: (LINK_LOCAL, V1, "bond1"), 1: (LINK_LOCAL, V2, "bond1")}
    node.port("mlx5_bond_0", gids=gids, slots=3)
    found = node.probe()
    (hca,) = found.hcas
    assert (hca.use, hca.gid_index, hca.state) == (False, None, "ACTIVE")
    assert "netdev bond1 has no IPv4/IPv6 address" in hca.reason
    assert "NCCL_IB_HCA" not in found.env
    (problem,) = problems_of(found)
    assert problem.severity is Severity.ERROR
    assert "bond1" in problem.fix
    asked = node.probe(include=["mlx5_bond_0"])
    assert used(asked) == ["mlx5_bond_0:1"]
    assert asked.hcas[0].gid_index == 0
    assert problems_of(asked, Severity.ERROR)


def test_roce_up_without_an_address_and_infiniband_down(node: Node) -> None:
    node.hca("mlx5_0")
    gids: dict[int, GidRow] = {0: (LINK_LOCAL, V1, "eth2"), 1: (LINK_LOCAL, V2, "eth2")}
    node.port("mlx5_0", gids=gids)
    node.hca("mlx5_1")
    node.port("mlx5_1", link="InfiniBand", state="1: DOWN", phys="2: Polling")
    found = node.probe()
    assert used(found) == []
    assert "NCCL_IB_HCA" not in found.env
    assert len(problems_of(found, Severity.ERROR)) == 2


def test_an_ethernet_port_of_the_same_model_as_eight_infiniband_ports(node: Node) -> None:
    # leptonai/gpud: an A100 node; only the link layer differs.
    for number in range(9):
        node.hca(f"mlx5_{number}", hca_type="MT4123")
        link = "InfiniBand" if number else "Ethernet"
        node.port(f"mlx5_{number}", link=link, rate="200 Gb/sec (4X HDR)")
    assert used(node.probe()) == [f"mlx5_{number}:1" for number in range(1, 9)]


def test_front_end_ports_that_are_down_are_no_problem(node: Node) -> None:
    # leptonai/gpud: eight up, the four for storage are not cabled.
    for number in range(12):
        compute = number not in (1, 2, 7, 8)
        node.hca(f"mlx5_{number}", hca_type="MT4129" if compute else "MT4125")
        if compute:
            node.port(f"mlx5_{number}", link="InfiniBand")
        else:
            rate = "40 Gb/sec (4X QDR)"
            node.port(f"mlx5_{number}", state="1: DOWN", phys="3: Disabled", rate=rate)
    found = node.probe()
    assert (found.fabric.used, found.fabric.expected) == (8, 8)
    assert not problems_of(found)
    assert "mlx5_7:1 is DOWN" in words(found.problems)


def test_efa_gets_advice_and_no_variable(node: Node) -> None:
    # uccl-project/uccl#163, linux-rdma/rdma-core#884
    node.hca("rdmap16s27", path="pci0000:00/0000:00:1b.0", pci_id="1d0f:efa1", node_type="7: x")
    node.port("rdmap16s27", link="Unknown")
    found = node.probe()
    (hca,) = found.hcas
    assert (hca.group, hca.use) == ("EFA", False)
    assert not [name for name in found.env if name.startswith(("NCCL_IB", "NCCL_NET", "UCX"))]
    (problem,) = problems_of(found)
    assert "aws-ofi-nccl" in problem.fix
    assert "do not set NCCL_NET=IB" in problem.fix
    assert "do not set NCCL_IB_HCA" in problem.fix


@pytest.mark.parametrize("driver", ["ice", None])
def test_four_ports_of_an_intel_card_beside_one_infiniband_port(
    node: Node, driver: str | None
) -> None:
    # prometheus/node_exporter#2846: numbers do not follow functions, and udev may rename them.
    switch = "pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:03.0"
    for name, function in (("irdma0", 0), ("irdma1", 3), ("rocep26s0f1", 1), ("rocep26s0f2", 2)):
        path = f"{switch}/0000:1a:00.{function}"
        place = node.hca(name, path=path, pci_id="8086:1593")
        if driver:
            node.link(f"{place}/../../driver", f"../../../../../../bus/pci/drivers/{driver}")
        node.port(name, rate="100 Gb/sec (4X EDR)")
    node.hca("mlx5_0", path="pci0000:3a/0000:3a:00.0/0000:3b:00.0", kind="0x020700")
    node.port("mlx5_0", link="InfiniBand", rate="200 Gb/sec (4X HDR)")
    found = node.probe()
    assert found.env["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert by_key(found)["irdma1:1"].pci == "0000:1a:00.3"
    assert {hca.group for hca in found.hcas if not hca.use} == {"iWARP"}


def test_a_management_sub_device_of_xdr(node: Node) -> None:
    # Mellanox/rdmamap#17: smi1 with four ports on the function and the interface of mlx5_0.
    path = "pci0000:00/0000:00:01.0/0000:0b:00.0"
    node.hca("mlx5_0", path=path, kind="0x020700", pci_id="15b3:1023")
    node.port("mlx5_0", link="InfiniBand", rate="800 Gb/sec (4X XDR)")
    node.file(f"sys/devices/{path}/net/ibs192/type", "32\n")
    node.hca("smi1", path=path)
    for port in range(1, 5):
        node.port("smi1", port, link="InfiniBand")
    found = node.probe()
    assert used(found) == ["mlx5_0:1"]
    assert {hca.netdevs for hca in found.hcas} == {("ibs192",)}
    assert not problems_of(found)


def test_a_virtual_machine_says_nothing_of_nearness(node: Node) -> None:
    # NVIDIA/nccl-tests#256: 27.5 GB/s in it, 475.8 on the metal.
    for number in range(8):
        node.gpu(f"pci0000:00/0000:00:01.{number}/0000:{5 + number:02x}:00.0", numa=-1)
    for number in range(8):
        path = f"pci0000:00/0000:00:02.{number}/0000:{13 + number:02x}:00.0"
        node.hca(f"mlx5_{number}", path=path, numa=-1)
        node.port(f"mlx5_{number}")
    found = node.probe()
    assert len(found.affinity) == 64
    assert {(pair.distance, pair.hops) for pair in found.affinity} == {
        (AffinityClass.UNKNOWN, None)
    }
    (problem,) = problems_of(found)
    assert "virtual PCI topology" in problem.what
    assert "NCCL_TOPO_FILE" in problem.fix
    assert len(used(found)) == 8
    # A processor without a hypervisor shows that the tree is a real one.
    node.file("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme avx2\n")
    real = node.probe()
    assert {pair.distance for pair in real.affinity} == {AffinityClass.PHB}
    assert not problems_of(real)


def test_a_cloud_that_gives_each_card_a_domain(node: Node) -> None:
    node.gpu("pci0001:00/0001:00:00.0", numa=-1)
    node.gpu("pci0002:00/0002:00:00.0", numa=-1)
    node.hca("mlx5_0", path="pci0101:00/0101:00:00.0", numa=-1, kind="0x020700")
    node.port("mlx5_0", link="InfiniBand")
    found = node.probe()
    assert used(found) == ["mlx5_0:1"]
    assert {pair.distance for pair in found.affinity} == {AffinityClass.UNKNOWN}
    assert "NCCL_TOPO_FILE" in words(problems_of(found))
    node.file("etc/nccl.conf", "NCCL_TOPO_FILE=/opt/topo.xml\n")
    assert not problems_of(node.probe())


def test_the_nearer_of_two_gpus_behind_several_switches(node: Node) -> None:
    # NVIDIA's GPUDirect Storage guide, section 4.1: both PXB, one of them nearer.
    top = "pci0000:00/0000:00:01.1/0000:01:00.0"
    lower = f"{top}/0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0/0000:06:00.0"
    node.gpu(f"{lower}/0000:07:00.0", numa=3)
    branch = f"{top}/0000:02:04.0/0000:0a:00.0"
    node.gpu(f"{branch}/0000:0b:10.0/0000:0d:00.0/0000:0e:00.0/0000:0f:00.0", numa=3)
    node.hca("mlx5_0", path=f"{branch}/0000:0b:00.0/0000:0c:00.0", numa=3)
    node.port("mlx5_0", link="InfiniBand")
    found = node.probe()
    hops = {pair.gpu: (pair.distance, pair.hops) for pair in found.affinity}
    assert hops == {
        "0000:07:00.0": (AffinityClass.PXB, 8),
        "0000:0f:00.0": (AffinityClass.PXB, 4),
    }
    assert "PXB to GPU 1" in found.hcas[0].reason


def test_storage_ports_of_the_same_model_are_identified_by_their_place(node: Node) -> None:
    # The layout of a DGX H100: twelve ConnectX-7 ports, four of them on other slots.
    compute = (0, 3, 4, 5, 6, 9, 10, 11)
    for number in range(12):
        bus = 0x10 + number * 8
        if number in compute:
            switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
            path = f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0"
            node.gpu(f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0", number // 6)
        else:
            path = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        name = f"mlx5_{number}"
        node.hca(name, path=path, numa=number // 6, kind="0x020700", hca_type="MT4129")
        node.port(name, link="InfiniBand")
    found = node.probe()
    assert used(found) == [f"mlx5_{number}:1" for number in compute]
    assert "far from all GPUs" in by_key(found)["mlx5_7:1"].reason
    assert not problems_of(found)
