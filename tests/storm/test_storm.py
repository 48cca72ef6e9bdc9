"""Random faults at real daemons and jobs, for as long as a test may take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from examples.rig.rig import missing
from tests.storm.storm import Storm

SECONDS = 600.0
SEED = 11
"""The seed of the faults and their times, to repeat a failure. `./dev storm` takes others."""


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.fault(68)
def test_ten_minutes_of_faults_break_no_promise(
    tmp_path: Path, measured: Callable[[int, float], None]
) -> None:
    """`./dev storm --minutes 10 --seed 11` is the same."""
    if why := missing():
        pytest.skip(why)
    report = Storm(tmp_path / "storm", SEED, SECONDS).run()
    print(report.text())
    assert report.violations == [], report.text()
    assert report.converged_s is not None
    measured(68, report.converged_s)
