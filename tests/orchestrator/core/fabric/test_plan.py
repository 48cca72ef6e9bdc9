"""The fabric plan of a gang: refusals, ports left out, and the settings of each node."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from muster.protocol.observations.fabric import MissingPort, PortGids
from muster.spec.model import Rdma
from orchestrator.core.fabric.plan import NO_IB, ONLY_IB, FabricRequest, join, plan
from orchestrator.core.fabric.port_slots import FabricMember
from orchestrator.core.model.fabric_plan import FabricPlan, FabricTransport, NodePlan
from tests.orchestrator.core.fabrics import (
    OFF,
    PREFERRED,
    REQUIRED,
    changed,
    full,
    ib,
    node,
    planned,
    refused,
    roce,
    without,
)

ALL = ",".join(f"mlx5_{number}:1" for number in range(8))


def roces(name: str, *indexes: int) -> FabricMember:
    return node(name, *(roce(number, index) for number, index in enumerate(indexes)))


def test_a_gang_of_one_kind_uses_all_rails() -> None:
    found = planned([full(f"n{number}") for number in range(4)])
    assert found.transport is FabricTransport.RDMA
    assert found.text == "RDMA over 8 rails of InfiniBand MT4129, 400 Gb/s each"
    assert (len(found.rails), found.notes, found.family) == (8, (), "")
    assert found.of(3).hcas == tuple(ALL.split(","))
    assert found.of(3).env == {"NCCL_IB_HCA": f"={ALL}", "UCX_NET_DEVICES": ALL}
    assert found.of(3).netdevs == tuple(f"ib{number}" for number in range(8))
    # Said once for all of them.
    assert (len(found.kinds), found.nodes) == (1, ())


def test_nccl_may_not_fall_back_if_rdma_is_required() -> None:
    gang = [full("n1"), full("n2")]
    assert planned(gang, REQUIRED).of(0).env == planned(gang).of(0).env | ONLY_IB
    # A gang with a network plugin of its own for NCCL keeps it.
    found = planned(gang, FabricRequest(Rdma.REQUIRED, plugins=frozenset({"n2"})))
    assert found.of(0).env.items() >= ONLY_IB.items()
    assert not found.of(1).env.keys() & ONLY_IB.keys()
    conf = {"NCCL_NET_PLUGIN": "hpcx (from /etc/nccl.conf)"}
    found = planned([full("n1", nccl_conf=conf), full("n2", nccl_conf=conf)], REQUIRED)
    assert not found.of(0).env.keys() & ONLY_IB.keys()


def test_off_is_honest() -> None:
    found = planned([full("n1"), full("n2")], OFF)
    assert (found.transport, found.text) == (
        FabricTransport.TCP,
        "TCP, as set in the job (rdma: off)",
    )
    assert found.of(1) == NodePlan(env=NO_IB)
    assert planned([node("n1"), node("n2")], OFF).of(0).env == NO_IB


def test_names_do_not_matter_slots_do() -> None:
    """OCI's images call the same function mlx5_0 and mlx5_18."""
    other = node("n2", *(replace(ib(number), name=f"mlx5_{17 - number}") for number in range(8)))
    found = planned([full("n1"), other], REQUIRED)
    assert found.of(0).hcas[0] == "mlx5_0:1"
    assert found.of(1).hcas[0] == "mlx5_17:1"
    assert found.of(1).env["NCCL_IB_HCA"].startswith("=mlx5_10:1,mlx5_11:1,")
    assert found.rails[0].pci == ib(0).pci


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        pytest.param(
            changed("n3", 3, rate_gbps=200.0),
            "n3: mlx5_3:1 runs at 200 Gb/s (rail 3), those of 3 others run at 400 Gb/s",
            id="rate",
        ),
        pytest.param(
            changed("n3", 3, link_layer="Ethernet"),
            "n3: mlx5_3:1 is Ethernet (rail 3), those of 3 others are InfiniBand",
            id="link layer",
        ),
        pytest.param(
            changed("n3", 3, model="MT4123"),
            "n3: mlx5_3:1 is an MT4123 (rail 3), those of 3 others are an MT4129",
            id="model",
        ),
        pytest.param(
            changed("n3", 3, sm_lid=7),
            "n3: mlx5_3:1 has the subnet manager at LID 7 (rail 3), those of 3 others have the "
            "subnet manager at LID 1",
            id="subnet manager",
        ),
        pytest.param(
            changed("n3", 3, prefix="fec0:0000:0000:0001"),
            "n3: mlx5_3:1 is in the subnet fec0:0000:0000:0001 (rail 3), those of 3 others are in "
            "the subnet fe80:0000:0000:0000",
            id="subnet",
        ),
        pytest.param(
            without("n3", 3),
            "n3: mlx5_3:1 cannot be used: port DOWN, Polling; it has 7 of 8 ports",
            id="a port is down",
        ),
        pytest.param(
            node("n3", *(ib(number) for number in range(8) if number != 3)),
            "n3 has 7 ports of its HCAs and no port at 0000:5e:00.0 for rail 3, others have 8",
            id="a port is not there",
        ),
    ],
)
def test_a_node_that_differs_on_a_rail(odd: FabricMember, text: str) -> None:
    gang = [full("n1"), full("n2"), odd, full("n4")]
    no = refused(gang)
    assert [it.node for it in no.differences] == ["n3"]
    assert no.text == f"rdma: required, but {text}"
    assert no.differences[0].port in ("mlx5_3:1", "0000:5e:00.0")
    found = planned(gang)
    assert found.transport is FabricTransport.RDMA
    rest = tuple(f"mlx5_{number}:1" for number in range(8) if number != 3)
    assert {found.of(rank).hcas for rank in range(4)} == {rest}
    assert found.text == (f"RDMA over 7 of 8 rails of InfiniBand MT4129, 400 Gb/s each; {text}")
    assert planned(gang, OFF).of(2).env == NO_IB


