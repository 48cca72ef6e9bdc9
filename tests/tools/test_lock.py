"""The files of hashes fit what Muster declares, and are what pip must be given."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.supply.lock import DEV, RUNTIME, TREE, read_lock

PROJECT: dict[str, Any] = tomllib.loads((TREE / "pyproject.toml").read_text("utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
BUILD = PROJECT["build-system"]["requires"]
OF_DAEMONS = [*PROJECT["project"]["dependencies"], *EXTRAS["gpu"], *EXTRAS["stacks"], *BUILD]


@pytest.mark.parametrize(
    ("file", "declared"), [(RUNTIME, OF_DAEMONS), (DEV, [*OF_DAEMONS, *EXTRAS["dev"]])]
)
def test_all_that_is_declared_is_locked_in_a_version_that_fits(
    file: Path, declared: list[str]
) -> None:
    locked = read_lock(file)
    for text in declared:
        requirement = Requirement(text)
        found = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(found.version), f"{text}: {found.version}"


@pytest.mark.parametrize("file", [RUNTIME, DEV])
def test_each_package_has_hashes_and_the_version_of_the_constraints(file: Path) -> None:
    constraints: dict[str, str] = {}
    for line in (TREE / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            constraints[canonicalize_name(name)] = version
    for name, locked in read_lock(file).items():
        assert locked.hashes, name
        assert constraints.get(name) == locked.version, name


def test_developers_have_the_same_versions_as_the_daemons() -> None:
    dev = read_lock(DEV)
    assert {name: dev[name] for name in read_lock(RUNTIME)} == read_lock(RUNTIME)


@pytest.mark.parametrize("file", [RUNTIME, DEV])
def test_no_place_to_fetch_from_is_named(file: Path) -> None:
    assert not re.search(r"://|--index|--find|@ ", file.read_text("utf-8"))


def test_torch_is_not_among_them() -> None:
    """Its build may come from a folder or an index that the operator names."""
    assert "torch" not in read_lock(DEV)


def test_pip_finds_nothing_missing_and_nothing_that_is_not_as_locked() -> None:
    """Without an index, so pip must find each package installed, in the version of the file."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps"),
            *("--require-hashes", "-r", str(RUNTIME)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout


def test_the_set_up_installs_what_is_locked_by_its_hashes() -> None:
    installs = re.findall(r"^.*pip_install .*$", (TREE / "dev").read_text("utf-8"), re.MULTILINE)
    locked = [line for line in installs if " -r " in line]
    assert locked
    assert all("--require-hashes" in line for line in locked), locked
