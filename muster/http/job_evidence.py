"""Evidence behind the coordinator's verdicts on a job."""

from __future__ import annotations

import msgspec

from muster.protocol.link.control_channel import RankReport
from muster.protocol.observations.hangs import HangVerdict, RankActivity
from muster.protocol.observations.traffic import JobProof
from muster.protocol.outcome import Cause
from muster.protocol.timestamp import Timestamp


class HangEvidence(msgspec.Struct, frozen=True):
    """A hang or slowness verdict on a gang, with its time."""

    at: Timestamp
    verdict: HangVerdict


class AttemptEvidence(msgspec.Struct, frozen=True):
    """An attempt. `reports` are of its ended ranks, `activity` is the last report of running ones.
    `refusals` are by node; `happened` lists events during the attempt.
    """

    number: int
    nodes: tuple[str, ...]
    started_at: Timestamp | None
    closed_at: Timestamp | None
    cause: Cause | None
    reports: tuple[RankReport, ...]
    refusals: dict[str, str]
    hangs: tuple[HangEvidence, ...]
    activity: tuple[RankActivity, ...]
    proof: JobProof | None
    happened: tuple[tuple[Timestamp, str], ...]


class Evidence(msgspec.Struct, frozen=True):
    """All verdicts on a job, with their evidence."""

    job: int
    attempts: tuple[AttemptEvidence, ...]
