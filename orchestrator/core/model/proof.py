"""Proofs that a task is over. Silence is none: it may end an attempt, but never proves an end."""

from __future__ import annotations

import enum


class TaskProof(enum.Enum):
    """Proof that a task is over without a record of its end.

    A task whose record came is CLEANED and needs none of these. REPORTED: its node said that it
    does not have the task, or that nothing of it will ever run again. REBOOTED: its node said hello
    with another boot id. DECLARED: an operator or the fence hook of the site said so. LEASE: the
    node has certainly ended it (`orchestrator.core.model.leases`).
    """

    REPORTED = "reported"
    REBOOTED = "rebooted"
    DECLARED = "declared"
    LEASE = "lease"
