"""A node of a gang that runs other versions than the others is shown."""

from __future__ import annotations

from muster.protocol.link.control_channel import Fingerprint
from orchestrator.core.views.display import job_view
from tests.orchestrator.core.playbook import Cluster, spec, task

USUAL = Fingerprint("3.11.7", "2.13.0", "12.6", "2.27.3")
OLD = Fingerprint("3.11.7", "2.12.0", "12.4", "2.27.3")
FOR_CPUS = Fingerprint("3.11.7", "2.13.0")


def warnings(*versions: Fingerprint) -> list[tuple[str, ...]]:
    """Return the warnings of each node of a prepared gang, in node-rank order."""
    cluster = Cluster()
    cluster.join(*(f"n{rank}" for rank in range(len(versions))))
    cluster.submit(spec(nodes=len(versions)))
    for rank, fingerprint in enumerate(versions):
        cluster.prepare(task(1, 1, rank), fingerprint=fingerprint)
    (attempt,) = job_view(cluster.state, cluster.job(1), cluster.now).attempts
    return [view.warnings for view in attempt.tasks]


def test_equal_versions_and_unknown_ones_are_no_matter() -> None:
    assert warnings(USUAL, USUAL) == [(), ()]
    assert warnings(Fingerprint(), USUAL, Fingerprint()) == [(), (), ()]


def test_the_odd_node_is_named_with_what_differs() -> None:
    warning = (
        "PyTorch is 2.12.0 and on n1 2.13.0, CUDA is 12.4 and on n1 12.6; "
        "give all nodes of a gang the same"
    )
    assert warnings(OLD, USUAL, USUAL) == [(warning,), (), ()]


def test_the_second_of_a_pair_is_compared_with_the_first() -> None:
    warning = (
        "CUDA is missing and on n0 12.6, NCCL is missing and on n0 2.27.3; "
        "give all nodes of a gang the same"
    )
    assert warnings(USUAL, FOR_CPUS) == [(), (warning,)]


def test_a_node_that_left_an_elastic_gang_does_not_count() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=1, max_nodes=2, rendezvous="c10d"))
    cluster.prepare(task(1, 1, 0), fingerprint=USUAL)
    cluster.prepare(task(1, 1, 1), fingerprint=OLD)
    attempt = cluster.job(1).attempts[0]

    def warned() -> int:
        view = job_view(cluster.state, cluster.job(1), cluster.now).attempts[0]
        return sum(len(shown.warnings) for shown in view.tasks)

    assert warned() == 1
    attempt.tasks[1].left = "n1 was lost"
    assert warned() == 0
