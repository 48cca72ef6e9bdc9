"""docs/how-to/operate.md: what it says that a daemon says, a daemon says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.process import CoordinatorProcess

TREE = Path(__file__).resolve().parents[2]
PAGE = (TREE / "docs/how-to/operate.md").read_text(encoding="utf-8")
# Placeholders of values, and parts that are not compared.
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
    lines = re.findall(r"^muster ((?:user|token) .*?)(?:  #.*)?$", PAGE, re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["add", "add", "create"]
    with CoordinatorProcess(tmp_path).start() as process:

        def run(*words: str, token: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "muster.cli", *words],
                cwd=TREE,
                env={**os.environ, "MUSTER_URL": process.url, "MUSTER_TOKEN": token},
                capture_output=True,
                text=True,
                check=True,
            )
            return done.stdout.strip()

        *_, token = [run(*line.split(), token=process.admin) for line in lines]
        assert run("whoami", token=token) == "bob"
