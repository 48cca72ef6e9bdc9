"""The summary of a probe for the coordinator: small, bounded, and enough for the plan of a gang."""

from __future__ import annotations

import ipaddress

import msgspec
import pytest

from agent.core.probe_summary import node_fabric, node_rdma
from muster.fabric.model import (
    Affinity,
    AffinityClass,
    Fabric,
    FabricProblem,
    Gid,
    Gpu,
    Hca,
    NetworkInterface,
    Probe,
    Severity,
    Software,
)
from muster.fabric.operator_rules import Rules
from muster.protocol.observations.fabric import (
    PORTS_MAX,
    TEXT_MAX,
    FabricGpu,
    FabricPort,
    MissingPort,
    NodeFabric,
    NodeRdma,
    PortGids,
)


def infiniband(name: str, pci: str, **more: object) -> Hca:
    found = Hca(
        name=name,
        port=1,
        pci=pci,
        numa_node=1,
        hca_type="MT4129",
        link_layer="InfiniBand",
        state="ACTIVE",
        rate_gbps=400.0,
        netdevs=("ibp26s0",),
        gids=(Gid(0, "fe80:0000:0000:0001:946d:ae03:0050:709a"),),
        gid_index=0,
        use=True,
        sm_lid=1,
        gid_slots=256,
    )
    return msgspec.structs.replace(found, **more)


def v4(address: str) -> str:
    number = int(ipaddress.IPv4Address(address))
    return f"0000:0000:0000:0000:0000:ffff:{number >> 16:04x}:{number & 0xFFFF:04x}"


LINK_LOCAL = "fe80:0000:0000:0000:0a00:27ff:fe00:0001"


def test_ports_go_by_pci_address_whatever_their_names() -> None:
    probe = Probe(
        hostname="n1",
        hcas=(infiniband("mlx5_0", "0000:9c:00.0"), infiniband("mlx5_10", "0000:1a:00.0")),
        networks=(NetworkInterface(name="ibp26s0", kind="infiniband", mtu=4092),),
    )
    assert [port.key for port in node_fabric(probe).ports] == ["mlx5_10:1", "mlx5_0:1"]
    assert node_fabric(probe).ports[0] == FabricPort(
        "mlx5_10",
        1,
        "0000:1a:00.0",
        "InfiniBand",
        "MT4129",
        400.0,
        1,
        1,
        "fe80:0000:0000:0001",
        "ibp26s0",
        4092,
    )


def test_both_address_families_of_a_roce_port_are_reported() -> None:
    gids = (
        Gid(0, LINK_LOCAL, "IB/RoCE v1", "eth2"),
        Gid(1, LINK_LOCAL, "RoCE v2", "eth2"),
        Gid(4, v4("10.0.0.5"), "IB/RoCE v1", "bond0", "10.0.0.5"),
        Gid(5, v4("10.0.0.5"), "RoCE v2", "bond0", "10.0.0.5"),
        Gid(7, v4("10.1.0.5"), "RoCE v2", "bond0.7", "10.1.0.5"),
    )
    hca = infiniband(
        "mlx5_0",
        "0000:1a:00.0",
        link_layer="Ethernet",
        gids=gids,
        gid_index=5,
        netdevs=("eth2",),
        addresses=("10.0.0.5", "10.1.0.5"),
        sm_lid=0,
    )
    probe = Probe(
        hostname="n1",
        hcas=(hca,),
        networks=(NetworkInterface(name="bond0", kind="bond", mtu=9000),),
    )
    (port,) = node_fabric(probe).ports
    assert (port.netdev, port.mtu, port.sm_lid, port.prefix) == ("bond0", 9000, None, "")
    assert (port.table, port.sparse) == (True, True)
    assert port.fourth == PortGids(5, (5, 7))
    assert port.sixth is None
    (port,) = node_fabric(probe, Rules(include=("10.1.0.0/16",))).ports
    assert port.fourth == PortGids(7, (5, 7), ranged=True)
    several = Rules(include=("10.1.0.0/16", "10.2.0.0/16"))
    (port,) = node_fabric(probe, several).ports
    assert port.fourth == PortGids(7, (7,), ranged=True)
    assert node_fabric(probe, several).range == ""
    own = Gid(2, v4("169.254.7.9"), "RoCE v2", "eth2", "169.254.7.9")
    before = msgspec.structs.replace(hca, gids=(*gids[:2], own, *gids[2:]))
    (port,) = node_fabric(msgspec.structs.replace(probe, hcas=(before,))).ports
    assert port.fourth == PortGids(5, (5, 7), ranged=True)
    unread = msgspec.structs.replace(hca, gids_unread=3)
    (port,) = node_fabric(msgspec.structs.replace(probe, hcas=(unread,))).ports
    assert not port.table