def test_the_mtu_of_roce_is_compared_and_that_of_infiniband_is_not() -> None:
    assert planned([full("n1"), changed("n2", 0, mtu=2044)], REQUIRED).notes == ()
    first = [roces("n1", 3, 3), roces("n2", 3, 3)]
    odd = changed("n3", 1, roce, 2, mtu=1500)
    no = refused([*first, odd])
    assert no.text == (
        "rdma: required, but n3: mlx5_1:1 has MTU 1500 (rail 1), those of 2 others have MTU 9000"
    )
    assert planned([*first, odd]).of(0).hcas == ("mlx5_0:1",)
    # An unknown value counts as equal.
    planned([*first, changed("n3", 1, roce, 2, mtu=None, rate_gbps=None, model="")], REQUIRED)


def test_the_slower_of_two_different_nodes_is_at_fault() -> None:
    slow = changed("n1", 0, rate_gbps=100.0)
    no = refused([slow, full("n2")])
    assert no.text == (
        "rdma: required, but n1: mlx5_0:1 runs at 100 Gb/s (rail 0), mlx5_0:1 of n2 runs at "
        "400 Gb/s"
    )
    assert refused([full("n2"), slow]).differences[0].node == "n1"


def test_nodes_met_before_say_which_of_two_is_unusual() -> None:
    odd, usual = changed("n1", 0, sm_lid=9), full("n2")
    assert refused([odd, usual]).differences[0].node == "n2"
    no = refused([odd, usual], met=[full("n3")])
    assert no.differences[0].node == "n1"
    # A difference of a node outside the gang is not reported.
    planned([full("n1"), full("n2")], REQUIRED, met=[odd, odd, odd, without("n4", 2)])


def test_each_node_that_is_to_blame_is_named_once() -> None:
    gang = [full("n1"), full("n2"), full("n3"), without("n4", 1), changed("n5", 2, sm_lid=3)]
    gang[4] = replace_ports(gang[4], 3, rate_gbps=100.0)
    no = refused(gang)
    assert {it.node for it in no.differences} == {"n4", "n5"}
    assert no.text.endswith("(and 1 more node)")


