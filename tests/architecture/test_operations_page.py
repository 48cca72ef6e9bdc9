"""docs/how-to/operate.md: what it says that a daemon says, a daemon says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from muster.daemon.clock import SystemClock
from orchestrator.api.http.tokens import TokenStore

TREE = Path(__file__).resolve().parents[2]
PAGE = (TREE / "docs/how-to/operate.md").read_text(encoding="utf-8")
# What stands for a value, and what is left out.
_OPEN = re.compile(r"\.\.\.|\b(?:FILE|NAME|N)\b|\"|journal\.sqlite")


def said() -> list[str]:
    """The messages and codes of both tables."""
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row)]


@pytest.fixture(scope="module")
def source() -> str:
    """All that daemons say: their sources, with texts that span lines in one piece."""
    folders = ("muster/daemon", "muster/protocol", "orchestrator", "agent")
    files = [file for folder in folders for file in sorted((TREE / folder).rglob("*.py"))]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


@pytest.mark.parametrize("message", said())
def test_a_message_of_the_page_is_said(message: str, source: str) -> None:
    for part in _OPEN.split(message):
        words = part.strip(" ,:")
        assert len(words) < 4 or words in source, words


def test_there_are_messages() -> None:
    assert len(said()) > 25


def test_a_token_made_as_the_page_says_is_taken(tmp_path: Path) -> None:
    match = re.search(r"^muster (token create .*?)  #", PAGE, re.MULTILINE)
    assert match is not None
    path = tmp_path / "tokens"
    path.write_text("tokens: []\n")
    path.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli", *match[1].split(), "--file", str(path)],
        cwd=TREE,
        capture_output=True,
        text=True,
        check=True,
    )
    found = TokenStore(path, SystemClock()).find(done.stdout.strip())
    assert found is not None
    assert found.user == "bob"
