"""HTTP machinery shared by all routes: access, limits, parsing, errors and the schema.

The resource modules of `orchestrator.api` import it. It never imports one of them, and knows no
resource.
"""
