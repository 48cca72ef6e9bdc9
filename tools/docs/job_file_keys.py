"""Generator of docs/reference/job-file-keys.md from the schema and `muster.spec.key_docs`:
`python -m tools.docs.job_file_keys > docs/reference/job-file-keys.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from muster.spec.key_docs import KEYS, KeyDoc
from muster.spec.schema import flat_keys
from muster.spec.unsupported import LATER_KEYS

_HEAD: Final = """\
# Every key of the job file

For users who write job files: every key with its values and default. Made by
`python -m tools.docs.job_file_keys > docs/reference/job-file-keys.md` from the types that read a
job; `muster schema` prints them as a JSON Schema. [job-file.md](job-file.md) explains them.

| key | value | default | what it does | example |
|---|---|---|---|---|
"""


def reference() -> str:
    """Return the whole page."""
    schema = flat_keys()
    rows = [_row(key, about, schema[key]) for key, about in KEYS.items()]
    return _HEAD + "\n".join(rows) + "\n\n" + "\n".join(_later()) + "\n"


def _row(key: str, about: KeyDoc, schema: dict[str, Any]) -> str:
    names = f"`{key}`"
    if about.aliases:
        names += f" (also {', '.join(f'`{alias}`' for alias in about.aliases)})"
    cells = [names, _value(about, schema), _default(about, schema), about.what]
    return "| " + " | ".join([*cells, f"`{about.example}`"]) + " |"


def _value(about: KeyDoc, schema: dict[str, Any]) -> str:
    if about.value:
        return about.value
    if "enum" in schema:
        return ", ".join(f"`{_text(each)}`" for each in dict.fromkeys(map(_text, schema["enum"])))
    return f"{schema['minimum']} to {schema['maximum']}"


def _default(about: KeyDoc, schema: dict[str, Any]) -> str:
    return about.default or f"`{_text(schema['default'])}`"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _later() -> Iterator[str]:
    yield "## Not yet"
    yield ""
    yield "Refused with what to do instead, never ignored."
    yield ""
    yield "| key | instead |"
    yield "|---|---|"
    for section, keys in LATER_KEYS.items():
        for key, instead in keys.items():
            yield f"| `{section}.{key}` | {instead} |" if section else f"| `{key}` | {instead} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
