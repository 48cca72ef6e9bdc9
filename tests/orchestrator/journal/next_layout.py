"""The journal's layout of a made-up next release."""

import pytest

from orchestrator.journal import schema
from orchestrator.journal.schema import LAYOUT

NEXT = LAYOUT + 1


def upgrade_to_next(patch: pytest.MonkeyPatch) -> None:
    """Until `patch` is undone, this process is of a release with one more table in its journal."""
    patch.setattr(schema, "LAYOUT", NEXT)
    patch.setitem(
        schema.UPGRADES,
        LAYOUT,
        "CREATE TABLE later (seq INTEGER); INSERT INTO later SELECT seq FROM fact;",
    )
