"""Modules that a daemon does not import, and files it does not read, before it serves."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
# Modules for terminals, for tests and for other programs.
UNWANTED = {
    "aiohttp.pytest_plugin",
    "aiohttp.test_utils",
    "multiprocessing",
    "numpy",
    "pytest",
    "rich",
    "rich.console",
    "rich.traceback",
    "torch",
    "unittest",
}
LOOK = """
import importlib, json, ssl, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
from aiohttp import connector
contexts = [connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED]
before = [context.cert_store_stats()["x509"] for context in contexts]
strict = contexts[0].verify_mode is ssl.CERT_REQUIRED and contexts[0].check_hostname
contexts[0].wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="x")
after = contexts[0].cert_store_stats()["x509"]
well = "set_default_verify_paths" not in vars(ssl.SSLContext)
whole = ssl.create_default_context().cert_store_stats()["x509"]
print(json.dumps([sorted(sys.modules), before, strict, after, well, whole]))
"""


@pytest.mark.parametrize(
    "modules", [("orchestrator.__main__",), ("agent.__main__", "agent.daemon")], ids=lambda m: m[0]
)
def test_a_daemon_reads_no_certificate_and_no_colours_as_it_starts(
    modules: tuple[str, ...],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *modules],
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    imported, before, strict, after, restored, whole = json.loads(done.stdout)
    assert {"aiohttp", "structlog"} <= set(imported)
    assert not UNWANTED & set(imported)
    assert before == [0, 0]
    assert strict, "who is dialled with aiohttp's own context is verified as ever"
    assert restored
    assert after == whole, "and with the certificates of the machine"
    assert whole or not ssl.get_default_verify_paths().cafile
