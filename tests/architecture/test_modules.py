"""Every module of the product: named for its subject, documented, of a readable size, and whole."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from orchestrator.core.engine.decide import VERSION
from tests.architecture.sources import TREE, imports, module_name, parse, source_files

LINES_MAX = 500
MODULES_MAX = 20
NO_SUBJECT = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "tools"}

PROGRAMS = ("agent.bootstrap", "muster.bench.allreduce")
OURS = {"muster", "orchestrator", "agent"}

FILES = source_files()
_IMPORT = (ast.Import, ast.ImportFrom)


def test_the_files_are_found() -> None:
    names = {module_name(file) for file in FILES}
    assert {"muster.daemon.config_loader", "orchestrator.core", "agent.shim"} <= names


@pytest.mark.parametrize("file", FILES, ids=str)
def test_it_says_why_it_exists(file: Path) -> None:
    assert ast.get_docstring(parse(file)), f"{file} has no module docstring"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_it_has_one_subject(file: Path) -> None:
    lines = len((TREE / file).read_text(encoding="utf-8").splitlines())
    assert lines <= LINES_MAX, f"{file} has {lines} lines: it holds more than one subject"
    assert not NO_SUBJECT.intersection(file.with_suffix("").parts), (
        f"{file} is named for no subject"
    )


def test_no_folder_holds_more_modules_than_one_can_survey() -> None:
    modules = Counter(file.parent for file in FILES if file.name != "__init__.py")
    assert {str(folder): n for folder, n in modules.items() if n > MODULES_MAX} == {}


IMPORT_EACH_ALONE = """
import importlib, os, sys
foreign, names = (part.split() for part in sys.argv[1:])
for name in foreign:
    importlib.import_module(name)
failed = 0
for name in names:
    pid = os.fork()
    if pid == 0:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    failed |= os.waitpid(pid, 0)[1]
sys.exit(bool(failed))
"""


def import_each_alone(
    names: list[str], tree: Path, foreign: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Import each module in a process that has imported nothing of ours, warnings being errors.

    What is `foreign` is imported once for all of them.
    """
    return subprocess.run(
        [
            *(sys.executable, "-W", "error", "-c", IMPORT_EACH_ALONE),
            *(" ".join(foreign), " ".join(names)),
        ],
        cwd=tree,
        env={"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def importable() -> list[str]:
    # `__main__` starts a daemon; the others are programs for the job's interpreter.
    return [
        name
        for name in map(module_name, FILES)
        if not name.endswith("__main__") and not name.startswith(PROGRAMS)
    ]


def foreign_imports() -> set[str]:
    """Return the third-party modules that our modules import at import time."""
    found: set[str] = set()
    for file in FILES:
        if module_name(file) in importable():
            for node in parse(file).body:
                if isinstance(node, ast.Import):
                    found.update(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module)
    return {name for name in found if name.partition(".")[0] not in OURS}


def imported_first(imports_of: Mapping[str, set[str]]) -> list[str]:
    """Return the modules that have to be imported alone to try all of them.

    The import of a module outside of every cycle does not depend on its importer, so an importer
    tries it, or it is tried alone if it has none. In a cycle, each member is tried as the first.
    """
    imported = set[str]().union(*imports_of.values())
    return [name for name in imports_of if name not in imported or _in_cycle(name, imports_of)]


def _in_cycle(name: str, imports_of: Mapping[str, set[str]]) -> bool:
    found: set[str] = set()
    ahead = list(imports_of[name])
    while ahead:
        if (module := ahead.pop()) not in found:
            found.add(module)
            ahead += imports_of[module]
    return name in found


def import_graph() -> dict[str, set[str]]:
    """Return our modules that each module runs at its import, packages above them included."""
    known = {module_name(file): file for file in FILES}
    found: dict[str, set[str]] = {}
    for name in importable():
        wanted = {name.rpartition(".")[0]}
        # Imports inside functions run later, or never.
        at_once: list[ast.stmt] = [it for it in parse(known[name]).body if isinstance(it, _IMPORT)]
        for _, module in imports(ast.Module(at_once, [])):
            above = module.split(".")
            wanted |= {".".join(above[:depth]) for depth in range(1, len(above) + 1)}
        found[name] = (wanted & known.keys()) - {name}
    return found


def test_every_module_imports_alone() -> None:
    names = imported_first(import_graph())
    assert 20 < len(names) < len(FILES) / 2
    done = import_each_alone(names, TREE, foreign_imports())
    assert done.returncode == 0, done.stdout + done.stderr


def test_members_of_cycles_and_modules_that_nobody_imports_are_imported_first() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set[str](), "e": {"d"}}
    assert imported_first(graph) == ["a", "b", "c", "e"]


def test_an_import_cycle_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text("from second import b\na = 1\n")
    (tmp_path / "second.py").write_text("from first import a\nb = 1\n")
    (tmp_path / "fine.py").write_text("")
    done = import_each_alone(["fine", "first"], tmp_path)
    assert done.returncode == 1
    assert "first: ImportError" in done.stdout
    assert "fine:" not in done.stdout


def test_no_planted_bug_of_the_simulator_names_a_private_function() -> None:
    """Each is put behind a public name, so that a change inside a module needs no new mutant."""
    named = [
        f"{file.name}: {match[0]}"
        for file in sorted((TREE / "tests/simulation/mutants").glob("*.py"))
        for match in re.finditer(r'"_[a-z]\w*"|\b(?!self\b)[a-z]\w*\._[a-z]\w*', file.read_text())
    ]
    assert named == []


def test_the_version_of_the_daemons_is_that_of_the_package() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == VERSION
