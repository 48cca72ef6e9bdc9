"""Agents of one machine that see the same GPUs: of a gang is the one that suits the others."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import NodeName
from muster.protocol.link.control_channel import with_devices
from muster.protocol.observations.gpus import GpuDevice
from orchestrator.core.scheduling.placement import can_do_without, consider, never_fits
from tests.orchestrator.core.playbook import INVENTORY, Cluster, spec
from tests.orchestrator.core.scheduling.test_rendezvous import eth

HERE, THERE = "10.0.0", "10.1.0"


def join(cluster: Cluster, name: str, machine: str, network: str, fault: str = "") -> None:
    number = int(machine[1:])
    devices = tuple(
        GpuDevice(f"0000:0{at}:00.0", f"GPU-{machine}-{at}", fault=fault) for at in range(2)
    )
    described = with_devices(INVENTORY, devices)
    fields: dict[str, Any] = {
        field: getattr(described, field) for field in INVENTORY.__struct_fields__
    }
    fields |= {
        "machine_id": machine,
        "shared_host": True,
        "interfaces": eth("eth0", f"{network}.{number}/24"),
    }
    cluster.join(name, **fields)


@pytest.fixture(params=[(HERE, THERE), (THERE, HERE)], ids=["the-second-suits", "the-first-suits"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Two agents of m1, in different networks, and one of m2, which is there."""
    made = Cluster()
    for name, network in zip(("a", "b"), request.param, strict=True):
        join(made, name, "m1", network)
    join(made, "c", "m2", THERE)
    return made


def suiting(cluster: Cluster) -> str:
    return next(n for n in "ab" if THERE in repr(cluster.node(n).inventory.interfaces))


def test_the_agent_that_shares_a_network_is_chosen_of_two(cluster: Cluster) -> None:
    cluster.submit(spec(nodes=2, resources={"gpu": 1}))
    (attempt,) = cluster.job(1).attempts
    assert [task.node for task in attempt.tasks] == [suiting(cluster), "c"]


def test_a_job_that_fits_one_of_them_is_not_refused(cluster: Cluster) -> None:
    assert never_fits(cluster.state, spec(nodes=2, resources={"gpu": 1})) is None
    refusal = never_fits(cluster.state, spec(nodes=3, resources={"gpu": 1}))
    assert refusal is not None
    assert refusal.startswith("it needs 3 nodes and 2 of the 3 known can run it")


def test_a_gang_can_do_without_a_node_where_one_of_them_takes_its_place(cluster: Cluster) -> None:
    join(cluster, "d", "m3", THERE)
    wanted = spec(nodes=2, resources={"gpu": 1})
    assert can_do_without(cluster.state, wanted, frozenset({NodeName("d")}))
    assert not can_do_without(cluster.state, wanted, frozenset({NodeName("c"), NodeName("d")}))


def test_the_other_one_is_said_to_have_the_same_gpus(cluster: Cluster) -> None:
    cluster.drain("c")
    cluster.submit(spec(nodes=2, resources={"gpu": 1}))
    cluster.change(1, hold=True)
    cluster.resume("c")
    found = consider(cluster.state, cluster.job(1))
    there = suiting(cluster)
    assert found.gang == (there, "c")
    rejections = {
        it.node.name: None if it.rejection is None else it.rejection.code for it in found.verdicts
    }
    assert rejections == {"a": "same_gpus", "b": "same_gpus"} | {there: None, "c": None}


def test_agents_that_use_none_of_their_gpus_can_be_one_gang() -> None:
    cluster = Cluster()
    for name in "ab":
        join(cluster, name, "m1", HERE, fault="excluded")
    cluster.submit(spec(nodes=2))
    (attempt,) = cluster.job(1).attempts
    assert [task.node for task in attempt.tasks] == ["a", "b"]
