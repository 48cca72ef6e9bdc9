"""docs/reference/environment.md names every MUSTER_* variable that a job finds, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/reference/environment.md").read_text()
SECTION = PAGE.partition("## In a job\n")[2].partition("\n## ")[0]


def in_code(*folders: str) -> set[str]:
    """The variables that these modules write or read as text of their own."""
    found: set[str] = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r'"(MUSTER_[A-Z_]+)"', path.read_text()))
    return found


def test_every_variable_of_a_job_is_on_the_page() -> None:
    listed = re.findall(r"^\| `(MUSTER_[A-Z_]+)` \|", SECTION, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == in_code("orchestrator/core", "agent/shim")


def test_variables_known_before_the_gang_is_complete_are_on_the_page() -> None:
    launch = (ROOT / "orchestrator" / "core" / "gangs" / "launch.py").read_text()
    early = launch.partition("def _identity")[2]
    task = (ROOT / "agent" / "shim" / "task.py").read_text()
    names = set(re.findall(r'"(MUSTER_[A-Z_]+)"', early + task))
    listed = SECTION.partition("before the start of the gang have")[2]
    assert set(re.findall(r"`(MUSTER_[A-Z_]+)`", listed)) == names


def test_every_variable_of_the_product_is_on_the_page() -> None:
    """Also those of shell scripts, hooks and units, in any text but the settings of daemons."""
    used: dict[str, str] = {}
    for folder in ("agent", "configs", "dev", "muster", "orchestrator", "systemd"):
        top = ROOT / folder
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                for name in re.findall(r"\bMUSTER_[A-Z_]*[A-Z]\b", path.read_text()):
                    used[name] = str(path.relative_to(ROOT))
    named = set(re.findall(r"`(MUSTER_[A-Z_]*[A-Z])`", PAGE))
    missing = {
        name: path
        for name, path in used.items()
        if name not in named and not name.startswith(("MUSTER_AGENT", "MUSTER_COORDINATOR"))
    }
    assert not missing
    assert {"MUSTER_HOOK", "MUSTER_SECRET_FILE", "MUSTER_JOIN"} <= used.keys()
