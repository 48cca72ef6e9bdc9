"""Configuration of the documentation site: `./dev docs` builds and serves it."""

project = "Muster"
author = "The Muster developers"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Muster"
html_show_sphinx = False
html_show_copyright = False
# Links to headings are written as GitHub makes them, so that pages read the same in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
exclude_patterns: list[str] = []
# Sessions of a terminal and grammars are no language that the highlighter knows.
highlight_language = "text"
nitpicky = True
