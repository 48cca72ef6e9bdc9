"""Import rules that import-linter cannot express: the complete list of a package's imports."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import (
    PACKAGES,
    imports,
    is_within,
    module_name,
    parse,
    source_files,
)

# Room, what of ours it may import, what else that is installed. The first room that fits counts.
ROOMS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("agent.shim", ("agent.shim", "muster.protocol.refusal_codes"), ()),
    ("agent.core.shim_protocol", ("agent.shim.messages",), ("msgspec",)),
    ("agent.bootstrap", ("agent.bootstrap",), ("torch",)),
    (
        "agent.core",
        ("agent.core", "muster.protocol", "muster.spec", "muster.fabric"),
        ("msgspec",),
    ),
    (
        "orchestrator.core",
        ("orchestrator.core", "muster.http", "muster.protocol", "muster.spec", "muster.fabric"),
        ("msgspec",),
    ),
    ("muster.bench.allreduce", (), ("torch",)),
    ("muster.check.program", ("muster.check.program",), ()),
    ("muster.fabric", ("muster.fabric", "muster.protocol"), ("msgspec",)),
    (
        "muster.http",
        ("muster.http", "muster.protocol", "muster.spec", "muster.fabric"),
        ("msgspec",),
    ),
    ("muster.protocol", ("muster.protocol", "muster.spec"), ("msgspec",)),
    ("muster.spec", ("muster.spec", "muster.protocol"), ("msgspec", "yaml")),
]
STANDARD = sys.stdlib_module_names | {"__future__"}


def offences(module: str, tree: ast.Module) -> Iterator[str]:
    """The imports that the module's room does not allow."""
    for room, ours, installed in ROOMS:
        if not is_within(module, (room,)):
            continue
        for line, name in imports(tree):
            top = name.partition(".")[0]
            if is_within(name, PACKAGES):
                allowed = is_within(name, ours)
            else:
                allowed = top in STANDARD or top in installed
            if not allowed:
                yield f"{module}, line {line}: {name} is not for {room}"
        return


@pytest.mark.parametrize("file", source_files(), ids=str)
def test_a_room_imports_only_what_it_may(file: Path) -> None:
    assert not list(offences(module_name(file), parse(file)))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("agent.shim.owner", "import msgspec"),
        ("agent.shim.owner", "from agent.shims import forked"),
        ("agent.shim", "from muster.protocol import instant"),
        ("agent.bootstrap", "import numpy"),
        ("agent.bootstrap", "from agent.shim import record"),
        ("agent.core.node", "import orchestrator.core"),
        ("agent.core.node", "from muster import daemon"),
        ("orchestrator.core.engine.decide", "def f():\n    import yaml"),
        ("muster.protocol.link.codec", "import muster.daemon.clock"),
        ("muster.spec.text", "import requests"),
        ("muster.fabric.hca_selection", "import agent.probe"),
    ],
)
def test_an_offence_would_be_found(module: str, line: str) -> None:
    assert list(offences(module, ast.parse(line)))


def test_allowed_imports_are_accepted() -> None:
    assert not list(offences("agent.shim.owner", ast.parse("import ctypes\nimport agent.shim.a")))
    assert not list(offences("agent.bootstrap", ast.parse("import torch.distributed.run")))
    assert not list(offences("agent.link.control", ast.parse("import aiohttp")))


def test_yaml_is_read_in_one_file_of_the_spec() -> None:
    readers = [
        str(file)
        for file in source_files()
        if is_within(module_name(file), ("muster.spec",))
        and any(is_within(name, ("yaml",)) for _, name in imports(parse(file)))
    ]
    assert len(readers) <= 1
