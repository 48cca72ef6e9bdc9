"""`muster node`: show and maintain single nodes."""

from __future__ import annotations

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.cluster.node_enrolment import accept, revoke
from muster.cli.cluster.node_maintenance import drain, lost, remove, resume
from muster.cli.cluster.nodes import gpus_of
from muster.cli.input.job_ref import NODE
from muster.cli.output.format import gib, moment, safe, span
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.table import Column, print_table
from muster.cli.output.text_width import paragraph
from muster.client import ApiError, Client
from muster.http.views import (
    DrainView,
    FaultView,
    GpuView,
    InterfaceView,
    JobView,
    NodeView,
    RdmaView,
    SettingView,
)

_INTERFACES = (
    Column("INTERFACE"),
    Column("KIND", drop=2),
    Column("SPEED", right=True, drop=1),
    Column("RDMA", drop=3),
    Column("ADDRESSES", elastic=True, wraps=True),
)

_GPUS = (
    Column("GPU"),
    Column("MODEL", drop=3),
    Column("MEMORY", right=True, drop=2),
    Column("NUMA", right=True, drop=4),
    Column("UUID", drop=1),
    Column("JOB", elastic=True, wraps=True),
)


# Same names as in agent/shims/apart.py.
_APART = frozenset({"users", "fence", "private /tmp", "hidden processes", "keyrings"})

_SETTINGS = (
    Column("SETTING"),
    Column("VALUE", elastic=True, wraps=True),
    Column("ORIGIN", elastic=True, wraps=True),
)


@click.group("node")
def command() -> None:
    """Show and maintain single nodes; `muster nodes` lists all of them."""


@command.command("show", short_help="Show everything known about a node.")
@click.argument("node", metavar="NODE", type=NODE)
@json_option
@connection_options
def show(*, node: str, as_json: bool) -> None:
    """Show everything known about a node: its link, hardware, addresses and jobs, which of its GPUs
    each job has, and the origin of each setting that the coordinator may give its agent."""
    client = connect()
    view = client.node(node)
    if as_json:
        print_json(view)
        return
    print(f"node {safe(view.name)}  {safe(view.link)}")
    if view.state.text:
        print(paragraph(safe(view.state.text), first="  "))
    for label, text in _facts(view):
        print(paragraph(safe(text), first=f"  {label:<10}"))
    attempts = {gpu.job: gpu.attempt for gpu in view.devices} | {view.job: view.attempt}
    for number in view.jobs or ((view.job,) if view.job is not None else ()):
        _print_job(client, view, number, attempts.get(number))
    if view.devices:
        print()
        print_table(_GPUS, [_gpu(found) for found in view.devices])
    if view.interfaces:
        print()
        print_table(_INTERFACES, [_interface(found) for found in view.interfaces])
    if view.settings:
        print()
        print_table(_SETTINGS, [_setting(found) for found in view.settings])


command.add_command(drain)
command.add_command(resume)
command.add_command(remove)
command.add_command(lost)
command.add_command(accept)
command.add_command(revoke)


def _facts(view: NodeView) -> list[tuple[str, str]]:
    facts = [("link", _link(view)), ("agent", view.version)]
    if view.drain is not None:
        facts.append(("drain", _drain(view.drain)))
    if view.faults_before:
        jobs = "1 job" if view.faults_before == 1 else f"{view.faults_before} jobs"
        facts.append(("fault", f"in {jobs} before these"))
    facts += [("fault", _fault(fault)) for fault in view.faults]
    facts += [("hardware", f"{moment(it.at)}: {it.text}") for it in view.hardware]
    if view.hostname and view.hostname != view.name:
        facts.append(("host name", view.hostname))
    facts += [
        ("address", view.address + (f", calls from {view.peer}" if view.peer else "")),
        ("pool", view.pool),
        ("GPUs", gpus_of(view)),
        ("CPUs", str(view.cpus)),
        ("memory", gib(view.memory_bytes)),
    ]
    if view.rdma is not None:
        facts.append(("RDMA", _rdma(view.rdma)))
    facts += [
        ("apart" if what in _APART else "limits", f"{what}: not enforced here: {why}")
        for what, why in view.unenforced.items()
    ]
    if view.python:
        facts.append(("python", view.python))
    labels = ", ".join(f"{name}={value}" for name, value in sorted(view.labels.items()))
    return [*facts, ("labels", labels)] if labels else facts


def _drain(drain: DrainView) -> str:
    ends = "" if drain.ends_at is None else f"; running jobs end at {moment(drain.ends_at)}"
    return f"by {drain.user} at {moment(drain.at)}: {drain.reason}{ends}"


def _fault(fault: FaultView) -> str:
    since = f"; {fault.since} succeeded there since" if fault.since else ""
    return f"job {fault.job}, attempt {fault.attempt}: {fault.text}{since}"


def _rdma(rdma: RdmaView) -> str:
    if not rdma.ports:
        return f"none: it {rdma.why}"
    return f"{rdma.ports} of {rdma.expected} ports of {rdma.group}"


def _link(view: NodeView) -> str:
    since = "" if view.connected_s is None else f" for {span(view.connected_s)}"
    seen = "never" if view.last_seen_s is None else f"{span(view.last_seen_s)} ago"
    return f"{view.link}{since}, last message {seen}"


def _print_job(client: Client, view: NodeView, number: int, attempt: int | None) -> None:
    try:
        job: JobView = client.job(number)
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        print(f"  {'job':<10}{number}, which is another user's")
        return
    tasks = [t for a in job.attempts if a.number == attempt for t in a.tasks]
    task = next((t for t in tasks if t.node == view.name), None)
    role = f", {task.role} (node rank {task.node_rank})" if task is not None else ""
    text = f"{number} ({job.name}) of {job.user}, {job.state.value}, attempt {attempt}{role}"
    print(paragraph(safe(text), first=f"  {'job':<10}"))


def _gpu(found: GpuView) -> list[str]:
    """Return the row of a GPU. If it is not available to jobs, the reason stands in the JOB
    column."""
    return [
        found.pci,
        found.model or "-",
        "-" if found.memory_bytes is None else gib(found.memory_bytes),
        "-" if found.numa_node is None else str(found.numa_node),
        found.uuid or "-",
        found.fault or ("free" if found.job is None else str(found.job)),
    ]


def _interface(found: InterfaceView) -> list[str]:
    return [
        found.name,
        found.kind if found.running else f"{found.kind}, down",
        f"{found.speed_mbps / 1000:g}G" if found.speed_mbps else "-",
        "yes" if found.rdma else "-",
        ", ".join(found.addresses) or "-",
    ]


def _setting(found: SettingView) -> list[str]:
    return [found.name, "-" if found.value == "null" else found.value, found.origin]
