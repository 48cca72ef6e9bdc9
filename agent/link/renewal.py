"""Renewal of this node's certificate: at two thirds of its lifetime, and when the coordinator
refuses it because a later one is in use. Then another machine has a copy of the key, and the
renewal shows that. The agent connects again with the new one, which ends its predecessor.

A coordinator that doubts its clock signs nothing, and is asked again. A certificate that one with a
wrong clock has signed does not replace a valid one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Final, Never

import msgspec
import structlog

from agent.link.dialer import ConnectionLostError, Dialer
from muster.daemon.clock import Clock
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.http.enrolment import RenewAnswer, RenewRequest

_ROUTE: Final = "/v1/agent/certificate"
_LOOK_S: Final = 60.0
_AGAIN_S: Final = 5.0
_LATER_S: Final = 600.0
_BYTES_MAX: Final = 1 << 16
PRIVATE: Final = 0o600

_log = structlog.get_logger("agent.certificate")


class CertificateRenewal:
    """Renews the certificate in a file that also has its key. The new key is on disk before the
    coordinator signs for it, so that a lost answer can be asked for again with the same key.
    """

    def __init__(
        self,
        dialer: Dialer,
        path: Path | None,
        node: str,
        clock: Clock,
        connect_again: Callable[[], None] = lambda: None,
    ) -> None:
        """Without a path, this node has no certificate."""
        self._connect_again = connect_again
        self._dialer = dialer
        self._path = path
        self._node = node
        self._clock = clock

    async def run(self) -> Never:
        """Renew for ever, if there is a certificate."""
        warned, at_once = "", False
        while True:
            wait_s, problem = _LOOK_S, ""
            try:
                if self._path is not None:
                    wait_s = await self.step(self._path, at_once=at_once)
            except (ConnectionLostError, OSError, FileError, ValueError) as error:
                problem, wait_s = str(error), _AGAIN_S
            if problem and problem != warned:
                _log.warning("certificate_not_renewed", why=problem)
            warned = problem
            at_once = await self._replaced_within(wait_s)

    async def _replaced_within(self, wait_s: float) -> bool:
        """Wait; returns True early if the coordinator refuses the certificate for a later one. The
        pauses between dials after a refusal limit how often that is.
        """
        replaced = self._dialer.replaced
        try:
            async with asyncio.timeout(wait_s):
                await replaced.wait()
        except TimeoutError:
            return False
        replaced.clear()
        return True

    async def step(self, path: Path, *, at_once: bool = False) -> float:
        """Renew if it is time, or at once, and return the pause before the next look."""
        left_s = _due(path) - self._clock.now().wall
        if left_s > 0 and not at_once:
            return min(left_s, _LOOK_S)
        following = path.with_name(f"{path.name}.next-key")
        key, request = _drawn(following, self._node)
        asked = msgspec.json.encode(RenewRequest(request))
        # The Date lets the coordinator notice a wrong clock of its own and refuse to sign.
        date = formatdate(self._clock.now().wall, usegmt=True)
        headers = {"Content-Type": "application/json", "Date": date}
        answer = await self._dialer.request("POST", _ROUTE, asked, headers, _BYTES_MAX)
        made = msgspec.json.decode(answer, type=RenewAnswer).certificate.encode()
        now = self._clock.now().wall
        kept = _why_kept(path, made, now)
        if kept:
            # The next key stays, because another key would count as a copy's renewal.
            _log.warning("certificate_not_renewed", why=kept)
            return max(_AGAIN_S, min(_LATER_S, _left_s(path, now) / 4))
        write_atomic(path, made + key, PRIVATE)
        _forget(following)
        _log.info("certificate_renewed")
        self._connect_again()
        return 0.0


def _due(path: Path) -> float:
    # Imported late, because only agents with a certificate need it.
    from muster.daemon.certificates import renewal_due

    return renewal_due(path.read_bytes())


def _left_s(path: Path, now: float) -> float:
    from muster.daemon.certificates import ends_at

    return ends_at(path.read_bytes()) - now


def _why_kept(path: Path, new: bytes, now: float) -> str:
    """Return why the certificate in use is better than the new one, or "". `now` is UTC seconds by
    this node's clock.
    """
    from muster.daemon.certificates import ends_at, renewal_due, why_not_valid

    old, why = path.read_bytes(), why_not_valid(new, now)
    # If the certificate in use is not valid either, this node's clock may be the wrong one.
    if why and why_not_valid(old, now):
        why = ""
    # The administrator may shorten the lifetime, so an earlier end alone is not wrong.
    if not why and renewal_due(new) <= now and ends_at(new) <= ends_at(old):
        why = "should be renewed already, and ends before the one in use"
    if not why:
        return ""
    return (
        f"by this node's clock the new certificate {why}, so the old one stays in use: set the "
        "coordinator's clock, or this node's"
    )


def _drawn(path: Path, node: str) -> tuple[bytes, str]:
    """Return the next key, from an earlier attempt if there is one, and a signing request."""
    from muster.daemon.certificates import new_key, signing_request

    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = new_key()
        write_atomic(path, key, PRIVATE)
    return key, signing_request(key, node)


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
