"""JSON Schema of a probe, generated from its types."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.fabric.model import VERSION, Probe


def probe_schema() -> dict[str, Any]:
    """Return the schema of `muster probe --json` (JSON Schema 2020-12)."""
    (schema,), components = msgspec.json.schema_components([Probe], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"muster probe --json, version {VERSION}",
        **schema,
        "$defs": components,
    }
