"""All planted bugs of the shells."""

from __future__ import annotations

from tests.planted import bounds, dirty, hosts, logs, losses, meetings, rights, trust

EVERY = (
    *logs.BUGS,
    *hosts.BUGS,
    *bounds.BUGS,
    *dirty.BUGS,
    *meetings.BUGS,
    *losses.BUGS,
    *trust.BUGS,
    *rights.BUGS,
)
