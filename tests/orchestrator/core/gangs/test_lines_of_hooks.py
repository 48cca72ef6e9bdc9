"""Lines that the site's programs wrote, in the timeline of a job."""

from __future__ import annotations

import pytest

from muster.protocol.outcome import ExitStatus
from orchestrator.core.facts.jobs import TaskArranged, TaskCleaned
from tests.orchestrator.core.playbook import Cluster, spec


@pytest.mark.parametrize("line", ["scratch is clean", "long" * 1000])
def test_that_of_an_epilog_is_with_the_end_of_the_task_and_is_bounded(line: str) -> None:
    cluster = Cluster()
    cluster.join("n0")
    cluster.submit(spec())
    (name,) = cluster.run_gang(1)
    cluster.end(name, ExitStatus(0))
    cluster.clean(name, warnings=("prolog: done", f"epilog: {line}"))
    (cleaned,) = (it for it in cluster.facts if isinstance(it, TaskCleaned))
    said = f"epilog: {line}"[:300]
    assert cleaned.describe() == f"nothing is left on the node; {said}"
    (arranged,) = (it for it in cluster.facts if isinstance(it, TaskArranged))
    assert "epilog" not in arranged.describe()
    kept = cluster.replayed().jobs[cleaned.job].attempt(cleaned.attempt).tasks[0]
    assert kept.warnings[-1:] == (said,)
