"""Generator of muster/client/client.py from muster/client/async_client.py: `python -m
tools.sync_client`. With `--check` it changes nothing, and fails if the file is not current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

_CLIENT: Final = Path(__file__).parents[1] / "muster/client"
SOURCE: Final = _CLIENT / "async_client.py"
TARGET: Final = _CLIENT / "client.py"

_HEAD: Final = """\
The coordinator's API as Python calls.

Made from `muster.client.async_client` by `python -m tools.sync_client`: change that file.
"""
# Applied in this order. Each pattern must occur, so that a stale one is noticed.
_RULES: Final = (
    (r'^""".*?"""', f'"""{_HEAD}"""'),
    (
        r"A client of one coordinator: `async with.*?(?=    Without arguments)",
        "A synchronous client of one coordinator; thread-safe.\n\n",
    ),
    (r"Close the connections; the client", "Do nothing, as no connection is kept; the client"),
    (r"\basync (?=def |with |for )", ""),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAsync(?=Client|Generator|Iterator|Retrying|Transport)", ""),
    (r"\b__a(?=enter|exit)", "__"),
    (r"\ba(?=closing|next)", ""),
    (r"\basync_transport\b", "sync_transport"),
    (r"\basyncio\b", "time"),
)


def sync_client() -> str:
    """Return the synchronous client's text."""
    text = SOURCE.read_text()
    for pattern, replacement in _RULES:
        text, found = re.subn(pattern, replacement, text, flags=re.DOTALL)
        if not found:
            raise ValueError(f"{SOURCE.name} has nothing like {pattern!r}")
    # Sort the imports, remove those that only the source needs, and wrap the lines again.
    name = f"--stdin-filename={TARGET}"
    for step in ("check --fix --unsafe-fixes --select=F401,I,UP028", "format"):
        ruff = [sys.executable, "-m", "ruff", *step.split(), "-q", name, "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> str | None:
    """Write the file, or check it. Returns a message if it is not current."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(sync_client())
    elif TARGET.read_text() != sync_client():
        return f"{TARGET} is not current: python -m tools.sync_client"
    return None


if __name__ == "__main__":
    sys.exit(main())