@pytest.mark.parametrize(
    ("kind", "device", "model"),
    [
        ("MT4129", "15b3:1021", "MT4129"),
        (None, "15b3:1021", "MT4129"),
        (None, "15B3:A2DC", "MT41692"),
        (None, "14e4:1750", "14e4:1750"),
        ("BCM57608", "14e4:1760", "BCM57608"),
        (None, "15b3:", "15b3:"),
        (None, None, ""),
    ],
)
def test_a_card_is_the_same_whatever_names_it(
    kind: str | None, device: str | None, model: str
) -> None:
    hca = infiniband("mlx5_0", "0000:1a:00.0", hca_type=kind, pci_id=device)
    (port,) = node_fabric(Probe(hostname="n1", hcas=(hca,))).ports
    assert port.model == model


def test_missing_ports_and_blockers_are_reported() -> None:
    down = infiniband(
        "mlx5_1", "0000:3c:00.0", use=False, expected=True, reason="port DOWN, Polling"
    )
    storage = infiniband(
        "mlx5_2", "0000:4d:00.0", use=False, reason="another class", usable_by_nccl_ib=True
    )
    probe = Probe(
        hostname="n1",
        hcas=(infiniband("mlx5_0", "0000:1a:00.0"), down, storage),
        fabric=Fabric(name="InfiniBand MT4129", used=1, expected=2),
        problems=(
            FabricProblem(Severity.ERROR, "mlx5_1:1 is DOWN", "look"),
            FabricProblem(Severity.ERROR, "x" * 300, "mend", stops=True),
        ),
        software=Software(
            kernel="6.8.0",
            ofed=None,
            nccl="2.27.3",
            gpudirect="dmabuf",
            nccl_conf={
                "NCCL_NET": "IB (from /etc/nccl.conf)",
                "NCCL_IB_GID_INDEX": "1 (from /etc/nccl.conf)",
                "X": "1",
            },
        ),
        fingerprint="abc",
    )
    found = node_fabric(probe)
    assert found.unused == ("mlx5_2:1",)
    assert found.group == "InfiniBand MT4129"
    assert found.missing == (MissingPort("mlx5_1:1", "0000:3c:00.0", "port DOWN, Polling"),)
    assert found.stops == ("x" * TEXT_MAX + "...",)
    assert (found.nccl, found.gpudirect, found.fingerprint) == ("2.27.3", "dmabuf", "abc")
    assert found.nccl_conf == {
        "NCCL_NET": "IB (from /etc/nccl.conf)",
        "NCCL_IB_GID_INDEX": "1 (from /etc/nccl.conf)",
    }
    assert found.versions == {"kernel": "6.8.0"}


def test_distances_of_gpus_and_ports_are_reported() -> None:
    hcas = infiniband("mlx5_0", "0000:1a:00.0"), infiniband("mlx5_1", "0000:3c:00.0")
    gpu = Gpu(index=0, pci="0000:1b:00.0", uuid="GPU-1")
    near = Affinity(gpu=gpu.pci, gpu_index=0, hca="mlx5_0", distance=AffinityClass.PXB, hops=4)
    unknown = Affinity(
        gpu=gpu.pci, gpu_index=0, hca="mlx5_1", distance=AffinityClass.UNKNOWN, hops=None
    )
    probe = Probe(hostname="n1", hcas=hcas, gpus=(gpu,), affinity=(near, unknown))
    assert [port.near for port in node_fabric(probe).ports] == [(0,), ()]
    assert node_fabric(probe).gpus == (FabricGpu("0000:1b:00.0", "GPU-1", (104, -1)),)


def test_a_node_without_devices_has_nothing_to_report() -> None:
    assert node_fabric(Probe(hostname="n1")) == NodeFabric()
    assert msgspec.json.encode(NodeFabric()) == b"{}"


