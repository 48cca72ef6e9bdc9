"""`muster up`: set up and start the coordinator on this machine."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from muster.cli.cluster.init import (
    default_folder,
    make_public,
    this_user,
    user_named,
)
from muster.cli.cluster.printed_lines import install_line, join_line, upgrade_line
from muster.cli.cluster.setup.new_cluster import (
    SUBMITTER,
    SYSTEM_DIR,
    SYSTEM_STATE,
    NewCluster,
    write_cluster,
)
from muster.cli.cluster.setup.written_cluster import WrittenCluster, read_cluster
from muster.cli.errors import RefusedError
from muster.cli.input.param_types import DURATION
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.client import enrolment as calls
from muster.client.client import Client
from muster.client.config import client_file_path, load_settings
from muster.client.errors import ClientError
from muster.daemon.errors import FileError
from muster.daemon.listen_address import own_address
from muster.daemon.units import (
    COORDINATOR,
    install_unit,
    link_program,
    program,
    systemd_runs,
)
from muster.http.enrolment import JoinSecretRequest, NewJoinSecret
from muster.wheels.manifest import MANIFEST, TARGET

_TIME_LIMIT_S: Final = 86400.0


class UpOutput(msgspec.Struct, frozen=True):
    """The output of `muster up --json`. `node_line` and `person_line` are the commands for nodes
    and for people, `start` the one that starts the coordinator, unless it was started. `new` is
    false if the cluster was set up before. `install_line` is the command for nodes without Muster,
    empty if there are no wheels for them, and so is `upgrade_line`, which brings nodes and people
    to the release of the coordinator.
    """

    url: str
    folder: str
    start: str
    node_line: str
    person_line: str
    new: bool
    install_line: str = ""
    upgrade_line: str = ""


def _read_targets(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    for text in given:
        if re.search(TARGET, text) is None:
            raise click.BadParameter(f"{text!r} is not PYTHON-MACHINE, such as 3.12-aarch64")
    return given


@click.command("up")
@click.option(
    "--run-as",
    metavar="USER",
    help=f"User of the jobs on the nodes, or {SUBMITTER} for each job's own; asked for if missing.",
)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Host name or address of this machine for nodes and people; the first one is printed "
    "(default: the address of the default route). Its other names and addresses work, too.",
)
@click.option("--pool", "pools", metavar="POOL", multiple=True, help="A pool (default: default).")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=DURATION,
    metavar="TIME",
    help="Time limit of jobs that set none (default: 1d).",
)
@click.option("--user", metavar="NAME", help="The first admin (default: you).")
@click.option("--approve", is_flag=True, help="Make new nodes wait for `muster node accept`.")
@click.option("--port", type=click.IntRange(1, 65535), default=7077, help="Port of users.")
@click.option("--agents-port", type=click.IntRange(1, 65535), default=7079, help="Port of agents.")
@click.option("--listen", metavar="ADDRESS", help="Listen only on this address (default: all).")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the configuration (default: /etc/muster for root).",
)
@click.option("--no-start", is_flag=True, help="Do not install and start the systemd unit.")
@click.option(
    "--wheels-for",
    metavar="TARGET",
    multiple=True,
    callback=_read_targets,
    help="Nodes without an index have another Python or machine, such as 3.12-aarch64; also later.",
)
@click.option("--no-wheels", is_flag=True, help="Download no wheels for nodes without an index.")
@json_option
def command(
    *,
    run_as: str | None,
    names: tuple[str, ...],
    pools: tuple[str, ...],
    time_limit_s: float | None,
    user: str | None,
    approve: bool,
    port: int,
    agents_port: int,
    listen: str | None,
    folder: Path | None,
    no_start: bool,
    wheels_for: tuple[str, ...],
    no_wheels: bool,
    as_json: bool,
) -> None:
    """Set up a cluster with this machine as its coordinator: a CA of its own, certificates, the
    configuration and the first admin. Downloads the wheels from which nodes without a package index
    install Muster. Where systemd runs, the coordinator is started. Prints the lines for nodes and
    for people. Run again, it changes nothing, except for wheels that are missing or of another
    release.

    \b
    muster up --run-as trainer
    muster up --wheels-for 3.12-aarch64
    """
    if no_wheels and wheels_for:
        raise click.UsageError("--wheels-for and --no-wheels exclude each other")
    # Files are for everybody, unless they have a mode of their own: those with secrets.
    os.umask(0o022)
    client_file = client_file_path(os.environ).absolute()
    folder = (folder or default_folder(client_file)).absolute()
    config = folder / "coordinator.yaml"
    new = not os.path.lexists(config)
    if new:
        plan = NewCluster(
            folder=folder,
            state=SYSTEM_STATE if folder == SYSTEM_DIR else folder / "state",
            host=names[0] if names else own_address(),
            port=port,
            agents_port=agents_port,
            listen=listen or "0.0.0.0",  # noqa: S104 - with TLS and tokens only
            names=names,
            run_as=_run_as(run_as),
            pools=pools or ("default",),
            time_limit_s=time_limit_s or _TIME_LIMIT_S,
            user=user_named(user or this_user(os.environ)),
            approve=approve,
        )
        write_cluster(plan, client_file, start=systemd_runs() and not no_start)
        _explain(plan, client_file)
    else:
        note(f"{safe(str(config))} exists: nothing was changed")
    written = read_cluster(config)
    if folder == SYSTEM_DIR and os.geteuid() == 0:
        _link()
    if not no_wheels:
        _fill(written, wheels_for)
    _print(config, written, start=systemd_runs() and not no_start, new=new, as_json=as_json)


def _run_as(given: str | None) -> str:
    if not given and sys.stdin.isatty():
        given = click.prompt(f"User of the jobs on the nodes, or {SUBMITTER}", err=True)
    if not given:
        raise click.UsageError(
            f"name the user of the jobs: --run-as USER for all jobs, or --run-as {SUBMITTER} for "
            "each job's own"
        )
    return given.strip()


def _explain(plan: NewCluster, client_file: Path) -> None:
    """Print what follows from the choices of a new cluster."""
    if plan.run_as != SUBMITTER:
        note(
            f"all jobs run as {plan.run_as}, who must exist on each node (useradd --create-home "
            f"{plan.run_as}): one team, whose members can read and end each other's jobs. Nodes "
            f"get `single_team: true`. To keep people apart: --run-as {SUBMITTER}"
        )
    else:
        note(
            "each job runs as the user who submits it, who must exist on each node: useradd "
            "--create-home NAME, or a directory service"
        )
    note(
        "jobs that name no `python` need an environment with torch on each node: add --python "
        "/opt/training, or where it is, to the nodes' lines"
    )
    own = f"muster token create --user {plan.user}"
    if os.geteuid() != 0:
        note(f"{safe(plan.user)} is the first admin, with the token in {safe(str(client_file))}")
        return
    if plan.user == "root":
        own = "muster user add NAME --role admin --login"
    note(
        f"{safe(plan.user)} is the first admin, with the token in {safe(str(client_file))}, which "
        "root reads: `sudo muster nodes` works on this machine. For an admin's own account, "
        f"here or elsewhere: sudo {own}"
    )


def _link() -> None:
    """Make the printed lines work as they are printed."""
    try:
        done = link_program()
    except FileError as error:
        done = f"warning: {error}; use {program()}"
    if done:
        note(safe(done))


def _fill(written: WrittenCluster, targets: Sequence[str]) -> None:
    """Fill the directory of wheels. Without an index, the cluster works without them."""
    from muster.wheels.fill import NoWheelsError, fill

    if written.wheels is None:
        if targets:
            raise RefusedError("the configuration names no directory of wheels: set join.wheels")
        return
    try:
        make_public(written.wheels.parent)
        made = fill(written.wheels, targets)
    except (NoWheelsError, OSError) as error:
        note(
            "warning: nodes cannot install Muster from here, because its wheels cannot be "
            f"downloaded: {safe(str(error))}\n  run `muster up` again where pip reaches an index "
            "or a folder of wheels (PIP_INDEX_URL, PIP_FIND_LINKS), or use --no-wheels"
        )
    else:
        note(f"wheels for nodes without a package index: {', '.join(sorted(made.targets))}")


def _pin(written: WrittenCluster) -> str:
    """Return the pin of the coordinator's public key; empty if there are no wheels."""
    from muster.daemon.certificates import public_key_pin

    if written.wheels is None or not (written.wheels / MANIFEST).exists():
        return ""
    return public_key_pin(written.cert.read_bytes())


