"""Machine-readable output: the API's own objects, one document on stdout."""

from __future__ import annotations

import msgspec


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
