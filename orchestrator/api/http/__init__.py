"""What every route needs and that knows no resource: access, limits, parsing, errors, the schema.

The resource modules of `orchestrator.api` import it; it never imports one of them.
"""
