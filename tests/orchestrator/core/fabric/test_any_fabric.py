"""The fabric plan for any gang: a plan whose rails agree on all nodes, or a refusal that names the
node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.protocol.observations.fabric import FabricPort, MissingPort, NodeFabric, PortGids
from muster.spec.model import Rdma
from orchestrator.core.fabric.plan import NO_IB, FabricRequest, PlanRefused, join, plan
from orchestrator.core.fabric.port_diff import unlike
from orchestrator.core.fabric.port_slots import FabricMember
from orchestrator.core.model.fabric_plan import FabricPlan, FabricTransport, NodePlan
from tests.orchestrator.core.fabrics import SLOTS

gids = st.none() | st.builds(
    PortGids,
    st.integers(0, 7),
    st.lists(st.integers(0, 7), max_size=3).map(tuple),
    st.booleans(),
)
ports = st.builds(
    FabricPort,
    name=st.sampled_from(["mlx5_0", "mlx5_1", "mlx5_10", "bnxt_re0", "x"]),
    port=st.integers(1, 2),
    pci=st.sampled_from(["", *(f"0000:{slot}:00.0" for slot in SLOTS[:4]), "odd"]),
    link_layer=st.sampled_from(["InfiniBand", "Ethernet", ""]),
    model=st.sampled_from(["MT4129", "MT4123", ""]),
    rate_gbps=st.sampled_from([400.0, 200.0, None]),
    sm_lid=st.sampled_from([None, 0, 1, 2]),
    prefix=st.sampled_from(["", "fe80:0000:0000:0000"]),
    netdev=st.sampled_from(["", "eth0", "ib0"]),
    mtu=st.sampled_from([None, 1500, 9000]),
    table=st.booleans(),
    sparse=st.booleans(),
    fourth=gids,
    sixth=gids,
)
texts = st.sampled_from(["", "because"])


@st.composite
def members(draw: st.DrawFn, name: str) -> FabricMember:
    own = tuple(draw(st.lists(ports, max_size=4)))
    missing = st.builds(MissingPort, st.just("mlx5_9:1"), st.sampled_from(["", "odd"]), texts)
    rarely = draw(st.integers(0, 7))
    fabric = NodeFabric(
        ports=own,
        missing=tuple(draw(st.lists(missing, max_size=2))),
        stops=("no library",) if rarely == 0 else (),
        unseen="too slow" if rarely == 1 else "",
        range="10.0.0.0/8" if rarely == 2 else "",
    )
    version = draw(st.sampled_from([None, (2, 14), (2, 20), (2, 22), (2, 27)]))
    return FabricMember(name, fabric, own, draw(st.sampled_from([0, 4, 8])), version)


@st.composite
def gangs(draw: st.DrawFn) -> list[FabricMember]:
    """Draw gangs with few differences: no two wholly random nodes would ever agree."""
    first = draw(members("n0"))
    gang = [first]
    for number in range(1, draw(st.integers(1, 5))):
        other = draw(st.sampled_from([None, None, "ports", "all"]))
        name = f"n{number}"
        if other is None:
            gang.append(FabricMember(name, first.fabric, first.ports, first.gpus, first.nccl))
        elif other == "ports" and first.ports:
            at = draw(st.integers(0, len(first.ports) - 1))
            own = list(first.ports)
            own[at] = draw(ports)
            fabric = replace(first.fabric, ports=tuple(own))
            gang.append(FabricMember(name, fabric, tuple(own), first.gpus, first.nccl))
        else:
            gang.append(draw(members(name)))
    return gang


def check(gang: list[FabricMember], found: FabricPlan, wish: FabricRequest) -> None:
    counts = {len(found.of(rank).hcas) for rank in range(len(gang))}
    assert counts == {len(found.rails)}
    if found.transport is not FabricTransport.RDMA:
        assert not found.rails
        assert found.transport is FabricTransport.OPEN or found.of(0).env == NO_IB
        return
    assert found.rails
    assert "NCCL_IB_DISABLE" not in found.of(0).env
    for rank, member in enumerate(gang):
        mine = found.of(rank)
        own: dict[str, list[FabricPort]] = {}
        for port in member.ports:
            own.setdefault(port.key, []).append(port)
        for key, rail in zip(mine.hcas, found.rails, strict=True):
            # A node may, here, have two ports of one name.
            assert any(unlike(port, rail) is None for port in own[key])
        assert sorted(mine.env["NCCL_IB_HCA"].removeprefix("=").split(",")) == sorted(mine.hcas)
        if wish.rdma is Rdma.PREFERRED or wish.alone:
            assert "NCCL_NET" not in mine.env


@given(gangs(), st.sampled_from(Rdma), st.booleans(), st.lists(members("met"), max_size=2))
@settings(max_examples=150, deadline=None)
def test_a_plan_or_a_refusal(
    gang: list[FabricMember], rdma: Rdma, alone: bool, met: list[FabricMember]
) -> None:
    wish = FabricRequest(rdma, alone=alone and len(gang) == 1)
    found = plan(gang, wish, met)
    if isinstance(found, PlanRefused):
        assert rdma is Rdma.REQUIRED
        names = {member.node for member in gang}
        assert found.differences
        for it in found.differences:
            assert it.node in names
            assert it.node in it.text
            assert not it.port or it.port in it.text
        assert len({it.node for it in found.differences}) == len(found.differences)
        return
    if found is None:
        assert rdma is Rdma.PREFERRED
        assert not any(member.ports for member in gang)
        return
    check(gang, found, wish)
    joined = join(found, FabricMember("n9", gang[0].fabric, gang[0].ports, 8, gang[0].nccl), wish)
    if isinstance(joined, NodePlan):
        assert len(joined.hcas) == len(found.rails)
    else:
        assert "n9" in joined


@st.composite
def of_one_layout(draw: st.DrawFn) -> list[FabricMember]:
    """Nodes with the same places, some of whose ports are down."""
    count = draw(st.integers(1, 12))
    gang = []
    for number in range(draw(st.integers(2, 5))):
        pci = draw(st.sampled_from(["", "0000:{:02x}:00.0", "0000:{:02x}:00.1"]))
        down = draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
        own = [
            FabricPort(f"mlx5_{at}", 1, pci.format(at), "Ethernet", numa_node=at)
            for at in range(count)
        ]
        used = tuple(port for port in own if port.numa_node not in down)
        missing = tuple(MissingPort(own[at].key, own[at].pci, "DOWN") for at in sorted(down))
        fabric = NodeFabric(ports=used, missing=missing)
        gang.append(FabricMember(f"n{number}", fabric, used, 8, (2, 27)))
    return gang


@given(of_one_layout(), st.sampled_from([Rdma.REQUIRED, Rdma.PREFERRED]))
@settings(max_examples=150, deadline=None)
def test_no_rail_pairs_two_places_of_one_layout(gang: list[FabricMember], rdma: Rdma) -> None:
    *gang, late = gang
    found = plan(gang, FabricRequest(rdma))
    shared = set.intersection(*({port.key for port in member.ports} for member in gang))
    if isinstance(found, PlanRefused):
        blamed = {it.node for it in found.differences}
        assert blamed <= {member.node for member in gang if member.fabric.missing}
        return
    assert found is not None
    for rank in range(len(gang)):
        assert found.of(rank).hcas == found.of(0).hcas
        assert set(found.of(rank).hcas) == shared
    joined = join(found, late, FabricRequest(rdma))
    if isinstance(joined, NodePlan):
        assert joined.hcas == found.of(0).hcas
