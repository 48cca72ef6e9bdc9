"""NCCL versions, as far as NCCL's rules for InfiniBand and RoCE depend on them."""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, int]

_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})([.+-].*)?")

# The first chooses the GID itself; before the second, empty entries confused it.
DYNAMIC: Final = (2, 21)
ROBUST: Final = (2, 26)


def version_of(text: str) -> Version | None:
    """Parse a version: 2.27.3 is (2, 27), and so is NCCL_VERSION_CODE 22703. None if invalid."""
    found = _VERSION.fullmatch(text.strip())
    if found:
        return int(found[1]), int(found[2])
    if re.fullmatch(r"[2-9]\d{4}", text.strip()):
        code = int(text)
        return code // 10_000, code // 100 % 100
    return None


def devices_max(version: Version | None) -> int:
    """Return NCCL's limit of ports (MAX_IB_DEVS). With a longer list it fails or crashes."""
    return 16 if version is not None and version < (2, 18) else 32
