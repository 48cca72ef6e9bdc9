"""docs/reference/rights.md is made from the rules."""

from __future__ import annotations

from pathlib import Path

from orchestrator.api.routes import ROUTES
from orchestrator.core.rights.rules import RULES
from tools.docs.rights_page import page

PAGE = Path(__file__).parents[2] / "docs/reference/rights.md"


def test_the_page_is_made_from_the_rules() -> None:
    again = "python -m tools.docs.rights_page > docs/reference/rights.md"
    assert PAGE.read_text(encoding="utf-8") == page(), again


def test_every_action_and_route_is_on_it() -> None:
    said = page()
    assert all(f"`{action.value}`" in said for action in RULES)
    assert all(f"`{route.method} {route.path}`" in said for route in ROUTES)
