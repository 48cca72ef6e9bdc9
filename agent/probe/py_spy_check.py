"""Check for py-spy on this node, and for missing permissions."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

INSTALL: Final = (
    "install py-spy beside the agent's interpreter (the extra `stacks` of muster-cluster), or "
    "anywhere on the agent's PATH"
)
ABSENT: Final = "py-spy is not installed on this node, so the stacks of ranks are not available"
MISSING: Final = f"{ABSENT}: {INSTALL}"


def find() -> str | None:
    """Return the path of the program, if there is one."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
