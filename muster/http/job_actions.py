"""Bodies and responses of users' actions on a job: cancel, change, signal, rerun."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from muster.http.views import JobSummary

_PRIORITY: Final = msgspec.Meta(ge=0, le=100)


class CancelRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/jobs/{id}/cancel`."""

    reason: str = ""
    grace_s: float | None = None
    force: bool = False


class CancelAnswer(msgspec.Struct, frozen=True):
    """Response of a cancel. `already_ended`: the job had ended before, and nothing changed. `note`:
    how the requested grace period was used if the job was already stopping.
    """

    job: JobSummary
    already_ended: bool
    note: str = ""


class ChangeRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `PATCH /v1/jobs/{id}`: any of these keys, as in a job file. A `time_limit` of null
    removes the limit.
    """

    priority: Annotated[int, _PRIORITY] | UnsetType = UNSET
    time_limit: str | UnsetType | None = UNSET
    name: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9-]{0,62}$")] | UnsetType = UNSET
    hold: bool | UnsetType = UNSET
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class ChangeAnswer(msgspec.Struct, frozen=True):
    """Response of `PATCH /v1/jobs/{id}`. `changed` is false if every value was the same already."""

    job: JobSummary
    changed: bool


class SignalRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/jobs/{id}/signal`: `USR1`, `SIGUSR1` or `10`, optionally for one node or
    rank only.
    """

    signal: str | int
    rank: int | None = None
    node: str | None = None


class SignalAnswer(msgspec.Struct, frozen=True):
    """Response of a signal. `nodes` get it; those that are `away` get it when they reconnect."""

    job: JobSummary
    signal: str
    nodes: tuple[str, ...]
    away: tuple[str, ...]


class RerunRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/jobs/{id}/rerun`: `set` as in `muster submit --set` (`nodes=4`), and nodes
    to exclude.
    """

    set: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
