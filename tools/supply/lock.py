"""Reader of a requirements file with hashes, as written by `./dev lock`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TREE: Final = Path(__file__).parents[2]
RUNTIME: Final = TREE / "requirements.txt"
DEV: Final = TREE / "requirements-dev.txt"

_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Locked:
    """A package; `hashes` are the SHA-256 of every file of this version on the index."""

    name: str
    version: str
    needed_here: bool
    hashes: tuple[str, ...]


def read_lock(file: Path) -> dict[str, Locked]:
    """Return the packages by canonical name."""
    found: dict[str, Locked] = {}
    text = file.read_text("utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = line.split(" --hash=")
            locked = _locked(requirement, [f"--hash={each}" for each in hashes])
            assert locked.name not in found, f"{file.name}: {locked.name} is there twice"
            found[locked.name] = locked
    return found


def _locked(text: str, hashes: list[str]) -> Locked:
    requirement = Requirement(text.strip())
    (exact,) = requirement.specifier
    assert exact.operator == "==", f"{text} is not one version"
    digests = []
    for option in hashes:
        matched = _HASH.fullmatch(option.strip())
        assert matched, f"{requirement.name}: {option} is no SHA-256"
        digests.append(matched[1])
    return Locked(
        canonicalize_name(requirement.name),
        exact.version,
        requirement.marker is None or requirement.marker.evaluate(),
        tuple(digests),
    )
