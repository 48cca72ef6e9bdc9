"""Notices of webhooks that wait, counted by user."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.protocol.ids import JobId


@dataclass(slots=True)
class UserWebhooks:
    """The waiting notices of one user, `count` in all.

    `jobs` has their number by job, the job that has waited longest first. `spec_bytes` are the
    bytes of the specifications of those jobs, which stay in the state as long.
    """

    jobs: dict[JobId, int] = field(default_factory=dict)
    count: int = 0
    spec_bytes: int = 0

    def add(self, job: JobId, spec_bytes: int, count: int) -> None:
        if job not in self.jobs:
            self.jobs[job] = 0
            self.spec_bytes += spec_bytes
        self.jobs[job] += count
        self.count += count

    def take(self, job: JobId, spec_bytes: int, count: int) -> None:
        """Remove `count` notices of a job that has at least as many."""
        self.jobs[job] -= count
        self.count -= count
        if not self.jobs[job]:
            del self.jobs[job]
            self.spec_bytes -= spec_bytes
