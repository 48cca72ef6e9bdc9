"""Every line of every import contract can fail: plant the import it forbids and see it reported.

One copy of the packages takes all the offences, one linter run reports them.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import PACKAGES, TREE

CONTRACTS: list[dict[str, Any]] = tomllib.loads((TREE / "pyproject.toml").read_text("utf-8"))[
    "tool"
]["importlinter"]["contracts"]


def forbidden_pairs(contract: dict[str, Any]) -> list[tuple[str, str]]:
    """Each (importer, imported) that a contract forbids. Of layers, each with the next above."""
    if contract["type"] == "layers":
        (container,) = contract["containers"]
        layers = [
            [f"{container}.{name.strip()}" for name in re.split(r"[|:]", layer)]
            for layer in contract["layers"]
        ]
        return [
            (lower, upper)
            for above, below in itertools.pairwise(layers)
            for upper in above
            for lower in below
        ]
    if contract["type"] == "independence":
        modules = contract["modules"]
        return [(a, b) for a in modules for b in modules if a != b]
    return [(a, b) for a in contract["source_modules"] for b in contract["forbidden_modules"]]


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as c; c()",
            "--no-cache",
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "400", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(
            TREE / package, tree / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(TREE / "pyproject.toml", tree)
    return tree


def test_the_contracts_hold(copy: Path) -> None:
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_forbidden_import_breaks_its_contract(copy: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(copy, tree)
    pairs = {(c["name"], a, b) for c in CONTRACTS for a, b in forbidden_pairs(c)}
    planted: dict[str, set[str]] = {}
    for _, importer, imported in pairs:
        planted.setdefault(importer, set()).add(imported)
    for importer, modules in planted.items():
        lines = "".join(f"import {module}\n" for module in sorted(modules))
        file = planted_file(tree, importer)
        before = file.read_text() if file.exists() else ""
        file.write_text(before + lines)

    done = lint_imports(tree)

    assert done.returncode == 1, done.stdout + done.stderr
    assert f"Contracts: 0 kept, {len(CONTRACTS)} broken." in done.stdout
    sections = re.split(r"^-+\n", done.stdout.partition("Broken contracts")[2], flags=re.MULTILINE)
    bodies = dict(zip(map(name_in, sections), sections[1:], strict=False))
    for name, importer, imported in sorted(pairs):
        shown = re.search(
            rf"{re.escape(importer)}(\.planted)?\s+->\s+{re.escape(imported)}\b", bodies[name]
        )
        assert shown, f"{importer} -> {imported} does not break the contract '{name}'"


def planted_file(tree: Path, importer: str) -> Path:
    """A new module of a package, or the module itself."""
    path = tree / importer.replace(".", "/")
    return path / "planted.py" if path.is_dir() else path.with_suffix(".py")


def name_in(section: str) -> str:
    """A contract's name is the last line above its underline."""
    return section.rstrip().rpartition("\n")[2]


def test_the_bootstrap_alone_may_import_torch(copy: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(copy, tree)
    bootstrap = tree / "agent" / "bootstrap.py"
    if not bootstrap.exists() and not bootstrap.with_suffix("").exists():
        bootstrap.write_text("import torch\n")
    done = lint_imports(tree)
    assert done.returncode == 0, done.stdout + done.stderr
