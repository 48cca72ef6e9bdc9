"""The bill of materials is valid CycloneDX, and names all that the daemons are made of."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tools.supply.lock import RUNTIME, read_lock
from tools.supply.sbom import BUILD_ONLY

MUSTER = "pkg:pypi/muster-cluster@"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("sbom") / "new" / "sbom.json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.supply.sbom", str(file)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return file.read_text("utf-8")


@pytest.fixture(scope="module")
def bom(text: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(text)
    return made


def test_it_is_valid(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_each_package_has_its_version_licence_hashes_and_purl(bom: dict[str, Any]) -> None:
    components = {each["name"]: each for each in bom["components"]}
    wanted = {
        name: each
        for name, each in read_lock(RUNTIME).items()
        if each.needed_here and name not in BUILD_ONLY
    }
    assert components.keys() == wanted.keys()
    for name, locked in wanted.items():
        found = components[name]
        assert found["version"] == locked.version
        assert found["purl"] == f"pkg:pypi/{name}@{locked.version}"
        assert found["licenses"], name
        assert {each["content"] for each in found["hashes"]} == set(locked.hashes)
        assert {each["alg"] for each in found["hashes"]} == {"SHA-256"}


def test_all_of_it_is_reached_from_muster(bom: dict[str, Any]) -> None:
    needs = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    muster = bom["metadata"]["component"]["bom-ref"]
    assert muster.startswith(MUSTER)
    reached, waiting = set(), [muster]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += needs[ref]
    assert reached == {muster, *(each["bom-ref"] for each in bom["components"])}
