"""`python -m tools.supply.sbom FILE`: the bill of materials of the daemons, as CycloneDX JSON.

It has the packages of requirements.txt that this machine needs, with the licences that their
metadata states. The hashes of a component are those of all files of that version on the index, one
of which was installed: pip accepted no other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License, LicenseAcknowledgement
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.supply.lock import RUNTIME, Locked, read_lock

PROJECT = "muster-cluster"
EXTRAS = ("", "gpu", "stacks")
# Needed to build Muster, and not part of it.
BUILD_ONLY = ("setuptools",)


def bill(locked: Mapping[str, Locked]) -> Bom:
    """Return the bill of the installed packages among `locked`. Raises PackageNotFoundError."""
    here = {
        name: each for name, each in locked.items() if each.needed_here and name not in BUILD_ONLY
    }
    muster = _component(PROJECT, distribution(PROJECT), (), ComponentType.APPLICATION)
    components = {
        name: _component(name, _installed(each), each.hashes) for name, each in here.items()
    }
    bom = Bom(components=components.values())
    bom.metadata.component = muster
    bom.register_dependency(muster, [components[name] for name in _needed(PROJECT, EXTRAS)])
    for name, component in components.items():
        bom.register_dependency(component, [components[other] for other in _needed(name, ("",))])
    return bom


def text_of(bom: Bom) -> str:
    """Return the bill as JSON."""
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _installed(locked: Locked) -> Distribution:
    found = distribution(locked.name)
    if found.version != locked.version:
        raise SystemExit(
            f"sbom: {locked.name} {found.version} is installed and {locked.version} is in "
            "requirements.txt; run ./dev setup"
        )
    return found


def _component(
    name: str,
    found: Distribution,
    hashes: tuple[str, ...],
    kind: ComponentType = ComponentType.LIBRARY,
) -> Component:
    purl = PackageURL("pypi", name=name, version=found.version)
    return Component(
        name=name,
        version=found.version,
        type=kind,
        bom_ref=purl.to_string(),
        purl=purl,
        description=_stated(found, "Summary"),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in hashes],
        licenses=list(_licences(found)),
    )


def _stated(found: Distribution, field: str) -> str:
    values: list[str] = found.metadata.get_all(field) or [""]
    return values[0]


def _licences(found: Distribution) -> Iterator[License]:
    """Return the licence as stated by the package: an SPDX expression, else its own text, else its
    classifiers.
    """
    stated = _stated(found, "License-Expression") or _stated(found, "License")
    names = [stated] if stated else _classified(found)
    for name in names:
        yield LicenseFactory().make_from_string(
            name, license_acknowledgement=LicenseAcknowledgement.DECLARED
        )


def _classified(found: Distribution) -> list[str]:
    classifiers = found.metadata.get_all("Classifier") or []
    return [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]


def _needed(name: str, extras: tuple[str, ...]) -> list[str]:
    """Return a package's requirements on this machine, by canonical name."""
    needed = set()
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            needed.add(canonicalize_name(requirement.name))
    return sorted(needed)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev sbom", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path("dist/sbom.cdx.json"))
    file: Path = parser.parse_args().file
    bom = bill(read_lock(RUNTIME))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text_of(bom), "utf-8")
    print(f"{file}: {len(bom.components)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
