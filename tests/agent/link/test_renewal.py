"""Renewed certificates that an agent takes or keeps out, by the clocks of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from agent.link.dialer import Dialer
from agent.link.renewal import CertificateRenewal
from muster.daemon.certificates import (
    new_authority,
    new_key,
    node_certificate,
    requested_key,
    signing_request,
)
from muster.http.enrolment import RenewAnswer, RenewRequest
from muster.protocol.instant import Instant

DAY = 86400.0
NOW = 1_800_000_000.0
NODE = "gpu-05"
CA = new_authority(NOW)


class Signing:
    """A coordinator that signs by its own clock."""

    def __init__(self, wall: float, days: float) -> None:
        self.wall, self.days = wall, days
        self.keys: list[str] = []

    async def request(
        self, _method: str, _path: str, body: bytes, _headers: Mapping[str, str], _max: int
    ) -> bytes:
        asked = msgspec.json.decode(body, type=RenewRequest).request
        self.keys.append(requested_key(asked, NODE))
        made = node_certificate(CA, asked, NODE, self.wall, self.days * DAY)
        return msgspec.json.encode(RenewAnswer(made.pem.decode()))


class At:
    """A node's clock."""

    def __init__(self, wall: float) -> None:
        self.wall = wall

    def now(self) -> Instant:
        return Instant(0.0, self.wall)


def certificate(folder: Path) -> Path:
    """A certificate for 90 days from NOW on."""
    key, path = new_key(), folder / "node.pem"
    made = node_certificate(CA, signing_request(key, NODE), NODE, NOW, 90 * DAY)
    path.write_bytes(made.pem + key)
    return path


def renewal(path: Path, coordinator: Any, wall: float) -> CertificateRenewal:
    return CertificateRenewal(cast("Dialer", coordinator), path, NODE, At(wall))


@pytest.mark.parametrize(
    ("signed", "days", "own", "taken"),
    [
        pytest.param(61, 90, 61, True, id="both right"),
        pytest.param(61.03, 90, 61, True, id="less than an hour ahead"),
        pytest.param(63, 90, 61, False, id="coordinator ahead"),
        pytest.param(3713, 90, 61, False, id="coordinator years ahead"),
        pytest.param(-40, 90, 61, False, id="coordinator behind by more than the lifetime"),
        pytest.param(-3, 90, 61, False, id="the new one ends before the old one"),
        pytest.param(59, 90, 61, True, id="coordinator a little behind"),
        pytest.param(61, 7, 61, True, id="a shorter lifetime"),
        pytest.param(61, 90, 3713, True, id="node years ahead"),
    ],
)
async def test_a_certificate_of_a_wrong_clock_replaces_no_valid_one(
    tmp_path: Path, signed: float, days: float, own: float, taken: bool
) -> None:
    path = certificate(tmp_path)
    before = path.read_bytes()
    coordinator = Signing(NOW + signed * DAY, days)
    wait_s = await renewal(path, coordinator, NOW + own * DAY).step(path)
    assert len(coordinator.keys) == 1
    assert (path.read_bytes() != before) == taken
    assert wait_s == (0.0 if taken else 600.0)


async def test_an_agent_that_keeps_its_certificate_asks_again_with_the_same_key(
    tmp_path: Path,
) -> None:
    path = certificate(tmp_path)
    before, own = path.read_bytes(), NOW + 61 * DAY
    coordinator = Signing(own + 2 * DAY, 90)
    await renewal(path, coordinator, own).step(path)
    assert path.read_bytes() == before
    coordinator.wall = own
    # A restarted agent makes the same request.
    await renewal(path, coordinator, own).step(path)
    assert path.read_bytes() != before
    assert len(coordinator.keys) == 2
    assert len(set(coordinator.keys)) == 1
    assert not list(tmp_path.glob("*.next-key"))


async def test_an_agent_connects_again_with_a_renewed_certificate_only(tmp_path: Path) -> None:
    """Until it does, its predecessor is good, and so is a copy of that."""
    path, again = certificate(tmp_path), []
    own = NOW + 61 * DAY
    coordinator = Signing(own + 2 * DAY, 90)
    dialer = cast("Dialer", coordinator)
    renewing = CertificateRenewal(
        dialer, path, NODE, At(own), lambda: again.append(path.read_bytes())
    )
    await renewing.step(path)
    assert again == []
    coordinator.wall = own
    await renewing.step(path)
    assert again == [path.read_bytes()]
