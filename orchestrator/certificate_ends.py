"""The ends of the coordinator's own certificate, of its CA and of nodes' certificates: warnings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Never

import structlog

from muster.daemon.clock import Clock
from muster.daemon.errors import TlsError
from muster.daemon.tls import Renewed
from muster.protocol.certificate_ends import end_warning

_LOOK_EVERY_S: Final = 86400.0
_RENEW_EVERY_S: Final = 1.0
_NODES_LOGGED: Final = 20

_log = structlog.get_logger("coordinator.certificates")


class CertificateEnds:
    """The ends of certificates in files, which are read again daily."""

    def __init__(
        self,
        files: Mapping[str, Path],
        clock: Clock,
        of_nodes: Callable[[float], Sequence[str]] = lambda _: (),
    ) -> None:
        """`files` has the path of each certificate by the name of its setting. `of_nodes` returns
        the warnings about certificates of nodes at a time (UTC seconds).
        """
        self._of_nodes = of_nodes
        self._files = files
        self._clock = clock
        self.ends: dict[str, float] = {}
        """The end of each certificate that could be read, in UTC seconds."""

    def warnings(self) -> tuple[str, ...]:
        """Return a sentence for each certificate that ends soon."""
        now = self._clock.now().wall
        said = (
            end_warning(f"the coordinator's {setting}, {self._files[setting]},", expires, now)
            for setting, expires in self.ends.items()
        )
        return tuple(why for why in said if why)

    def read(self) -> None:
        """Read the files. One that cannot be read is reported elsewhere."""
        # Imported late, because only a coordinator with TLS needs it.
        from muster.daemon.certificates import ends_at

        found = {}
        for setting, path in self._files.items():
            try:
                found[setting] = ends_at(path.read_bytes())
            except (OSError, ValueError):
                continue
        self.ends = found

    def log(self) -> None:
        """Log all warnings; of those about nodes, the first ones and how many more there are."""
        for why in self.warnings():
            _log.warning("certificate_ends", why=why)
        of_nodes = self._of_nodes(self._clock.now().wall)
        for why in of_nodes[:_NODES_LOGGED]:
            _log.warning("certificate_ends", why=why)
        if more := len(of_nodes[_NODES_LOGGED:]):
            _log.warning("certificate_ends", why=f"those of {more} more nodes end: muster nodes")

    async def follow(self, certificate: Renewed) -> Never:
        """Reload a certificate that is served when its files change. Because certificate and key
        change one after the other, they may not match for a moment.
        """
        warned = ""
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            problem = ""
            try:
                if certificate.look():
                    _log.info("certificate_read")
                    await asyncio.to_thread(self.read)
            except TlsError as error:
                problem = str(error)
            if problem and problem != warned:
                done = "the previous one stays in use"
                _log.error("certificate_unreadable", why=problem, done=done)
            warned = problem

    async def watch(self) -> Never:
        """Read the files, and log their warnings, at once and then daily."""
        while True:
            await asyncio.to_thread(self.read)
            self.log()
            await asyncio.sleep(_LOOK_EVERY_S)
