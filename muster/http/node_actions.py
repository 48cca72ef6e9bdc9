"""What operators do to a node over HTTP: the bodies and the answers of drain and resume."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from muster.http.views import NodeView

DEADLINE_S_MAX: Final = 366 * 86400.0

_REASON: Final = msgspec.Meta(min_length=1, max_length=500)
_DEADLINE: Final = msgspec.Meta(ge=0, le=DEADLINE_S_MAX)


class DrainRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/drain`. What runs there goes on; with `deadline_s` it is asked
    to end so many seconds from now, with `now` it ends at once, with `after_checkpoint` each job
    that says where its checkpoints are is asked to once it has written one.
    """

    reason: Annotated[str, _REASON]
    deadline_s: Annotated[float, _DEADLINE] | None = None
    now: bool = False
    after_checkpoint: bool = False


class ResumeRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/resume`. `check` false: whatever may speak against it."""

    check: bool = True


class RemoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/remove`."""


class NodeAnswer(msgspec.Struct, frozen=True):
    """Of drain, resume and remove (as it was). `changed` is false where all was so already."""

    node: NodeView
    changed: bool
