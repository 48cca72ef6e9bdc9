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
from muster.cli.cluster.setup.kept_options import GivenOptions, kept_options
from muster.cli.cluster.setup.new_cluster import (
    SUBMITTER,
    SYSTEM_DIR,
    SYSTEM_STATE,
    NewCluster,
    give_to_account,
    write_cluster,
)
from muster.cli.cluster.setup.server_certificate import renew_certificate
from muster.cli.cluster.setup.written_cluster import WrittenCluster, read_cluster
from muster.cli.errors import RefusedError
from muster.cli.input.param_types import DURATION
from muster.cli.output.format import moment, note, safe
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
from muster.protocol.timestamp import timestamp
from muster.wheels.manifest import MANIFEST, TARGET

_TIME_LIMIT_S: Final = 86400.0
_PORT: Final = click.IntRange(1, 65535)
_USERS: Final = 7077
_AGENTS: Final = 7079


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
    "--python",
    metavar="PATH",
    help="Interpreter, venv or conda prefix with torch, at the same path on all nodes, for jobs "
    "that name none; goes into the nodes' lines; asked for if missing.",
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
@click.option("--port", type=_PORT, metavar="N", help=f"Port of users (default: {_USERS}).")
@click.option(
    "--agents-port", type=_PORT, metavar="N", help=f"Port of agents (default: {_AGENTS})."
)
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
@click.option(
    "--renew-certificate",
    "renew",
    is_flag=True,
    help="Sign the coordinator's certificate anew, with the same key; --name adds names to it.",
)
@click.option("--no-wheels", is_flag=True, help="Download no wheels for nodes without an index.")
@json_option
def command(
    *,
    run_as: str | None,
    python: str | None,
    names: tuple[str, ...],
    pools: tuple[str, ...],
    time_limit_s: float | None,
    user: str | None,
    approve: bool,
    port: int | None,
    agents_port: int | None,
    listen: str | None,
    folder: Path | None,
    no_start: bool,
    wheels_for: tuple[str, ...],
    renew: bool,
    no_wheels: bool,
    as_json: bool,
) -> None:
    """Set up a cluster with this machine as its coordinator: a CA of its own, certificates, the
    configuration and the first admin. Downloads the wheels from which nodes without a package index
    install Muster. Where systemd runs, the coordinator is started. Prints the lines for nodes and
    for people. Run again, it changes nothing, except for wheels that are missing or of another
    release; it names each option that differs from what the cluster has, and how to change that.

    \b
    muster up --run-as trainer --python /opt/training
    muster up --wheels-for 3.12-aarch64
    muster up --renew-certificate
    """
    if no_wheels and wheels_for:
        raise click.UsageError("--wheels-for and --no-wheels exclude each other")
    given = GivenOptions(
        run_as, python, names, pools, time_limit_s, user, approve, port, agents_port, listen
    )
    # Files are for everybody, unless they have a mode of their own: those with secrets.
    os.umask(0o022)
    client_file = client_file_path(os.environ).absolute()
    folder = (folder or default_folder(client_file)).absolute()
    config = folder / "coordinator.yaml"
    new = not os.path.lexists(config)
    if renew:
        if new:
            raise RefusedError(f"there is no {safe(str(config))}: nothing was renewed")
        _renew(config, names)
        return
    if new:
        plan = _planned(folder, given)
        write_cluster(plan, client_file, start=systemd_runs() and not no_start)
        _explain(plan, client_file)
    else:
        note(f"{safe(str(config))} exists: nothing was changed")
    written = read_cluster(config)
    if not new:
        for why in kept_options(config, written, given):
            note(f"warning: {safe(why)}")
    if folder == SYSTEM_DIR and os.geteuid() == 0:
        _link()
    if not no_wheels:
        _fill(written, wheels_for)
    _print(config, written, start=systemd_runs() and not no_start, new=new, as_json=as_json)


