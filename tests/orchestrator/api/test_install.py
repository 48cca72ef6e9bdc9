"""Downloads of wheels that are not taken."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from muster.daemon.certificates import new_authority, new_key, server_certificate
from muster.wheels.manifest import MANIFEST, WheelManifest
from orchestrator.api.enrolment.install import Downloads, InstallApi
from orchestrator.api.enrolment.install_script import install_script
from orchestrator.api.http.problems import ApiError
from orchestrator.enrolment import EnrolmentSettings

NOW = 1.8e9
PAGE = Path(__file__).resolve().parents[3] / "docs/reference/environment.md"
LARGE, SMALL = "large-1-py3-none-any.whl", "small-1-py3-none-any.whl"
LARGE_BYTES = 1 << 30  # more than the buffers of any connection take


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[TestServer]:
    """A coordinator that sends one wheel at a time, to a reader that takes 1 GiB a second."""
    authority = new_authority(NOW)
    cert = tmp_path / "server.pem"
    cert.write_bytes(server_certificate(authority, new_key(), ["head"], [], NOW))
    (tmp_path / SMALL).write_bytes(b"small")
    with (tmp_path / LARGE).open("wb") as file:
        file.truncate(LARGE_BYTES)
    names = ", ".join(f'"{name}": "{"0" * 64}"' for name in (LARGE, SMALL))
    text = f'{{"requirements": "{"0" * 64}", "targets": {{"3.11-x86_64": {{{names}}}}}}}'
    (tmp_path / MANIFEST).write_text(text)
    settings = EnrolmentSettings(authority, 1, 60.0, address="head:1", cert=cert, wheels=tmp_path)
    downloads = Downloads(places=1, start_s=5.0, bytes_per_s=LARGE_BYTES, wait_s=60.0)
    app = web.Application()
    app.router.add_get("/v1/wheels/{id}", InstallApi(settings, 100.0, downloads).wheel)
    made = TestServer(app)
    await made.start_server()
    try:
        yield made
    finally:
        await made.close()


async def test_who_does_not_take_a_wheel_loses_the_place_to_who_waits(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as server,
        ClientSession(read_bufsize=1) as session,
        session.get(server.make_url(f"/v1/wheels/{LARGE}")) as held,
    ):
        async with session.get(server.make_url(f"/v1/wheels/{SMALL}")) as other:
            assert (other.status, await other.read()) == (200, b"small")
        assert held.status == 200


async def test_who_waits_too_long_for_a_place_is_told_to_come_again() -> None:
    downloads = Downloads(places=1, start_s=60.0, bytes_per_s=1, wait_s=0.01)
    async with downloads.place("10.0.0.1"):
        with pytest.raises(ApiError) as refused:
            async with downloads.place("10.0.0.2"):
                pass
    assert (refused.value.status, refused.value.code) == (503, "too_many_installs")
    async with downloads.place("10.0.0.2"):
        pass


def test_the_variables_of_the_script_are_on_the_page() -> None:
    script = install_script(WheelManifest("0" * 64, {}), "head:7077", "sha256//x")
    used = set(re.findall(r"\bMUSTER_[A-Z]+\b", script))
    assert {"MUSTER_JOIN", "MUSTER_LOGIN", "MUSTER_PYTHON", "MUSTER_VENV", "MUSTER_BIN"} <= used
    _, _, section = PAGE.read_text().partition("## The script that installs Muster")
    assert used == set(
        re.findall(r"^\| `(MUSTER_[A-Z]+)` \|", section.split("\n## ")[0], re.MULTILINE)
    )
