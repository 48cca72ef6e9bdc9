"""`muster probe` and `muster doctor`, for one node with or without a cluster."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from agent.config import PREFIX, AgentConfig, load
from agent.probe.certificate_ends import certificate_ends
from agent.probe.certificate_refusal import certificate_refusal
from agent.probe.fabric.probe import ProbeOptions, probe
from agent.probe.fabric.report import doctor_text, exit_code, probe_text
from agent.probe.fabric.user_access import JobUser, user_named
from agent.probe.interpreter import NoTorch, UnknownError, look_for_torch
from agent.probe.udp_port import taken_by_others
from agent.shims.apart import not_apart
from agent.shims.backend import may_use_units, why_devices_are_open
from agent.taskdirs.entrance import cannot_enter
from muster.daemon.errors import ConfigError
from muster.fabric.nccl_version import version_of
from muster.fabric.schema import probe_schema

VERBS: Final = ("probe", "doctor")
EXIT_USAGE: Final = 2
EXIT_CONFIG: Final = 125
"""Not 2, which doctor uses for an unhealthy node."""
CONFIG: Final = Path("/etc/muster/agent.yaml")

_DOCTOR_CODES: Final = "Exit codes: 0 healthy, 1 warnings, 2 errors, 125 usage error."


def main(verb: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    parser = _parser(verb)
    flags = parser.parse_args(arguments)
    if verb == "probe" and flags.schema:
        _print(json.dumps(probe_schema(), indent=2))
        return 0
    root: Path = flags.root
    if not root.is_dir():
        return _complain(verb, f"--root: {root} is not a directory")
    if flags.nccl is not None and version_of(flags.nccl) is None:
        return _complain(verb, f"--nccl: {flags.nccl!r} is not a version; write it like 2.27.3")
    try:
        asked = _asked(root, flags.config, flags.nccl)
    except ConfigError as error:
        return _complain(verb, " ".join(str(error).split()))
    found = probe(root, asked)
    if flags.json:
        _print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _print(probe_text(found) if verb == "probe" else doctor_text(found))
    return exit_code(found) if verb == "doctor" else 0


def after_join(config: Path) -> None:
    """Print what is wrong with a node that has joined, without the notes of its doctor."""
    _print(doctor_text(probe(asked=asked_by(load(file=config, environ={}))), notes=False))


def asked_by(
    config: AgentConfig, *, live: bool = True, nccl: str | None = None, agent: bool = False
) -> ProbeOptions:
    """Options of a probe from this node's configuration. `agent`: the agent itself probes."""
    submitters = config.as_submitters
    known = live and config.run_as is not None and not submitters
    user = user_named(config.run_as or "") if known else None
    return ProbeOptions(
        rules=config.fabric,
        settings=config.fabric.variables,
        nccl=nccl,
        python=str(config.python),
        user=user,
        home=_home(user) if live and not submitters else None,
        network=config.interface or config.address,
        agent=agent,
        state_dir=config.state_dir if live and not config.shared_host else None,
        hosts_file=config.hosts.file,
        processes_max=config.processes_max,
        open_devices=why_devices_are_open(units=may_use_units(config)) if live else "",
        not_apart=not_apart(config) if live and not agent else {},
        single_team=config.single_team,
        no_torch=_no_torch(config) if live and not agent else None,
        submitters=live and not agent and submitters and os.geteuid() == 0,
        closed=_closed(config) if live and not agent else "",
        certificate_ends=certificate_ends(config) if live and not agent else (),
        peer_port=taken_by_others(config) if live and not agent else "",
        refusal=certificate_refusal(config) if live and not agent else None,
    )


def _closed(config: AgentConfig) -> str:
    """Return why every job would be refused, because its user cannot enter its folder, or ""."""
    if os.geteuid() != 0 or (config.run_as is None and not config.as_submitters):
        return ""
    # The agent opens its own folder at its start, but none above.
    above = config.state_dir.absolute().parent
    while not above.exists():
        above = above.parent
    try:
        return cannot_enter(None if config.as_submitters else config.run_as, above)
    except (OSError, KeyError):
        return ""


def _no_torch(config: AgentConfig) -> NoTorch | None:
    submitters = config.as_submitters
    user = None if submitters else config.run_as
    try:
        return look_for_torch(config.python, user, submitters=submitters)
    except UnknownError:
        return None


def _asked(root: Path, file: Path | None, nccl: str | None) -> ProbeOptions:
    """Options for a tree. This machine's configuration applies to another tree only if it is
    named.
    """
    live = os.path.realpath(root) == "/"
    configured = any(name.startswith(f"{PREFIX}_") for name in os.environ)
    if live and file is None and not configured:
        file = next((place for place in _places() if os.access(place, os.R_OK)), None)
    if not live and file is None:
        return ProbeOptions(nccl=nccl)
    if file is None and not configured:
        # No agent is installed here: an invalid default setting must not prevent the probe.
        return ProbeOptions(nccl=nccl, python=shutil.which("python3"), home=_home(None))
    return asked_by(load(file=file, environ=os.environ if live else {}), live=live, nccl=nccl)


def _places() -> tuple[Path, ...]:
    """Paths where `muster init` writes an agent's configuration, for root and for other users."""
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return CONFIG, Path(own) / "muster" / CONFIG.name


def _home(user: JobUser | None) -> str:
    return user.home if user is not None else os.path.expanduser("~")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with the code for a usage error."""
        verb = self.prog.rpartition(" ")[2]
        sys.exit(_complain(verb, f"{message}; `muster {verb} --help` shows the options"))


def _parser(verb: str) -> argparse.ArgumentParser:
    probing = verb == "probe"
    parser = _Parser(
        prog=f"muster {verb}",
        description="Show this node's HCAs, GPUs and interfaces, and what its jobs will use."
        if probing
        else "Show the problems of this node's fabric, their effect and the fix. Needs no cluster.",
        epilog=None if probing else _DOCTOR_CODES,
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="read sys, proc, dev and etc below DIR; this machine is not queried",
    )
    parser.add_argument("--json", action="store_true", help="docs/reference/probe.md explains it")
    parser.add_argument(
        "--nccl", metavar="VERSION", help="of the jobs' torch; default: what is installed"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"of the agent; default: {CONFIG} or ~/.config/muster/{CONFIG.name}, if one is "
        "there, else the choice is that of an agent without settings",
    )
    if probing:
        parser.add_argument("--schema", action="store_true", help="print the JSON Schema of --json")
    return parser


def _print(text: str) -> None:
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:
        # `muster probe | head` has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(verb: str, text: str) -> int:
    sys.stderr.write(f"muster {verb}: {text}\n")
    return EXIT_USAGE if verb == "probe" else EXIT_CONFIG