def _planned(folder: Path, given: GivenOptions) -> NewCluster:
    """Return the choices of a new cluster: those given, asked for, or usual."""
    return NewCluster(
        folder=folder,
        state=SYSTEM_STATE if folder == SYSTEM_DIR else folder / "state",
        host=given.names[0] if given.names else own_address(),
        port=given.port or _USERS,
        agents_port=given.agents_port or _AGENTS,
        listen=given.listen or "0.0.0.0",  # noqa: S104 - with TLS and tokens only
        names=given.names,
        run_as=_run_as(given.run_as),
        python=_python(given.python),
        pools=given.pools or ("default",),
        time_limit_s=given.time_limit_s or _TIME_LIMIT_S,
        user=user_named(given.user or this_user(os.environ)),
        approve=given.approve,
    )


def _renew(config: Path, names: tuple[str, ...]) -> None:
    written = read_cluster(config)
    made = renew_certificate(written, names)
    added = f", now also for {', '.join(map(safe, made.added))}" if made.added else ""
    note(
        f"{safe(str(written.cert))} is renewed until {moment(timestamp(made.expires))}{added}. Its "
        "key is the same: printed lines, nodes and people go on as before, and a coordinator that "
        "runs has it within seconds"
    )


def _run_as(given: str | None) -> str:
    if not given and sys.stdin.isatty():
        given = click.prompt(f"User of the jobs on the nodes, or {SUBMITTER}", err=True)
    if not given:
        raise click.UsageError(
            f"name the user of the jobs: --run-as USER for all jobs, or --run-as {SUBMITTER} for "
            "each job's own"
        )
    return given.strip()


def _python(given: str | None) -> str:
    """Return where the nodes have torch; "" if nobody says so."""
    if given is None and sys.stdin.isatty():
        text = "Interpreter, venv or conda prefix with torch on the nodes (empty for none)"
        given = str(click.prompt(text, default="", show_default=False, err=True))
    path = (given or "").strip()
    if path and (not path.startswith("/") or not path.isprintable()):
        raise click.UsageError(f"--python: {path!r} is not an absolute path, such as /opt/training")
    return path


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
    if plan.python:
        note(
            f"jobs that name no `python` use {safe(plan.python)} of each node, with its torch: it "
            "has to exist on the nodes, and not here"
        )
    else:
        note(
            "no --python was given: nodes take jobs that name their `python`, and say `no_torch` "
            "to the others. To change that, set `python: /opt/training`, or where torch is on the "
            f"nodes, in `join` of {safe(str(plan.folder / 'coordinator.yaml'))}, and restart the "
            "coordinator before nodes join"
        )
    own = f"token create --user {plan.user}"
    if os.geteuid() != 0:
        note(f"{safe(plan.user)} is the first admin, with the token in {safe(str(client_file))}")
        return
    if plan.user == "root":
        own = "user add NAME --role admin --login"
        if plan.run_as == SUBMITTER:
            note(
                "root is the first admin, and cannot submit jobs, because a job runs as its "
                "submitter and never as root: submit as a person with an account on the nodes"
            )
    note(
        f"{safe(plan.user)} is the first admin, with the token in {safe(str(client_file))}, which "
        f"root reads. On this machine: sudo {program()} nodes\n  for an admin's own account, here "
        f"or elsewhere: sudo {program()} {own}"
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
    address, options = written.address, written.options
    try:
        ca, pin = written.ca.read_bytes(), _pin(written)
    except (OSError, ValueError) as error:
        raise RefusedError(f"a certificate cannot be read: {safe(str(error))}") from error
    url = f"https://{address}"
    command_line = f"{program()} coordinator --config {config}"
    made = None
    if start:
        if not new:
            give_to_account(written.private)
        install_unit(COORDINATOR, config)
        note(f"{COORDINATOR} runs")
        made = _join_secret() if new else None
        command_line = ""
    found = UpOutput(
        url=url,
        folder=str(config.parent),
        start=command_line,
        node_line=join_line(url, made, options),
        person_line="muster user add NAME --login",
        new=new,
        install_line=install_line(url, pin, made, options) if pin else "",
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
