"""`python -m tests.golden.record`: record what is new; existing recordings stay as they are.
`--anew`: remove all recordings first. Only for what no release has written yet.

A file holds a kind and shape and is named for the shape: two branches that add different fields add
different files, and the merge runs this once more.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from muster.protocol.link.control_channel import PROTOCOL_MAX
from tests.golden import examples, journals
from tests.golden.kinds import KINDS, Kind

RECORDED = Path(__file__).parent / "recorded"
COMMAND = "python -m tests.golden.record"


def recordings(kind: Kind, root: Path = RECORDED) -> list[Path]:
    """All of a kind, of whatever version."""
    return sorted((root / kind.group).glob(f"{kind.name}.*.json"))


def path_of(kind: Kind, root: Path = RECORDED) -> Path:
    """Return the path of the recording of what this version writes."""
    return root / kind.group / f"{kind.name}.{examples.shape(kind.type)}.json"


def record(kind: Kind, root: Path = RECORDED) -> bool:
    """True if there was something to record."""
    path = path_of(kind, root)
    if path.exists():
        return False
    made = {"least": examples.least(kind.type), "whole": examples.whole(kind.type)}
    entries = {name: _entry(kind, example) for name, example in made.items()}
    lines = [
        f'"{name}": {json.dumps(entry, ensure_ascii=False)}' for name, entry in entries.items()
    ]
    text = ",\n".join([f'{{"protocol": {PROTOCOL_MAX}', *lines]) + "}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True


def _entry(kind: Kind, example: Any) -> dict[str, Any]:
    data = kind.write(example)
    return {**as_text(data), "decoded": examples.decoded(kind.read(data))}


def as_text(data: bytes) -> dict[str, str]:
    try:
        text = data.decode()
        if text and text.isprintable():
            return {"text": text}
    except UnicodeDecodeError:
        pass
    return {"base64": base64.b64encode(data).decode()}


def as_bytes(entry: dict[str, Any]) -> bytes:
    return base64.b64decode(entry["base64"]) if "base64" in entry else entry["text"].encode()


def main(arguments: list[str]) -> int:
    if arguments == ["--anew"]:
        shutil.rmtree(RECORDED)
    made = [str(path_of(kind).name) for kind in KINDS if record(kind)]
    made += journals.record()
    for name in made:
        sys.stdout.write(f"recorded {name}\n")
    sys.stdout.write(f"{len(made)} recordings are new; add them and change no older one\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
