"""`muster evidence`: collect everything known about a job or a node in one file."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from muster.cli.client_options import connect, connection_options
from muster.cli.errors import RefusedError
from muster.cli.input.job_ref import JOB, NODE, find_job
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.log_printer import record_bytes
from muster.cli.output.stacks_view import verdict_lines
from muster.client import ApiError, Client, LogQuery
from muster.http.job_evidence import Evidence
from muster.http.views import EventList, EventView, LogTrailer

_LINES: Final = 200
_LOG_BYTES_MAX: Final = 8 << 20
_MODE: Final = 0o600


class EvidenceOutput(msgspec.Struct, frozen=True):
    """The output of `muster evidence --json`."""

    path: str
    files: tuple[str, ...]
    bytes: int


@click.command("evidence")
@click.argument("job", metavar="[JOB]", required=False, type=JOB)
@click.option("--node", metavar="NODE", type=NODE, help="Collect about a node instead of a job.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write  [default: muster-job-ID.tar.gz]",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@json_option
@connection_options
def command(
    *, job: str | None, node: str | None, output: Path | None, force: bool, as_json: bool
) -> None:
    """Write everything known about a job into one tar file to send to somebody.

    It contains the job file, the events, every verdict with its signals, stacks, the last lines of
    the logs, the fabric plan, the nodes and the versions. Values of the command and environment
    that look like secrets are left out. The job's own output is not searched for secrets: check it
    before you send the file. Output is in the logs (logs.txt), and the last lines of a failure are
    quoted in job.json, events.json, explain.json, the verdicts, and the faults of nodes.

    \b
    muster evidence 42
    muster evidence --node gpu-03 -o gpu-03.tar.gz
    """
    if (job is None) is (node is None):
        raise click.UsageError("one job, or: muster evidence --node NODE")
    client = connect()
    if job is not None:
        number = find_job(client, job)
        name, files = f"muster-job-{number}", _of_job(client, number)
    else:
        assert node is not None
        view = client.node(node)
        name, files = f"muster-node-{view.name}", _of_node(client, node)
    path = output or Path(f"{name}.tar.gz")
    written = _write(path, name, dict(files), force=force)
    if as_json:
        print_json(written)
    else:
        note(f"{len(written.files)} files, {written.bytes} bytes")
        print(safe(str(path)))


def _of_job(client: Client, number: int) -> Iterator[tuple[str, bytes]]:
    view = client.job(number)
    found = client.evidence(number)
    yield "job.json", _json(view)
    yield "events.json", _json(_events(client, number))
    yield "verdicts.json", _json(found)
    yield "verdicts.txt", _verdicts(found)
    yield "fabric.json", _json(client.fabric(number))
    yield "environment.json", _json(client.environment(number))
    yield "explain.json", _json(client.explain(number))
    yield "versions.json", _json(client.version())
    names = {task.node for attempt in view.attempts for task in attempt.tasks}
    nodes = [node for node in client.nodes().nodes if node.name in names]
    yield "nodes.json", _json(nodes)
    yield "logs.txt", _logs(client, number)


def _of_node(client: Client, name: str) -> Iterator[tuple[str, bytes]]:
    node = client.node(name)
    yield "node.json", _json(node)
    yield "versions.json", _json(client.version())
    for number in node.jobs or (() if node.job is None else (node.job,)):
        yield f"job-{number}/job.json", _json(client.job(number))
        yield f"job-{number}/events.json", _json(_events(client, number))
        yield f"job-{number}/fabric.json", _json(client.fabric(number))
        yield f"job-{number}/verdicts.json", _json(client.evidence(number))


def _events(client: Client, number: int) -> EventList:
    events: list[EventView] = []
    while page := client.events(number, after=events[-1].seq if events else 0).events:
        events += page
    return EventList(tuple(events))


def _verdicts(found: Evidence) -> bytes:
    lines: list[str] = []
    for attempt in found.attempts:
        cause = "runs" if attempt.cause is None else attempt.cause.text
        lines += [f"attempt {attempt.number} on {', '.join(attempt.nodes)}: {safe(cause)}", ""]
        if attempt.proof is not None:
            lines += [f"traffic: {safe(attempt.proof.text)}", ""]
        for hang in attempt.hangs:
            lines += [f"{hang.at:%Y-%m-%dT%H:%M:%SZ}", *verdict_lines(hang.verdict), ""]
    return ("\n".join(lines) + "\n").encode()


def _logs(client: Client, number: int) -> bytes:
    """Return the last lines of every stream, each marked with its source."""
    found = io.BytesIO()
    try:
        for entry in client.logs(number, LogQuery(tail=_LINES)):
            if isinstance(entry, LogTrailer):
                found.write(f"{entry.reason}\n".encode() if entry.reason else b"")
                continue
            whose = entry.stream if entry.rank is None else f"rank {entry.rank} {entry.stream}"
            mark = f"[{entry.node} {whose}] ".encode()
            said = entry.gap.encode() if entry.gap is not None else record_bytes(entry)
            found.write(b"".join(mark + line + b"\n" for line in said.splitlines()))
            if found.tell() > _LOG_BYTES_MAX:
                found.write(b"(and more)\n")
                break
    except ApiError as error:
        found.write(f"{error}\n".encode())
    return found.getvalue()


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _write(path: Path, name: str, files: dict[str, bytes], *, force: bool) -> EvidenceOutput:
    """Write the archive atomically. Raises OSError, and RefusedError if the file exists."""
    if not force and os.path.lexists(path):
        raise RefusedError(f"{safe(str(path))} exists: name another file, or use --force")
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for file, data in files.items():
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size, entry.mode = len(data), _MODE
            tar.addfile(entry, io.BytesIO(data))
    data = whole.getvalue()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(temporary, flags, _MODE), "wb") as out:
            out.write(data)
        if force:
            os.replace(temporary, path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError:
                said = f"{safe(str(path))} exists: name another file, or use --force"
                raise RefusedError(said) from None
    finally:
        temporary.unlink(missing_ok=True)
    return EvidenceOutput(str(path), tuple(files), len(data))
