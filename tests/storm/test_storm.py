"""Random faults at real daemons and jobs, for as long as a test may take."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.rig.rig import missing
from tests.storm.storm import Storm

SECONDS = 120.0


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.fault(68)
def test_two_minutes_of_faults_break_no_promise(
    tmp_path: Path, measured: Callable[[int, float], None]
) -> None:
    """`./dev storm --minutes 2 --seed S` is the same; S is in the report."""
    if why := missing():
        pytest.skip(why)
    report = Storm(tmp_path / "storm", random.randrange(1_000_000), SECONDS).run()
    print(report.text())
    assert report.violations == [], report.text()
    assert report.converged_s is not None
    measured(68, report.converged_s)
