"""`muster explain` of a short job that slips in front of a gang, as a person reads it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from muster.cli.jobs.explain import print_explanation
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import Cluster, spec


def test_both_jobs_say_why_the_short_one_goes_first(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    cluster.join("n1", "n2", "n3")
    cluster.submit(spec(time_limit_s=600.0))
    cluster.run_gang(1)
    cluster.submit(spec(nodes=3, time_limit_s=3600.0))
    cluster.submit(spec(time_limit_s=180.0))
    cluster.submit(spec(time_limit_s=3600.0))

    def printed(job: int) -> str:
        now = datetime.fromtimestamp(cluster.now.wall, UTC)
        print_explanation(explain(cluster.state, cluster.job(job), cluster.now), now)
        return capsys.readouterr().out

    gang = printed(2)
    assert " at the latest: job 1 ends on n1 by then, job 3 ends on n2 by then\n" in gang
    why = "it ends by 2023-11-14T22:19:40Z, before the planned start of job 2"
    assert f"\n  job 3 went ahead on n2: {why}\n" in gang
    assert f"\n  ahead    of job 2: {why}\n" in printed(3)
    print_explanation(
        explain(cluster.state, cluster.job(4), cluster.now, sees=lambda _user: False), None
    )
    hidden = capsys.readouterr().out
    assert "\n  place 2 in the queue of pool default, behind jobs of other users\n" in hidden
    late = printed(4)
    assert "\nneeds 1 node; 1 free, but kept for other jobs\n" in late
    assert "is free, and job 2 needs it in 10m" in late
    assert "\n  would start now with a time limit of 9m (muster set 4 time_limit=9m)\n" in late
