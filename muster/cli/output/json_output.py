"""Machine-readable output: the API's own objects on stdout, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
import msgspec

_F = TypeVar("_F", bound=Callable[..., Any])

json_option: Final[Callable[[_F], _F]] = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="JSON on stdout, in the format of the coordinator's API.",
)


def print_json(value: object) -> None:
    """Print `value` as one indented document."""
    _write(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_json_line(value: object) -> None:
    """Print `value` as one line, for a sequence of documents."""
    _write(msgspec.json.encode(value))
    sys.stdout.buffer.flush()


def _write(document: bytes) -> None:
    # Because JSON is UTF-8, bypass the locale's encoding.
    sys.stdout.flush()
    sys.stdout.buffer.write(document + b"\n")