def replace_ports(member: FabricMember, number: int, **values: object) -> FabricMember:
    ports = list(member.ports)
    ports[number] = replace(ports[number], **values)
    return node(member.node, *ports)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (node("n2"), "n2 has no RDMA device that jobs can use"),
        (
            node("n2", stops=("libibverbs.so.1 is not installed",)),
            "n2 cannot use RDMA: libibverbs.so.1 is not installed",
        ),
        (
            full("n2", stops=("there is no /dev/infiniband",)),
            "n2 cannot use RDMA: there is no /dev/infiniband",
        ),
        (
            node("n2", missing=(MissingPort("mlx5_0:1", "0000:1a:00.0", "port DOWN, Disabled"),)),
            "n2 has no port that can be used: mlx5_0:1: port DOWN, Disabled",
        ),
        (
            node("n2", unseen="its agent does not report it"),
            "n2 does not know its RDMA equipment: its agent does not report it",
        ),
        (
            node("n2", unused=("mlx5_4:1",)),
            "n2 has no port that is for jobs (mlx5_4:1 is not: muster probe says why)",
        ),
    ],
)
def test_a_node_without_rdma(odd: FabricMember, why: str) -> None:
    gang = [full("n1"), odd, full("n3")]
    assert refused(gang).text == f"rdma: required, but {why}"
    found = planned(gang)
    # Some with InfiniBand and some without would wait for each other for ever.
    assert (found.transport, found.text) == (FabricTransport.TCP, f"TCP: {why}")
    assert found.of(0).env == NO_IB


def test_none_with_rdma() -> None:
    gang = [node("n1"), node("n2")]
    assert plan(gang, PREFERRED) is None
    assert [it.node for it in refused(gang).differences] == ["n1", "n2"]
    assert planned([node("n1", stops=("x",)), node("n2", stops=("x",))]).of(0).env == NO_IB
    # NCCL would take what an operator has excluded.
    assert planned([node("n1", unused=("mlx5_0:1",)), node("n2")]).of(0).env == NO_IB


def test_a_single_node_needs_no_others() -> None:
    alone = FabricRequest(Rdma.REQUIRED, alone=True)
    assert plan([node("n1")], FabricRequest(alone=True)) is None
    assert planned([node("n1")], alone).transport is FabricTransport.OPEN
    found = planned([without("n1", 3)], alone)
    assert len(found.of(0).hcas) == 7
    assert not found.of(0).env.keys() & ONLY_IB.keys()


def test_a_node_with_fewer_gpus_has_fewer_rails() -> None:
    half = full("n2", 4, gpus=4)
    found = planned([full("n1"), half, full("n3")], REQUIRED)
    assert {found.of(rank).hcas for rank in range(3)} == {
        ("mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1")
    }
    assert found.text == (
        "RDMA over 4 of 8 rails of InfiniBand MT4129, 400 Gb/s each; a node with fewer GPUs has no "
        "more"
    )
    # With as many GPUs it lacks them.
    no = refused([full("n1"), full("n2", 4), full("n3")])
    assert no.text == (
        "rdma: required, but n2 has 4 ports of its HCAs and no port at 0000:9c:00.0 for rail 4, "
        "others have 8"
    )
    # The ports that the node does have must work.
    broken = node(
        "n2",
        *(ib(at) for at in range(3)),
        gpus=4,
        missing=(MissingPort("mlx5_3:1", ib(3).pci, "x"),),
    )
    assert "mlx5_3:1 cannot be used: x" in refused([full("n1"), broken]).text


def test_machines_of_another_make_go_by_their_places() -> None:
    ports = [replace(ib(at), pci=f"0001:{at + 1:02x}:00.0", name=f"rdma{at}") for at in range(8)]
    found = planned([full("n1"), full("n2"), node("n3", *ports)], REQUIRED)
    assert found.of(2).hcas == tuple(f"rdma{at}:1" for at in range(8))
    assert found.rails[0].pci == ""
    # From a node with more ports, the plan takes those that match the ports of the others.
    extra = replace(ib(0), pci="0001:00:00.0", name="slow", rate_gbps=100.0)
    found = planned([full("n1"), full("n2"), node("n3", extra, *ports)], REQUIRED)
    assert found.of(2).hcas == tuple(f"rdma{at}:1" for at in range(8))


