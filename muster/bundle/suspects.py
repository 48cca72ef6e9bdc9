"""Files that look like secrets or data sets, named before they are sent. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from muster.bundle.manifest import File

DATA_BYTES: Final = 50 << 20
"""A larger file is hardly code."""
_SECRET: Final = re.compile(
    r"(\.env(\..*)?|id_(rsa|dsa|ecdsa|ed25519)|.*\.(pem|key|p12|pfx|jks|keytab)|credentials(\..*)?"
    r"|\.netrc|\.pgpass|\.npmrc|\.pypirc|\.git-credentials|.*service[-_]?account.*\.json"
    r"|secrets?\.(json|ya?ml|toml|env|txt))",
    re.IGNORECASE,
)
_NOT_SECRET: Final = re.compile(r".*\.(example|sample|template|dist)|.*\.pub", re.IGNORECASE)


def secrets(files: Sequence[File]) -> list[str]:
    """Return the paths of files whose names are those of secrets."""
    return [file.path for file in files if _is_secret(file.path.rpartition("/")[2])]


def data_sets(files: Sequence[File]) -> list[File]:
    """Return the files that are large for code, the largest first."""
    large = [file for file in files if file.size > DATA_BYTES]
    return sorted(large, key=lambda file: -file.size)


def _is_secret(name: str) -> bool:
    if name.endswith(".py"):  # most files, and never a secret by its name
        return False
    return _SECRET.fullmatch(name) is not None and _NOT_SECRET.fullmatch(name) is None
