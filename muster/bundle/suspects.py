"""Files that look like secrets or data sets, named before they are sent. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

DATA_BYTES: Final = 50 << 20
"""A larger file is hardly code."""
_SECRET: Final = re.compile(
    r"(\.env(\..*)?|id_(rsa|dsa|ecdsa|ed25519)|.*\.(pem|key|p12|pfx|jks|keytab)|credentials(\..*)?"
    r"|\.netrc|\.pgpass|\.npmrc|\.pypirc|\.git-credentials|.*service[-_]?account.*\.json"
    r"|secrets?\.(json|ya?ml|toml|env|txt))",
    re.IGNORECASE,
)
_NOT_SECRET: Final = re.compile(r".*\.(example|sample|template|dist)|.*\.pub", re.IGNORECASE)


def secrets(paths: Iterable[str]) -> list[str]:
    """Return the paths of files whose names are those of secrets."""
    return [path for path in paths if _is_secret(path.rpartition("/")[2])]


def data_sets(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the files that are large for code, given with their sizes, the largest first."""
    large = [(path, size) for path, size in files if size > DATA_BYTES]
    return sorted(large, key=lambda each: -each[1])


def _is_secret(name: str) -> bool:
    if name.endswith(".py"):  # most files, and never a secret by its name
        return False
    return _SECRET.fullmatch(name) is not None and _NOT_SECRET.fullmatch(name) is None
