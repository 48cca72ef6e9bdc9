"""docs/reference/agent-link.md names every message with its fields, and the versions."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec

from muster.protocol.link import control_channel, log_channel

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/agent-link.md").read_text(
    encoding="utf-8"
)
UNIONS = (
    control_channel.Report,
    control_channel.Command,
    log_channel.LogReport,
    log_channel.LogCommand,
)


def documented() -> dict[str, list[str]]:
    """Return, for each row of a table, the message and the names in its last column."""
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    return {cells[0].strip().strip("`"): re.findall(r"`(\w+)`", cells[-1]) for cells in rows}


def test_every_message_is_there_with_its_fields() -> None:
    kinds: list[type[msgspec.Struct]] = [k for u in UNIONS for k in typing.get_args(u)]
    wanted = {
        str(kind.__struct_config__.tag): [field.name for field in msgspec.structs.fields(kind)]
        for kind in kinds
    }
    wanted["binary header"] = [field.name for field in msgspec.structs.fields(log_channel.Chunk)]
    found = {name: fields for name, fields in documented().items() if fields}
    assert found == wanted


def test_the_versions_are_there() -> None:
    assert f"protocol {control_channel.PROTOCOL_MIN} to {control_channel.PROTOCOL_MAX}." in PAGE
