"""From a journal to a state that serves."""

import gc
from pathlib import Path

import pytest

from muster.protocol.ids import JobId
from muster.spec.parse import parse_mapping
from orchestrator.core.facts import jobs as f
from orchestrator.journal.errors import JournalError
from orchestrator.journal.journal import Journal
from orchestrator.server import replayed


def test_the_state_of_before_is_nothing_that_the_collector_looks_through(tmp_path: Path) -> None:
    spec = parse_mapping({"run": ["/bin/true"], "launcher": "none"})
    journal = Journal.open(tmp_path)
    try:
        journal.append([(f.JobSubmitted(JobId(1), spec, "alice"), 0.0)])
        before = gc.get_freeze_count()
        assert replayed(journal).next_job == 2
        assert gc.get_freeze_count() > before
        assert gc.isenabled()
        journal.append([(f.JobRequeued(JobId(7)), 0.0)])
        with pytest.raises(JournalError):
            replayed(journal)
        assert gc.isenabled()
    finally:
        journal.close()
        gc.unfreeze()
