"""Links of the pages outside docs/ lead to files that exist. `./dev lint` checks those of docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)]*))?\)")


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    links = [
        (target, anchor)
        for target, anchor in _LINK.findall((ROOT / name).read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert [target for target, _ in links if not (ROOT / target).exists()] == []
    assert [
        (target, anchor)
        for target, anchor in links
        if anchor and anchor not in _anchors(ROOT / target)
    ] == []


def test_the_pages_have_links() -> None:
    assert len(_LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))) > 10
