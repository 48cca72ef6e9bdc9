"""Refusals of a node's certificate, as a header of the coordinator's answer."""

from __future__ import annotations

from typing import Final

HEADER: Final = "Muster-Certificate"
WAITS: Final = "waits"
"""An operator has not accepted the node yet. `Retry-After` says when it should ask again."""
REPLACED: Final = "replaced"
"""A later certificate of the node is in use. If the node has no later one, another machine has a
copy of its key: a renewal with this certificate shows that."""