def _print(config: Path, written: WrittenCluster, *, start: bool, new: bool, as_json: bool) -> None:
    """Start the coordinator if systemd runs, and print the lines for nodes and for people."""
    address, run_as = written.address, written.run_as
    try:
        ca, pin = written.ca.read_bytes(), _pin(written)
    except (OSError, ValueError) as error:
        raise RefusedError(f"a certificate cannot be read: {safe(str(error))}") from error
    url = f"https://{address}"
    command_line = f"{program()} coordinator --config {config}"
    made = None
    if start:
        install_unit(COORDINATOR, config)
        note(f"{COORDINATOR} runs")
        made = _join_secret() if new else None
        command_line = ""
    found = UpOutput(
        url=url,
        folder=str(config.parent),
        start=command_line,
        node_line=join_line(url, made, run_as),
        person_line="muster user add NAME --login",
        new=new,
        install_line=install_line(url, pin, made, run_as) if pin else "",
        upgrade_line=upgrade_line(url, pin) if pin else "",
    )
    if as_json:
        print_json(found)
        return
    if command_line:
        print(f"start the coordinator:  {command_line}")
    secret = (
        "one node, within an hour; a line for more nodes: muster token create --join --uses N"
        if made is not None
        else "asks for a secret: muster token create --join prints the whole line"
    )
    if found.install_line:
        print(f"each node, as root:     {found.install_line}")
        print(f"  or if it has Muster:  {found.node_line}")
    else:
        print(f"each node, as root:     {found.node_line}")
    print(f"                        ({secret})")
    print(
        f"each person:            {found.person_line}\n"
        "                        (here; prints the line for the person's own machine)"
    )
    if found.upgrade_line:
        print(f"upgrades, on each:      {found.upgrade_line}")
    note(f"the coordinator is {url}; the SHA-256 of its CA is {hashlib.sha256(ca).hexdigest()}")


def _join_secret() -> NewJoinSecret | None:
    """Create the first join secret with the admin's token. None if the coordinator does not answer
    yet."""
    try:
        client = Client.of(load_settings(os.environ))
        return client.call(calls.create_join_secret(JoinSecretRequest()))
    except ClientError as error:
        note(f"no join secret was created: {safe(str(error))}")
        return None
