"""Facts about the members of a gang, and about the terms of its tasks."""

from __future__ import annotations

from orchestrator.core.facts.base import EPHEMERAL, SYNC, TaskFact


class MemberAdded(TaskFact, durability=SYNC, reschedules=False):
    """The other nodes of an elastic gang are asked to vouch for this task, which has joined, and
    need its vouch from then on."""

    def describe(self) -> str:
        return "its node and those of the gang keep each other alive"


class NodeAdmitted(TaskFact, durability=SYNC, reschedules=False):
    """The launcher's node of an elastic gang is asked to let in the node of this task, which is
    prepared to join. It joins as soon as that is confirmed."""

    def describe(self) -> str:
        return "the launcher's node lets its node in"


class TermsStored(TaskFact, durability=EPHEMERAL, reschedules=False, revises=False):
    """The node has the terms of this number on disk, and follows them. The coordinator received
    that at `at` (monotonic seconds of this process)."""

    number: int
    at: float = 0.0


OfMembers = MemberAdded | NodeAdmitted | TermsStored
