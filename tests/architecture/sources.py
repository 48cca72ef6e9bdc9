"""The modules of the product, as files and as syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("muster", "orchestrator", "agent")


def source_files() -> list[Path]:
    """All Python files of the product's packages, by path relative to the tree."""
    return sorted(
        file.relative_to(TREE) for package in PACKAGES for file in (TREE / package).rglob("*.py")
    )


def module_name(file: Path) -> str:
    """`agent/core/__init__.py` is agent.core."""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parse(file: Path) -> ast.Module:
    """The syntax tree of a file named relative to the tree."""
    return ast.parse((TREE / file).read_bytes(), str(file))


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each imported module with its line, wherever in the file it stands.

    `from a.b import c` counts as a.b.c: whether c is a module or a name, it lies in a.b.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    """True if a dotted name is one of the packages or below one."""
    return any(module == package or module.startswith(package + ".") for package in packages)
