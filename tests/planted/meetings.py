"""Bugs of the coordinator's core that show only where two rare things meet: nodes that are at fault
at once, gangs that leave several nodes at once, and long leases on nodes that are cut off for long.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.spec.model import JobSpec
from orchestrator.core.engine import apply, turn
from orchestrator.core.facts import service as sf
from orchestrator.core.model.limits import Limits, Quarantine
from orchestrator.core.model.state import State
from tests.orchestrator.core.playbook import Cluster, spec, task
from tests.planted import Bug, put, wrap


def no_more_than_a_share_of_a_pool_is_quarantined(_: Path) -> None:
    """A node that was spared before fails again, together with another."""
    cluster = Cluster(limits=Limits(quarantine=Quarantine(jobs=1, pool_share=0.25)))
    cluster.join("a", "b", "c", "d")
    for number, name in enumerate(("c", "a"), 1):
        cluster.submit(spec(placement={"include": [name]}, retry={"infra": 0}))
        cluster.refuse(task(number, 1, 0), "disk_broken", node_fault=True)
        cluster.clean(task(number, 1, 0))
        cluster.beat(2)
    cluster.resume("c")
    cluster.submit(spec(nodes=2, placement={"include": ["a", "b"]}))
    cluster.run_gang(max(cluster.state.jobs))
    for name in ("a", "b"):
        cluster.leave(name)
    cluster.beat(1000)
    out = sum(not node.in_service for node in cluster.state.nodes.values())
    assert out == 1, f"{out} of 4 nodes are quarantined"


def a_job_goes_on_for_as_long_as_it_has_said(_: Path) -> None:
    """On a node that is cut off for longer than others may be."""
    cluster = Cluster(limits=Limits(lease_s=30.0))
    cluster.join("a", "b")
    cluster.submit(spec(lease_s=200.0))
    cluster.run_gang(1)
    cluster.leave("a")
    cluster.beat(150)
    assert cluster.job(1).attempts[0].cause is None, "it may run there, and is given up"
    cluster.beat(200)
    assert cluster.job(1).attempts[0].cause is not None, "it cannot run there, and is waited for"


def _the_common_lease(spec: JobSpec, limits: Limits) -> float:
    """Ignore the job's own lease."""
    return limits.lease_s


def _spared_for_good(real: Any) -> Any:
    def apply_service(state: State, fact: sf.OfService, at: float) -> None:
        node = state.nodes[fact.node]
        before = node.spared
        real(state, fact, at)
        if isinstance(fact, sf.NodeFaultRecorded):
            node.spared = before

    return apply_service


BUGS = (
    Bug(
        "a job's own lease is nothing to the coordinator",
        "I3",
        put(turn, "lease_of", _the_common_lease),
        a_job_goes_on_for_as_long_as_it_has_said,
    ),
    Bug(
        "a node that was spared once counts for nothing when it is to be out after all",
        "quarantine",
        wrap(apply, "apply_service", _spared_for_good),
        no_more_than_a_share_of_a_pool_is_quarantined,
    ),
)