def test_slots_that_are_not_known_go_by_their_places() -> None:
    ports = [replace(ib(at), pci="") for at in range(8)]
    found = planned([node("n1", *ports), node("n2", *ports), full("n3")], REQUIRED)
    assert len(found.rails) == 8


def test_two_that_miss_different_ports_share_the_rest() -> None:
    found = planned([without("n1", 2), without("n2", 5), full("n3")])
    rest = tuple(f"mlx5_{number}:1" for number in range(8) if number not in (2, 5))
    assert {found.of(rank).hcas for rank in range(3)} == {rest}
    # Without a third that has all of them, too.
    found = planned([without("n1", 2), without("n2", 5)])
    assert found.of(0).hcas == rest
    no = refused([without("n1", 2), without("n2", 5)])
    assert [it.port for it in no.differences] == ["mlx5_2:1", "mlx5_5:1"]


def test_a_port_that_no_node_has_is_no_difference() -> None:
    """The second port of a card with two ports may be cabled nowhere."""
    found = planned([without("n1", 2), without("n2", 2)], REQUIRED)
    assert (len(found.rails), found.notes) == (7, ())
    assert found.text == (
        "RDMA over 7 of 8 rails of InfiniBand MT4129, 400 Gb/s each; no node can use rail 2 "
        "(mlx5_2:1 of n1: port DOWN, Polling)"
    )


def test_no_rail_in_common_is_tcp() -> None:
    found = planned([full("n1"), node("n2", *(roce(at) for at in range(8)))])
    assert found.transport is FabricTransport.TCP
    assert found.text.startswith("TCP: n2: mlx5_0:1 is Ethernet (rail 0), mlx5_0:1 of n1 is Inf")
    assert len(found.notes) == 7


@pytest.mark.parametrize(
    ("version", "indexes", "env"),
    [
        ((2, 20), (3, 3), {"NCCL_IB_GID_INDEX": "3"}),
        ((2, 27), (3, 3), {}),
        (None, (3, 3), {}),
    ],
)
def test_the_gid_index_is_for_old_versions_only(
    version: tuple[int, int] | None, indexes: tuple[int, ...], env: dict[str, str]
) -> None:
    gang = [replace_version(roces(name, *indexes), version) for name in ("n1", "n2")]
    found = planned(gang, REQUIRED)
    assert found.of(0).env == {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
        **env,
        **ONLY_IB,
    }


def replace_version(member: FabricMember, version: tuple[int, int] | None) -> FabricMember:
    return FabricMember(member.node, member.fabric, member.ports, member.gpus, version)


def test_each_node_has_its_own_gid_index() -> None:
    """multus-cni 1100: 5 on one and 7 on the other, in the same job."""
    gang = [replace_version(roces(name, at, at), (2, 18)) for name, at in (("n1", 5), ("n2", 7))]
    found = planned(gang, REQUIRED)
    assert [found.of(rank).env["NCCL_IB_GID_INDEX"] for rank in (0, 1)] == ["5", "7"]
    assert found.nodes == (0, 1)


def test_no_single_index_fits_all_ports() -> None:
    gang = [
        replace_version(roces("n1", 3, 3, 5), (2, 18)),
        replace_version(roces("n2", 3, 3, 3), (2, 18)),
    ]
    no = refused(gang)
    assert no.text == (
        "rdma: required, but n1: NCCL 2.18 takes one GID index for all HCAs, but mlx5_0:1 needs 3, "
        "mlx5_1:1 needs 3, mlx5_2:1 needs 5"
    )
    found = planned(gang)
    assert found.of(0).hcas == found.of(1).hcas == ("mlx5_0:1", "mlx5_1:1")
    assert found.of(0).env["NCCL_IB_GID_INDEX"] == "3"
    # Nothing is to be had where the index of none is known.
    unknown = [replace(roce(at), fourth=None, table=False) for at in range(2)]
    gang = [replace_version(node(name, *unknown), (2, 18)) for name in ("n1", "n2")]
    assert planned(gang).transport is FabricTransport.TCP