def test_it_is_small_and_bounded() -> None:
    many = tuple(infiniband(f"mlx5_{n}", f"0000:{n:02x}:00.0") for n in range(100))
    gpus = tuple(Gpu(index=n, pci=f"0000:{n:02x}:01.0", uuid=f"GPU-{n:036d}") for n in range(100))
    ways = tuple(
        Affinity(gpu=gpu.pci, gpu_index=n, hca=hca.name, distance=AffinityClass.SYS, hops=7)
        for n, gpu in enumerate(gpus)
        for hca in many
    )
    probe = Probe(hostname="n1", hcas=many, gpus=gpus, affinity=ways)
    assert len(node_fabric(probe).ports) == PORTS_MAX
    assert len(msgspec.json.encode(node_fabric(probe))) < 64 << 10
    usual = Probe(hostname="n1", hcas=many[:8], gpus=gpus[:8], affinity=ways)
    assert len(msgspec.json.encode(node_fabric(usual))) < 2048


def test_it_travels_and_grows_at_its_ends() -> None:
    port = FabricPort("mlx5_0", 1, fourth=PortGids(3, (3, 5)))
    found = NodeFabric(ports=(port,), gpus=(FabricGpu("0000:1b:00.0", "", (4,)),))
    said = msgspec.json.encode(found)
    assert msgspec.json.decode(said, type=NodeFabric) == found
    older = b'{"ports": [["mlx5_0", 1]]}'
    assert msgspec.json.decode(older, type=NodeFabric).ports == (FabricPort("mlx5_0", 1),)
    longer = msgspec.json.decode(said)
    longer["ports"][0].append("something new")
    assert msgspec.convert(longer, NodeFabric, strict=False).ports == (port,)


def rdma_of(
    *hcas: Hca, problems: tuple[FabricProblem, ...] = (), unread: str = ""
) -> NodeRdma | None:
    used, expected = (sum(getattr(hca, name) for hca in hcas) for name in ("use", "expected"))
    name = "InfiniBand MT4129" if hcas else None
    fabric = Fabric(name=name, used=used, expected=expected, unread=unread)
    return node_rdma(Probe(hostname="n1", hcas=hcas, fabric=fabric, problems=problems))


def kind_of(*hcas: Hca) -> str:
    found = rdma_of(*hcas)
    assert found is not None
    return found.kind


TWO = tuple(
    infiniband(f"mlx5_{at}", f"0000:{bus}:00.0", expected=True)
    for at, bus in enumerate(("1a", "9c"))
)


def test_nodes_are_of_one_kind_where_a_plan_finds_no_difference() -> None:
    found = rdma_of(*TWO)
    assert found is not None
    assert (found.group, found.ports, found.expected) == ("InfiniBand MT4129", 2, 2)
    assert found.why == ""
    first, second = TWO
    # Names, slots, firmware and interfaces are no difference.
    renamed = msgspec.structs.replace(first, name="ibp26s0", pci="0000:1b:00.0", fw_ver="28")
    assert kind_of(renamed, second) == found.kind
    for field, value in {
        "rate_gbps": 200.0,
        "hca_type": "MT4123",
        "sm_lid": 7,
        "link_layer": "Ethernet",
        "gids": (Gid(0, "fe80:0000:0000:0002:946d:ae03:0050:709a"),),
    }.items():
        other = msgspec.structs.replace(second, **{field: value})
        assert kind_of(first, other) != found.kind
    assert kind_of(first) != found.kind


def test_a_port_that_is_down_keeps_its_place_in_the_kind() -> None:
    first, second = TWO
    lost = [msgspec.structs.replace(hca, use=False, state="DOWN") for hca in TWO]
    assert kind_of(first, lost[1]) != kind_of(lost[0], second)
    none = rdma_of(*[msgspec.structs.replace(hca, reason="port DOWN") for hca in lost])
    assert none is not None
    assert (none.ports, none.expected, none.kind) == (0, 2, "")
    assert none.why == "has no port that can be used: mlx5_0:1: port DOWN"


def test_a_blocker_leaves_no_port() -> None:
    stop = FabricProblem(
        Severity.ERROR, "libibverbs.so.1 is not installed", "install it", stops=True
    )
    found = rdma_of(*TWO, problems=(stop,))
    assert found is not None
    assert (found.ports, found.expected) == (0, 2)
    assert found.why == "cannot use RDMA: libibverbs.so.1 is not installed"


def test_a_node_with_nothing_says_so_and_one_that_cannot_look_nothing() -> None:
    assert node_rdma(None) == NodeRdma(why="has no RDMA device that jobs can use")
    assert rdma_of(unread="permission denied") is None
