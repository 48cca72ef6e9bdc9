"""Entries of the audit log."""

from __future__ import annotations

import msgspec

from muster.protocol.timestamp import Timestamp


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that changed something, was refused, or read the job of another user: its author
    (none if the token is unknown), the token's id, the address, and the HTTP status as the result.
    `subject` is the job, node, user or token, as the path or the body names it. `count` is the
    number of equal ones within a minute, this one included: failed logins from the address with
    this token, or with unknown ones; refusals of an action to a user, with the same status; changes
    of one object by a user, beyond the first 16.
    """

    at: Timestamp
    address: str
    action: str
    status: int
    user: str = ""
    token: str = ""
    method: str = ""
    route: str = ""
    subject: str = ""
    request_id: str = ""
    count: int = 1


class AuditList(msgspec.Struct, frozen=True):
    """The newest matching entries, newest first."""

    entries: tuple[AuditEntry, ...]
