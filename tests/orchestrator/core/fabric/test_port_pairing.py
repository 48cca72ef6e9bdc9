"""Rails: which ports of the nodes go together, where some are down or near other GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from muster.protocol.observations.fabric import FabricPort, MissingPort, NodeFabric
from orchestrator.core.fabric.plan import join
from orchestrator.core.fabric.port_slots import FabricMember
from orchestrator.core.model.fabric_plan import NodePlan
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

ALL = tuple(f"mlx5_{number}:1" for number in range(8))


def unplaced(name: str, count: int, *down: int, pci: str = "") -> FabricMember:
    """Make a node with `count` ports, of which these are down; `pci` has the form 0000:{}1:00.0."""

    def slot(number: int) -> str:
        return pci.format(number + 1)

    ports = [
        FabricPort(f"mlx5_{at}", 1, slot(at), "Ethernet", "MT4129", 400.0)
        for at in range(count)
        if at not in down
    ]
    missing = (MissingPort(f"mlx5_{at}:1", slot(at), "port DOWN, Polling") for at in down)
    return node(name, *ports, missing=tuple(missing))


@pytest.mark.parametrize("kinds", [("", ""), ("0000:{}0:00.0", "0000:{}1:00.0")])
@pytest.mark.parametrize(
    ("count", "one", "other"),
    [
        pytest.param(12, (0, 3), (5, 11), id="as many down"),
        pytest.param(12, (), (5, 11), id="of one two"),
        pytest.param(4, (), (1,), id="one"),
        pytest.param(4, (3,), (), id="the last one"),
        pytest.param(4, (0, 1), (0, 1), id="the same"),
    ],
)
def test_a_port_that_is_down_does_not_shift_the_others(
    count: int, one: tuple[int, ...], other: tuple[int, ...], kinds: tuple[str, str]
) -> None:
    if kinds[0] and count > 9:
        kinds = ("0000:{:02}:00.0", "0000:{:02}:00.1")
    gang = [unplaced("n1", count, *one, pci=kinds[0]), unplaced("n2", count, *other, pci=kinds[1])]
    rest = tuple(f"mlx5_{at}:1" for at in range(count) if at not in (*one, *other))
    found = planned(gang)
    assert (found.of(0).hcas, found.of(1).hcas) == (rest, rest)
    assert found.text.startswith(f"RDMA over {len(rest)} of {count} rails of ")
    assert "port DOWN, Polling" in found.text
    if one != other:
        blamed = [name for name, down in (("n1", one), ("n2", other)) if down]
        assert [it.node for it in refused(gang).differences] == blamed
    # A node that joins later uses the ports at the same positions.
    for wish in (PREFERRED, OFF):
        gang_plan = planned(gang, wish)
        joined = join(gang_plan, unplaced("n3", count, pci=kinds[0]), wish)
        assert isinstance(joined, NodePlan)
        assert joined.hcas == gang_plan.of(0).hcas


def test_names_are_in_their_natural_order() -> None:
    ports = [replace(roce(0), name=f"mlx5_{at}", pci="") for at in (0, 1, 10, 11, 2)]
    down = MissingPort("mlx5_9:1", "", "port DOWN, Polling")
    found = planned([node("n1", *ports, missing=(down,)), unplaced("n2", 6)])
    assert found.of(0).hcas == ("mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_10:1", "mlx5_11:1")
    assert found.of(1).hcas == ("mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_4:1", "mlx5_5:1")


def test_both_ports_of_one_function_are_rails() -> None:
    pair = [replace(ib(0), name="mlx4_0", port=at) for at in (1, 2)]
    assert planned([node("n1", *pair), node("n2", *pair)]).of(1).hcas == ("mlx4_0:1", "mlx4_0:2")


def part(name: str, *near: int, make: Any = ib, down: tuple[int, ...] = ()) -> FabricMember:
    """A node of which the job has the GPUs near some ports."""
    ports = [make(at) for at in range(8) if at not in down]
    missing = tuple(MissingPort(f"mlx5_{at}:1", ib(at).pci, "port DOWN, Polling") for at in down)
    fabric = NodeFabric(ports=tuple(ports), missing=missing)
    names = {f"mlx5_{at}" for at in near}
    return FabricMember(name, fabric, tuple(it for it in ports if it.name in names), 4, (2, 27))


def ib_apart(number: int) -> FabricPort:
    """Make a port of a fabric in which each rail has a subnet manager of its own."""
    return ib(number, sm_lid=number + 1)


LOW, HIGH = (0, 1, 2, 3), (4, 5, 6, 7)


def test_parts_of_nodes_with_the_same_gpus_have_fewer_rails() -> None:
    found = planned([part("n1", *LOW), part("n2", *LOW)], REQUIRED)
    assert found.text == "RDMA over 4 rails of InfiniBand MT4129, 400 Gb/s each"
    assert found.of(1).hcas == tuple(f"mlx5_{at}:1" for at in LOW)
    no = refused([part("n1", *LOW), part("n2", 0, 1, 3, down=(2,)), part("n3", *LOW)])
    assert [it.node for it in no.differences] == ["n2"]
    assert "n2: mlx5_2:1 cannot be used: port DOWN, Polling" in no.text


def test_parts_with_other_gpus_are_paired_in_one_subnet() -> None:
    for wish in (PREFERRED, REQUIRED):
        found = planned([part("n1", *HIGH), part("n2", *LOW)], wish)
        assert found.of(0).hcas == tuple(f"mlx5_{at}:1" for at in HIGH)
        assert found.of(1).hcas == tuple(f"mlx5_{at}:1" for at in LOW)
        assert found.text == "RDMA over 4 rails of InfiniBand MT4129, 400 Gb/s each"
        assert "are paired in their order" in found.notes[0]
        assert join(found, part("n3", *HIGH), wish) == found.of(0)


def test_parts_with_other_gpus_use_all_rails_where_these_may_be_apart() -> None:
    for make in (ib_apart, roce):
        gang = [part("n1", *HIGH, make=make), part("n2", *LOW, make=make)]
        found = planned(gang, REQUIRED)
        assert found.of(0).hcas == found.of(1).hcas == ALL
        assert "all ports are used" in found.notes[0]
        assert join(found, part("n3", *LOW, make=make), REQUIRED) == found.of(0)
        # Only the ports that are near GPUs on all nodes are used.
        gang[1] = part("n2", 2, 3, 4, 5, make=make)
        found = planned(gang, REQUIRED)
        assert found.of(0).hcas == found.of(1).hcas == ("mlx5_4:1", "mlx5_5:1")
        assert "those are used that are near on all nodes" in found.text


def test_another_nccl_is_noted_where_rdma_is_preferred() -> None:
    old = replace(full("n2"), nccl=(2, 21))
    found = planned([full("n1"), old, full("n3")])
    assert len(found.rails) == 8
    assert found.notes == ("n2 has NCCL 2.21, 2 others 2.27",)
    # It is not why there are fewer rails.
    found = planned([full("n1"), old, without("n3", 2)])
    assert "mlx5_2:1 cannot be used" in found.text
    assert found.notes == ("n2 has NCCL 2.21, 2 others 2.27",)
    found = planned([without("n1", 2), replace(without("n2", 2), nccl=(2, 21))])
    assert "no node can use rail 2" in found.text
    assert found.notes == ("n2 has NCCL 2.21, 1 other 2.27",)


@pytest.mark.parametrize(
    ("model", "text"),
    [("15b3:1021", "is a 15b3:1021"), ("MT4123", "is an MT4123"), ("BCM57608", "is a BCM57608")],
)
def test_the_article_is_that_of_the_word(model: str, text: str) -> None:
    no = refused([full("n1"), changed("n2", 0, model=model), full("n3")])
    assert f"n2: mlx5_0:1 {text} (rail 0)" in no.text


def near(name: str, *gpus: tuple[int, ...], **more: Any) -> FabricMember:
    """Its n-th port has these GPUs nearest to it."""
    ports = [ib(at, near=own) for at, own in enumerate(gpus)]
    return node(name, *ports, **more)


def test_gpus_near_other_rails_than_on_other_nodes_are_noted() -> None:
    straight = [near(f"n{at}", (0,), (1,), (2,), (3,)) for at in (1, 2)]
    crossed = [near(name, (0,), (2,), (1,), (3,)) for name in ("n3", "n4")]
    for wish in (PREFERRED, REQUIRED):
        assert planned(straight, wish).notes == ()
        found = planned([*straight, *crossed], wish)
        # It is no reason not to run.
        assert len(found.rails) == 4
        (note,) = found.notes
        assert note == (
            "n3: GPU 1 is nearest to rail 2, that of n1 to rail 1: its traffic crosses from rail "
            "to rail (so it is with 2 GPUs of 2 nodes)"
        )


def test_an_unknown_distance_is_no_difference() -> None:
    known, unknown = near("n1", (0, 1), (2, 3)), near("n2", (), ())
    assert planned([unknown, known]).notes == ()
    # A smaller node has the GPUs that it has.
    assert planned([near("n1", (0,), (1,), gpus=2), near("n2", (1,), (0, 2), gpus=3)]).notes != ()
    assert planned([near("n1", (0,), (1,), gpus=2), near("n2", (0, 2), (1,), gpus=3)]).notes == ()


def with_settings(name: str, **settings: str) -> FabricMember:
    member = full(name, 2)
    return replace(member, fabric=replace(member.fabric, settings=settings))


def test_settings_of_the_site_are_reported_to_each_node() -> None:
    topology = [
        with_settings(name, NCCL_IB_TC="41", NCCL_TOPO_FILE=f"/{name}") for name in ("n1", "n2")
    ]
    found = planned(topology)
    assert [found.of(at).env["NCCL_TOPO_FILE"] for at in (0, 1)] == ["/n1", "/n2"]
    assert found.of(1).env["NCCL_IB_TC"] == "41"
    assert found.notes == ()
    found = planned([topology[0], with_settings("n2", NCCL_TOPO_FILE="/n2")])
    assert found.notes == (
        "NCCL_IB_TC is 41 on n1 and not set on n2 (fabric.settings of their agents)",
    )
    # A job by TCP has none of them.
    assert "NCCL_IB_TC" not in planned(topology, OFF).of(0).env


def test_an_old_ucx_gets_the_entry() -> None:
    def old(name: str, index: int, ucx: str) -> FabricMember:
        member = node(name, roce(0, index), roce(1, index))
        return replace(member, fabric=replace(member.fabric, ucx=ucx))

    found = planned([old("n1", 3, "1.4.0"), old("n2", 5, "1.18.0")])
    assert found.of(0).env["UCX_IB_GID_INDEX"] == "3"
    assert "UCX_IB_GID_INDEX" not in found.of(1).env
