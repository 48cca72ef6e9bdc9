"""docs/reference/http-api.md is made from the descriptions of the routes."""

from __future__ import annotations

from pathlib import Path

from tools.docs.http_page import page

PAGE = Path(__file__).parents[2] / "docs/reference/http-api.md"


def test_the_page_is_made_from_the_routes() -> None:
    again = "python -m tools.docs.http_page > docs/reference/http-api.md"
    assert PAGE.read_text(encoding="utf-8") == page(), again
