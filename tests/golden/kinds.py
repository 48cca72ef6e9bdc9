"""Everything that one version writes and another one reads: on the link, in the journal, on disk.

A message, a fact or a document that is not in this list is not promised to anybody. The unions
bring their new members by themselves; a new file of a daemon's state needs a line here.
"""

from __future__ import annotations

import json
import os
import tempfile
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agent.core.shim_protocol import ShimCommand, ShimStatus, encode
from agent.monitors.traffic.sampler import WatchedTraffic
from agent.shim import commands, exit_record, status
from agent.shims.shim_files import ShimIdentity
from agent.taskdirs.taskdirs import Manifest
from muster.http.views import JobSummary
from muster.protocol.link import codec, log_channel
from muster.protocol.link.codec import CommandFrame, ReportFrame
from muster.protocol.link.control_channel import Command, Report
from muster.protocol.tokens import TokensFile
from orchestrator.core.facts.jobs import DURABLE, SCHEMA
from orchestrator.journal.records import checksum, from_row, to_row
from orchestrator.shell.logs import index
from orchestrator.shell.logs.tombstone import Removed


@dataclass(frozen=True)
class Kind:
    """`write` is how this version puts an example of `type` into bytes, `read` how it takes bytes
    of any version. `body`: where in the written JSON the type is. `strict`: people write it, so
    that a field nobody knows is an error of theirs."""

    group: str
    name: str
    type: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], object]
    body: tuple[str, ...] = ()
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"


def _tag(kind: Any) -> str:
    return str(kind.__struct_config__.tag)


def _to_coordinator(kind: Any) -> Kind:
    return Kind(
        "to_coordinator",
        _tag(kind),
        kind,
        lambda body: codec.encode(ReportFrame(7, body)),
        lambda data: codec.decode_report(data).body,
        ("body",),
    )


def _to_agent(kind: Any) -> Kind:
    return Kind(
        "to_agent",
        _tag(kind),
        kind,
        lambda body: codec.encode(CommandFrame(7, body)),
        lambda data: codec.decode_command(data).body,
        ("body",),
    )


def _log(kind: Any, read: Callable[[bytes], object]) -> Kind:
    return Kind("logs", _tag(kind), kind, lambda body: log_channel.encode_text(body).encode(), read)


def _fact(kind: Any) -> Kind:
    """The body of a row; the row has its schema, too, which a recording has in its own words."""

    def read(body: bytes) -> object:
        row = (1, 0.0, SCHEMA, kind.__name__, None, body)
        return from_row(*row, checksum(*row)).fact

    return Kind("facts", kind.__name__, kind, lambda fact: to_row(1, fact, 0.0)[5], read)


def _to_shim(kind: Any) -> Kind:
    return Kind(
        "to_shim",
        kind.cmd,
        kind,
        encode,
        lambda data: commands.parse(json.loads(data)),
    )


def _file(name: str, kind: Any, *, strict: bool = False) -> Kind:
    decoder = msgspec.json.Decoder(kind)
    return Kind("files", name, kind, msgspec.json.encode, decoder.decode, strict=strict)


def _shim_status(given: ShimStatus) -> bytes:
    """The document as the shim writes it."""
    made = status.Status(given.task, given.log_dir)
    vars(made).update(vars(given))
    if given.running_s is not None:
        made.started_at, made.ended_at = 10.0, 10.0 + given.running_s
    return status.encoded(made.document(10.0))


def _shim_identity(given: ShimIdentity) -> bytes:
    """Return the document as the shim writes it, without the values of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            exit_record.write_identity(descriptor, given.task, given.mark, given.cgroup)
        finally:
            os.close(descriptor)
        document = json.loads((Path(folder) / exit_record.IDENTITY).read_bytes())
    document |= {"pid": given.pid, "boot_id": given.boot_id, "start_time": given.start_time}
    return json.dumps(document).encode()


def _kinds() -> list[Kind]:
    kinds = [
        *map(_to_coordinator, typing.get_args(Report)),
        *map(_to_agent, typing.get_args(Command)),
        *(
            _log(kind, log_channel.decode_log_report)
            for kind in typing.get_args(log_channel.LogReport)
        ),
        *(
            _log(kind, log_channel.decode_log_command)
            for kind in typing.get_args(log_channel.LogCommand)
        ),
        Kind(
            "logs",
            "chunk",
            log_channel.Chunk,
            lambda chunk: log_channel.encode_chunk(chunk, b"\x00bytes\xff"),
            log_channel.decode_chunk,
        ),
        *map(_fact, DURABLE),
        *map(_to_shim, typing.get_args(ShimCommand)),
        Kind(
            "from_shim",
            "status",
            ShimStatus,
            _shim_status,
            msgspec.json.Decoder(ShimStatus).decode,
        ),
        Kind(
            "from_shim",
            "identity",
            ShimIdentity,
            _shim_identity,
            msgspec.json.Decoder(ShimIdentity).decode,
        ),
        _file("agent-task", Manifest),
        _file("agent-traffic", WatchedTraffic),
        _file("coordinator-logs-removed", Removed),
        _file("coordinator-tokens", TokensFile, strict=True),
        # A column of the journal's archive.
        _file("coordinator-archived-job", JobSummary),
        Kind(
            "files",
            "coordinator-log-index",
            list[tuple[int, int, float, int]],
            lambda entries: b"".join(index.pack(index.Entry(*entry)) for entry in entries),
            index.read_all,
        ),
    ]
    return sorted(kinds, key=str)


KINDS = _kinds()
