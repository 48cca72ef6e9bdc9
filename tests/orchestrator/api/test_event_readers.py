"""Events are shown to those who may read the job that they quote."""

from typing import Any, get_args

import msgspec

from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.observations.hardware_events import OOM, Grade, HardwareEvent
from orchestrator.api import event_pages
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.base import EPHEMERAL
from orchestrator.core.facts.cluster import InputFailed
from orchestrator.core.facts.enrolment import EnrolmentFact, JoinSecretRevoked, NodeRevoked
from orchestrator.core.facts.people import PeopleFact
from orchestrator.core.facts.service import HardwareReported, NodeDrained

# About nodes and the cluster. A reason that an operator or the site's programs wrote is public.
SHOWN_TO_ALL = {
    "DrainTimed",
    "EpochStarted",
    "JournalRestored",
    "NodeDeclaredLost",
    "NodeFaultsDecayed",
    "NodeRegistered",
    "NodeRemoved",
    "NodeResumed",
    "RestoredNodeSettled",
}
DECIDED_BY_CONTENT = {
    "HardwareReported",
    "InputFailed",
    "NodeDrained",
    "NodeFaultRecorded",
    "QuarantineSkipped",
}


def _kinds(union: Any) -> list[type[msgspec.Struct]]:
    inner = get_args(union)
    return [kind for each in inner for kind in _kinds(each)] if inner else [union]


def test_a_recorded_fact_without_a_job_is_one_that_everybody_may_read() -> None:
    """Another one needs a case in `_reader`: it may quote the output of a job."""
    found = {
        kind.__name__
        for kind in _kinds(f.Fact)
        if getattr(kind, "durability") is not EPHEMERAL  # noqa: B009 - of the base class
        and not issubclass(kind, PeopleFact | EnrolmentFact)
        and "job" not in kind.__struct_fields__
    }
    assert found == SHOWN_TO_ALL | DECIDED_BY_CONTENT


def test_the_error_of_a_bug_is_for_operators() -> None:
    """It quotes what could not be decided, such as a job file."""
    fact = InputFailed("1", "POST /v1/jobs", "KeyError: 'canary'", False)
    assert event_pages._reader(fact) == event_pages.OF_OPERATORS


def test_what_a_job_left_on_its_node_is_for_its_readers() -> None:
    name = NodeName("gpu-1")
    left = NodeDrained(name, "muster", "unkillable", left_by=(JobId(3), "ann"))
    assert event_pages._reader(left) == JobId(3)
    assert event_pages._reader(NodeDrained(name, "olga", "a bad DIMM")) is None
    for task, reader in ((TaskId("3.1.0"), JobId(3)), (None, event_pages.OF_OPERATORS)):
        killed = HardwareEvent("boot", 1, OOM, Grade.SHOWN, "killed train.py", task=task)
        assert event_pages._reader(HardwareReported(name, killed)) == reader
    link = HardwareEvent("boot", 1, "link mlx5_0 down", Grade.NOTE, "its link is down")
    assert event_pages._reader(HardwareReported(name, link)) is None


def test_the_names_of_join_secrets_are_for_admins_and_certificates_for_operators() -> None:
    assert event_pages._reader(JoinSecretRevoked("3f9c")) == event_pages.OF_ADMINS
    assert event_pages._reader(NodeRevoked(NodeName("gpu-1"))) == event_pages.OF_OPERATORS
