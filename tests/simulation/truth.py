"""Observers of the real processes on the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muster.protocol.outcome import ExitStatus

if TYPE_CHECKING:
    from tests.simulation.shim import Shim


class Truth(Protocol):
    def occupied(self, shim: Shim) -> None: ...

    def vacated(self, shim: Shim) -> None: ...

    def prepared(self, shim: Shim) -> None: ...

    def program_started(self, shim: Shim) -> None: ...

    def listens(self, shim: Shim) -> None: ...

    def signalled(self, shim: Shim, number: int, name: str) -> None: ...

    def succeeded(self, shim: Shim) -> None: ...

    def failed(self, shim: Shim, rank: int, status: ExitStatus) -> None: ...
