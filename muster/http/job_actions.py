"""What users do to a job over HTTP: the bodies and the answers of cancel, change, signal, rerun."""

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
    """`already_ended`: the job had ended before; nothing was changed. `note`: what became of the
    grace asked for, where the job was being stopped already.
    """

    job: JobSummary
    already_ended: bool
    note: str = ""


class ChangeRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `PATCH /v1/jobs/{id}`: any of them, as in a job file; `time_limit` null is none."""

    priority: Annotated[int, _PRIORITY] | UnsetType = UNSET
    time_limit: str | UnsetType | None = UNSET
    name: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9-]{0,62}$")] | UnsetType = UNSET
    hold: bool | UnsetType = UNSET
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class ChangeAnswer(msgspec.Struct, frozen=True):
    """Of `PATCH /v1/jobs/{id}`. `changed` is false where all was so already."""

    job: JobSummary
    changed: bool


class SignalRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/jobs/{id}/signal`: `USR1`, `SIGUSR1` or `10`; to one node or
    rank only, where that is given.
    """

    signal: str | int
    rank: int | None = None
    node: str | None = None


class SignalAnswer(msgspec.Struct, frozen=True):
    """`nodes` are told; those of them that are `away` when they are back."""

    job: JobSummary
    signal: str
    nodes: tuple[str, ...]
    away: tuple[str, ...]


class RerunRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/jobs/{id}/rerun`: `set` as `muster submit --set` has it (`nodes=4`), and
    nodes to leave out."""

    set: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
