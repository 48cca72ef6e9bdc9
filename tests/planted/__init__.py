"""Planted bugs of the shells: each breaks a real module in one place, and a check has to find it.

What the simulator cannot reach is here: logs (I6), the hosts file (I7) and the bounds of queues and
buffers (I8); and what it meets so rarely that a course of its own is made for it (`meetings`). A
check is run twice, with the bug and without it; one that nothing sets off is not known to work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Check = Callable[[Path], None]
"""Raises AssertionError where a promise is not kept; the folder is empty, and its own."""

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug, the invariant that it breaks, and the check that finds it."""

    name: str
    breaks: str
    patch: Patch
    check: Check


def put(owner: Any, name: str, value: Any) -> Patch:
    """Something else in its place."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(owner, name, value)

    return patch


def wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> Patch:
    """The same, made of what is there."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(owner, name, wrapper(getattr(owner, name)))

    return patch


def wrong(check: Check, folder: Path, patch: Patch | None = None) -> str | None:
    """Run the check, with the bug if one is given; returns its finding, or None."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if patch is not None:
            patch(monkeypatch)
        try:
            check(folder)
        except AssertionError as error:
            return str(error) or "a promise was not kept"
        except Exception as error:  # noqa: BLE001 - what a broken module raises is a finding, too
            return f"raised: {error!r}"
    return None
