"""NCCL's versions, as far as its rules for InfiniBand and RoCE changed with them."""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, int]

_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})([.+-].*)?")

# Chooses the GID by itself; stumbled over empty entries until the second of these.
DYNAMIC: Final = (2, 21)
ROBUST: Final = (2, 26)


def version_of(text: str) -> Version | None:
    """2.27.3 is (2, 27), and so is the 22703 of NCCL_VERSION_CODE; None if this is no version."""
    found = _VERSION.fullmatch(text.strip())
    if found:
        return int(found[1]), int(found[2])
    if re.fullmatch(r"[2-9]\d{4}", text.strip()):
        code = int(text)
        return code // 10_000, code // 100 % 100
    return None


def devices_max(version: Version | None) -> int:
    """How many ports NCCL takes (MAX_IB_DEVS); with more in its list it fails or crashes."""
    return 16 if version is not None and version < (2, 18) else 32
