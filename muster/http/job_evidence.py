"""What the coordinator's verdicts on a job rest on, as it is sent to a user."""

from __future__ import annotations

import msgspec

from muster.protocol.control_channel import RankReport
from muster.protocol.hangs import HangVerdict, RankActivity
from muster.protocol.outcome import Cause
from muster.protocol.timestamp import Timestamp
from muster.protocol.traffic import JobProof


class HangEvidence(msgspec.Struct, frozen=True):
    """A verdict that a gang hangs or is slow, and when it was reached."""

    at: Timestamp
    verdict: HangVerdict


class AttemptEvidence(msgspec.Struct, frozen=True):
    """One try. `reports` are of its ranks as they ended, `activity` is what was last heard of those
    that run; `refusals` by node; `happened` while it ran."""

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
    """Every verdict on a job, with the signals behind it."""

    job: int
    attempts: tuple[AttemptEvidence, ...]
