"""Bodies and responses of operators' actions on a node: drain and resume."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from muster.http.views import NodeView

DEADLINE_S_MAX: Final = 366 * 86400.0

_REASON: Final = msgspec.Meta(min_length=1, max_length=500)
_DEADLINE: Final = msgspec.Meta(ge=0, le=DEADLINE_S_MAX)


class DrainRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/drain`. Running jobs continue. With `deadline_s`, they are asked
    to end after that many seconds; with `now`, they end at once; with `after_checkpoint`, each job
    with a `checkpoint_dir` is asked to end after its next checkpoint.
    """

    reason: Annotated[str, _REASON]
    deadline_s: Annotated[float, _DEADLINE] | None = None
    now: bool = False
    after_checkpoint: bool = False


class ResumeRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/resume`. With `check` false, the node is resumed even if checks
    fail.
    """

    check: bool = True


class RemoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/remove`."""


class LostRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/lost`."""


class LostAnswer(msgspec.Struct, frozen=True):
    """Response of `POST /v1/nodes/{id}/lost`. `changed` is false if nothing had to change. After a
    restore, the node may be one of which the restored journal has only the name.
    """

    name: str
    changed: bool


class LostNodes(msgspec.Struct, frozen=True):
    """Nodes that were declared lost."""

    nodes: tuple[LostAnswer, ...]


class NodeAnswer(msgspec.Struct, frozen=True):
    """Response of drain, resume and remove (the last known state). `changed` is false if nothing
    had to change.
    """

    node: NodeView
    changed: bool
