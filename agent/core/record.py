"""The record of a task on the node's disk, from which a later agent process continues."""

from __future__ import annotations

import msgspec

from muster.protocol.link.control_channel import ArrangeTask, StopTask
from muster.protocol.link.terms import Terms


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The plan, the terms and the stop of a task that an agent has taken from the coordinator.

    `boot_id` is that of the node when the agent took it, `cluster` the coordinator's journal.
    """

    boot_id: str
    cluster: str
    plan: ArrangeTask | None = None
    terms: Terms | None = None
    stop: StopTask | None = None

    def after(self, boot_id: str) -> TaskRecord:
        """Return what still holds in the boot `boot_id`. Of a plan, nothing survives a reboot."""
        if boot_id == self.boot_id:
            return self
        return msgspec.structs.replace(self, plan=None, terms=None)