def test_a_single_address_family_for_all_nodes() -> None:
    six = PortGids(1, (1,))
    both = [replace(roce(at), sixth=six) for at in range(2)]
    only6 = [replace(port, fourth=None) for port in both]
    found = planned([node("n1", *both), node("n2", *only6), node("n3", *only6)], REQUIRED)
    assert found.family == "AF_INET6"
    assert found.of(0).env["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    only4 = [roce(at) for at in range(2)]
    no = refused([node("n1", *only4), node("n2", *only6), node("n3", *both)])
    assert no.text == (
        "rdma: required, but n2: mlx5_0:1 (eth0) has no IPv4 address that NCCL would take, as the "
        "others have"
    )


def test_the_operator_s_network_is_reported_where_nccl_would_take_another() -> None:
    ports = [replace(roce(at), fourth=PortGids(5, (3, 5), ranged=True)) for at in range(2)]
    gang = [node(name, *ports, range="10.1.0.0/16") for name in ("n1", "n2")]
    assert planned(gang).of(0).env["NCCL_IB_ADDR_RANGE"] == "10.1.0.0/16"


def test_the_index_is_given_where_nccl_would_take_another_and_no_network_is_named() -> None:
    led = [roce(number, 5, fourth=PortGids(5, (5,), ranged=True)) for number in range(2)]
    for version in ((2, 20), (2, 22), (2, 27), None):
        (kind,) = planned([node(name, *led, nccl=version) for name in ("n1", "n2")]).kinds
        assert kind.env["NCCL_IB_GID_INDEX"] == "5"
    found = planned([node("n1", led[0], roce(1)), node("n2", led[0], roce(1))])
    assert "takes one GID index for all HCAs" in found.text


def filed(name: str, value: str, *, file: str = "/etc/nccl.conf") -> dict[str, str]:
    return {name: f"{value} (from {file})"}


@pytest.mark.parametrize(
    ("conf", "values", "note"),
    [
        (filed("NCCL_IB_GID_INDEX", "1"), {"NCCL_IB_GID_INDEX": "-1"}, "the plan -1"),
        # NCCL would choose the same itself.
        (filed("NCCL_IB_GID_INDEX", "3"), {}, ""),
        (filed("NCCL_IB_GID_INDEX", "-1"), {}, ""),
        (filed("NCCL_IB_ADDR_FAMILY", "AF_INET6"), {"NCCL_IB_ADDR_FAMILY": "AF_INET"}, "AF_INET:"),
        (filed("NCCL_IB_ADDR_FAMILY", "AF_INET"), {}, ""),
        (filed("NCCL_IB_ADDR_RANGE", "10.1.0.0/16"), {}, "of this network alone"),
    ],
)
def test_a_file_of_nccl_s_does_not_undo_the_plan(
    conf: dict[str, str], values: dict[str, str], note: str
) -> None:
    def env_of(found: FabricPlan) -> dict[str, str]:
        made = found.of(0).env
        return {name: text for name, text in made.items() if "GID" in name or "ADDR" in name}

    gang = [node(name, roce(0), roce(1), nccl_conf=conf) for name in ("n1", "n2")]
    found = planned(gang)
    assert env_of(found) == values
    assert len(found.notes) == (1 if note else 0)
    if note:
        assert found.notes[0].startswith("n1 and 1 more node: /etc/nccl.conf sets NCCL_IB_")
        assert note in found.notes[0]
    # InfiniBand has no such addresses.
    infiniband = planned([full(name, nccl_conf=conf) for name in ("n1", "n2")])
    assert (env_of(infiniband), infiniband.notes) == ({}, ())


def test_a_setting_that_overrides_a_file_is_reported() -> None:
    conf = filed("NCCL_IB_GID_INDEX", "1", file="/root/.nccl.conf")
    old = (2, 20)
    gang = [node("n1", roce(0), nccl=old, nccl_conf=conf), node("n2", roce(0), nccl=old)]
    found = planned(gang)
    assert "n1: /root/.nccl.conf sets NCCL_IB_GID_INDEX=1, the plan 3" in found.notes[0]


def test_a_file_of_the_job_s_own_for_nccl_is_named() -> None:
    gang = [full("n1"), full("n2")]
    (note,) = planned(gang, FabricRequest(conf="/data/nccl.conf")).notes
    assert "NCCL_CONF_FILE=/data/nccl.conf" in note


def test_another_nccl_is_refused_where_rdma_is_required() -> None:
    gang = [full("n1"), replace_version(full("n2"), (2, 21)), full("n3")]
    assert refused(gang).text == "rdma: required, but n2 has NCCL 2.21, 2 others 2.27"
    assert planned(gang).transport is FabricTransport.RDMA
    # An unknown value counts as equal.
    planned([full("n1"), replace_version(full("n2"), None)], REQUIRED)


def test_more_ports_than_nccl_takes() -> None:
    ports = [replace(ib(0), pci=f"0000:{at:02x}:00.0", name=f"mlx5_{at}") for at in range(20)]
    gang = [replace_version(node(name, *ports), (2, 14)) for name in ("n1", "n2")]
    found = planned(gang)
    assert len(found.of(0).hcas) == 16
    assert found.text.endswith("; 16 of 20 rails are used: NCCL takes no more")


def test_a_node_joins_a_gang_that_its_ports_fit() -> None:
    for wish in (PREFERRED, REQUIRED):
        gang = planned([full("n1"), full("n2")], wish)
        joined = join(gang, full("n3"), wish)
        assert joined == gang.of(0)
        for odd, why in (
            (node("n3"), "n3 has no RDMA device that jobs can use, and its gang uses RDMA"),
            (without("n3", 2), "n3 has no port for rail 2 of its gang"),
            (
                changed("n3", 2, rate_gbps=200.0),
                "n3: mlx5_2:1 runs at 200 Gb/s, and the one of its gang runs at 400 Gb/s",
            ),
        ):
            assert join(gang, odd, wish) == why


def test_a_node_joins_a_gang_that_uses_tcp() -> None:
    gang = planned([full("n1"), node("n2")])
    assert join(gang, full("n3"), PREFERRED) == NodePlan(env=NO_IB)
    assert join(None, node("n3"), PREFERRED) == NodePlan()
    # The others have nothing: it must not begin with what it has.
    assert join(None, full("n3"), PREFERRED) == NodePlan(env=NO_IB)


def test_it_travels() -> None:
    for gang in ([full("n1"), without("n2", 3)], [roces("n1", 5), roces("n2", 7)], [full("n1")]):
        found = planned(gang)
        assert msgspec.json.decode(msgspec.json.encode(found), type=FabricPlan) == found


EFA = "rdmap0s6:1: EFA needs the aws-ofi-nccl plugin (libfabric)"


def test_devices_for_a_plugin_are_named_and_left_to_it() -> None:
    gang = [node("n1", unfit=(EFA,)), node("n2", unfit=(EFA,))]
    text = f"n1 has no RDMA device that NCCL can use without a plugin: {EFA}"
    assert refused(gang).text.startswith(f"rdma: required, but {text}")
    found = planned(gang, FabricRequest(Rdma.REQUIRED, plugin="NCCL_NET_PLUGIN=ofi"))
    assert found == FabricPlan(FabricTransport.OPEN, "left to the plugin NCCL_NET_PLUGIN=ofi")
    assert plan(gang, PREFERRED) is None


def test_the_job_s_own_setting_turns_rdma_off() -> None:
    found = planned([full("n1"), full("n2")], FabricRequest(sockets="NCCL_NET=Socket"))
    assert found.text == "TCP: the job's own NCCL_NET=Socket turns RDMA off"
    assert found.of(1).env == NO_IB
