"""`muster join`: make this machine a node of a cluster.

The CA proves itself by the digest in the join secret. The secret and the signing request are sent
over a second connection, which that CA vouches for.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import pwd
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final

import msgspec
import yaml

from agent.config import PEER_PORT, SUBMITTER, AgentConfig, load
from agent.probe.fabric import command as doctor
from agent.probe.host import check_labels, machine_id
from muster.client.pinned_ca import CaError, fetch_ca
from muster.daemon.clock import SystemClock
from muster.daemon.config_loader import parse_yaml, read_yaml
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import ConfigError, DaemonError, TlsError
from muster.daemon.tls import client_context
from muster.daemon.units import AGENT, install_unit, program, systemd_runs
from muster.http.enrolment import KEY_RETIRED, JoinAnswer, JoinRequest
from muster.protocol.tokens import BadToken, JoinSecretText, parse_join

VERB: Final = "join"
_SYSTEM_DIR: Final = Path("/etc/muster")
_SYSTEM_STATE: Final = Path("/var/lib/muster/agent")
_CERTIFICATE: Final = "node.pem"
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644
_TIMEOUT_S: Final = 30.0
_PORT: Final = 7077
# An IPv6 address is in brackets if a port follows.
_TARGET: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\s:/\[\]]+))(?::(?P<port>[0-9]{1,5}))?"
    r"|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f:.%]*:[0-9A-Fa-f:.%]*)"
)
_BYTES_MAX: Final = 1 << 16


class JoinError(Exception):
    """The node has not joined. The message is for users."""


class RetiredKeyError(JoinError):
    """The coordinator accepts no join with this key."""


def main(arguments: Sequence[str]) -> int:
    """Join, and return the exit code: 0 joined, 1 not joined, 2 usage error."""
    flags = _parser().parse_args(arguments)
    # Jobs and people pass through the folders. Files with secrets have a mode of their own.
    os.umask(0o022)
    try:
        host, port = _target(flags.coordinator)
        secret = parse_join(flags.secret or _asked_secret())
        return _join(flags, host, port, secret)
    except BadToken as error:
        return _complain(error, 2)
    except (JoinError, CaError, ConfigError, TlsError, DaemonError, OSError) as error:
        return _complain(error, 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"muster {VERB}",
        description="Make this machine a node of a cluster: get a certificate of its own, write "
        "the agent's configuration, and start the agent if systemd runs.",
    )
    parser.add_argument(
        "coordinator",
        metavar="HOST[:PORT]",
        help=f"the coordinator's users' port (default: {_PORT}, that of `muster up`)",
    )
    parser.add_argument(
        "secret",
        metavar="SECRET",
        nargs="?",
        help="mj1.SHA256.SECRET, from `muster token create --join`; default: asked for, or read "
        "from standard input",
    )
    parser.add_argument("--node", metavar="NAME", help="name (default: this machine's host name)")
    parser.add_argument(
        "--run-as",
        metavar="USER",
        help=f"user of the jobs, or {SUBMITTER} for each job's own; required as root",
    )
    parser.add_argument("--pool", metavar="POOL", help="pool (default: that of the secret)")
    parser.add_argument(
        "--label",
        dest="labels",
        metavar="NAME=VALUE",
        action="append",
        type=_label,
        default=[],
        help="label of the node, for `placement` of jobs and for settings; may be repeated",
    )
    parser.add_argument("--python", metavar="FILE", help="interpreter of jobs that name none")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="directory of the configuration")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="directory of the state")
    parser.add_argument("--no-start", action="store_true", help="do not install the systemd unit")
    return parser


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as rack=a1")
    return name, value


def _target(text: str) -> tuple[str, int]:
    found = _TARGET.fullmatch(text.removeprefix("https://").rstrip("/"))
    port = int(found["port"] or _PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise JoinError(f"{text!r} is not HOST or HOST:PORT, such as head:{_PORT}")
    return found["v6"] or found["bare"] or found["host"], port


def _asked_secret() -> str:
    """Read the secret from the terminal, or from the first line of standard input."""
    if sys.stdin.isatty():
        return getpass.getpass("Join secret: ").strip()
    return sys.stdin.readline().strip()


def _join(flags: argparse.Namespace, host: str, port: int, secret: JoinSecretText) -> int:
    root = os.geteuid() == 0
    if flags.run_as and flags.dir is None and not root:
        raise JoinError(
            "only root installs an agent that runs jobs as other users: run this line as root; "
            "sudo before curl does not reach the shell after the pipe, so there it is "
            "curl ... | sudo env MUSTER_JOIN=SECRET sh -s -- --run-as USER; the secret was not used"
        )
    folder: Path = (flags.dir or (_SYSTEM_DIR if root else _own_dir())).absolute()
    config = folder / "agent.yaml"
    # A node that joins again keeps the settings that this join does not decide.
    there = config.exists()
    old = read_yaml(config, AgentConfig) if there else {}
    state_dir = flags.state_dir and str(flags.state_dir.absolute())
    if state_dir is None and "state_dir" not in old:
        state_dir = str(_SYSTEM_STATE if folder == _SYSTEM_DIR else folder / "agent")
    given = {
        "node": flags.node,
        "state_dir": state_dir,
        "pool": flags.pool,
        "labels": _labels(old, dict(flags.labels)),
        "run_as": _run_as(flags.run_as or str(old.get("run_as") or ""), root=root),
        "python": flags.python,
        "single_team": _is_meant(flags.run_as, old),
    }
    shown = f"[{host}]" if ":" in host else host
    # The secret stays unused if the node's agent cannot start.
    first = {**given, "coordinator": f"https://{shown}:{port}"}
    checked = load(file=config if there else None, environ={}, flags=first)
    check_labels(checked)
    node, state = checked.node, checked.state_dir

    pem = fetch_ca(host, port, secret.ca_sha256, "join secret")
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    state.mkdir(mode=0o711, parents=True, exist_ok=True)
    ca = folder / "ca.pem"
    write_atomic(ca, pem, _PUBLIC)
    answer = _certified(host, port, ca, secret, node, state / _CERTIFICATE)

    decided = {
        "coordinator": f"https://{shown}:{answer.agents_port}",
        "certificate": str(state / _CERTIFICATE),
        "tls_ca": str(ca),
        **given,
        "node": node,
        "pool": answer.pool or flags.pool,
        "peer_port": None if "peer_port" in old else peer_port_beside(host, answer.agents_port),
    }
    settings = {name: value for name, value in decided.items() if value}
    text = config.read_text("utf-8") if there else _HEAD
    edited, comments = _edited(text, old, settings)
    write_atomic(config, edited.encode(), _PUBLIC)
    load(file=config, environ={})
    _say(_done(f"{host}:{port}", node, config, old if there else None, settings))
    if flags.pool and answer.pool not in {"", flags.pool}:
        _say(f"its pool is {answer.pool}, that of the secret, and not {flags.pool}")
    if not comments:
        _say(f"the comments in {config} are gone, because its settings are not one on each line")
    if answer.waits:
        _say(f"it waits for an operator: muster node accept {node}")
    if systemd_runs() and not flags.no_start:
        # An agent that ran before does not read its configuration again. Its jobs run on.
        install_unit(AGENT, config, restart=True)
        _say(f"started {AGENT}")
    else:
        _say(f"start the agent with: {program()} agent --config {config}")
    sys.stdout.flush()
    doctor.after_join(config)
    return 0


def _own_dir() -> Path:
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(own) / "muster"


def _run_as(given: str, *, root: bool) -> str | None:
    if not given and root and sys.stdin.isatty():
        given = input(f"User of the jobs on this node, or {SUBMITTER} for each job's own: ").strip()
    if not given:
        if root:
            raise JoinError(
                f"name the user of the jobs: --run-as USER for all jobs, or --run-as {SUBMITTER} "
                "for each job's own"
            )
        return None
    if given != SUBMITTER:
        try:
            pwd.getpwnam(given)
        except KeyError:
            raise JoinError(
                f"there is no user {given} on this node: useradd --create-home {given}, and run "
                "the line again; the secret was not used"
            ) from None
    return given


def _certified(
    host: str, port: int, ca: Path, secret: JoinSecretText, node: str, path: Path
) -> JoinAnswer:
    """Get a certificate, and write it with its key."""
    # Imported late, because it takes time, and usage errors come first.
    from muster.daemon.certificates import new_key, signing_request, why_not_valid

    def ask(key: bytes) -> JoinAnswer:
        request = signing_request(key, node)
        asked = JoinRequest(f"{secret.id}-{secret.secret}", node, request, machine_id())
        return _ask(host, port, ca, asked)

    key = _own_key(path)
    try:
        answer = ask(key)
    except RetiredKeyError as error:
        # A copied state folder, or a node that was revoked. With another key, a machine takes
        # nobody's place.
        _say(f"{' '.join(str(error).split())}: this node has made a new key")
        key = new_key()
        write_atomic(path, key, _PRIVATE)
        answer = ask(key)
    made = answer.certificate.encode()
    wrong = why_not_valid(made, SystemClock().now().wall)
    if wrong:
        raise JoinError(
            f"by this node's clock the certificate of {host}:{port} for it {wrong}: set the "
            "coordinator's clock, or this node's, and run the line again"
        )
    write_atomic(path, made + key, _PRIVATE)
    return answer


def peer_port_beside(host: str, agents_port: int) -> int | None:
    """Return a port for this node's agent if it would take that of the coordinator on the same
    machine, which could not start again then. None if the default is good.
    """
    if agents_port != PEER_PORT or not _is_here(host):
        return None
    return agents_port + 1


def _is_here(host: str) -> bool:
    """True if a name or address is this machine's."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)  # refused if no interface has it
    except OSError:
        return False
    return True


def _is_meant(run_as: str | None, old: Mapping[str, object]) -> bool | None:
    """Return True if the operator names one user for all jobs here. None leaves it as it is."""
    if not run_as or run_as == SUBMITTER or "single_team" in old:
        return None
    return True


def _own_key(path: Path) -> bytes:
    """Return this node's private key, which stays on the node. An earlier join's is used again:
    by it the coordinator knows that it is the same machine.
    """
    from muster.daemon.certificates import new_key

    begin = b"-----BEGIN PRIVATE KEY-----"
    try:
        _, found, rest = path.read_bytes().partition(begin)
    except FileNotFoundError:
        found = rest = b""
    if found:
        return found + rest
    key = new_key()
    write_atomic(path, key, _PRIVATE)
    return key


def _ask(host: str, port: int, ca: Path, asked: JoinRequest) -> JoinAnswer:
    context = client_context(ca)
    connection = HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    try:
        date = formatdate(SystemClock().now().wall, usegmt=True)
        headers = {"Content-Type": "application/json", "Date": date}
        connection.request("POST", "/v1/join", msgspec.json.encode(asked), headers)
        answer = connection.getresponse()
        body = answer.read(_BYTES_MAX)
    except (OSError, HTTPException) as error:
        raise JoinError(
            f"{host}:{port} cannot be trusted or reached: {error}; the secret was not sent unless "
            "the connection broke after that"
        ) from error
    finally:
        connection.close()
    if answer.status != 201:
        code, why = _why(answer.status, body)
        raise (RetiredKeyError if code == KEY_RETIRED else JoinError)(why)
    try:
        return msgspec.json.decode(body, type=JoinAnswer)
    except msgspec.DecodeError as error:
        raise JoinError(f"{host}:{port} answered what no coordinator does: {error}") from error


def _why(status: int, body: bytes) -> tuple[str, str]:
    """Return the code of a refusal, and its text."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    text = "".join(c if c.isprintable() else "?" for c in str(problem.get("detail", "")))
    hint = "".join(c if c.isprintable() else "?" for c in str(problem.get("hint", "")))
    said = f"{text or f'the coordinator answered {status}'}{f'; {hint}' if hint else ''}"
    return str(problem.get("code", "")), said


_HEAD: Final = (
    "# A node's agent, written by `muster join`; run it with: muster agent --config THIS_FILE\n"
)


def _edited(
    text: str, old: Mapping[str, object], settings: Mapping[str, object]
) -> tuple[str, bool]:
    """Return the text of a configuration with these settings in it, and True if it has its
    comments still. All else stays."""
    edited = text
    for name, value in settings.items():
        if old.get(name) != value:
            edited = _with_line(edited, name, f"{name}: {json.dumps(value)}")
    wanted = {**old, **settings}
    try:
        if parse_yaml(edited, AgentConfig) == wanted:
            return edited, True
    except (yaml.YAMLError, ValueError):
        pass
    return _HEAD + yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True), False


def _with_line(text: str, name: str, line: str) -> str:
    """Return the text with this line for a setting, in its old place, with the comment there."""
    place = re.compile(rf"^{name}:(?:[^#\n]*?([ \t]+#.*)|.*)$", re.MULTILINE)
    edited, found = place.subn(lambda old: line + (old[1] or ""), text)
    if found:
        return edited
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"


def _done(
    target: str,
    node: str,
    config: Path,
    old: Mapping[str, object] | None,
    settings: Mapping[str, object],
) -> str:
    """Return what a join has done. `old` are the settings that were there, None without a file."""
    if old is None:
        return f"{node} joined {target}; wrote {config}"
    changed = [name for name, value in settings.items() if old.get(name) != value]
    if not changed:
        return f"{node} joined {target} again, with a new certificate; {config} is unchanged"
    kept = [name for name in old if name not in changed]
    what = f"changed {', '.join(changed)} and kept {', '.join(kept) or 'nothing'}"
    return f"{node} joined {target}; {what} in {config}"


def _labels(old: Mapping[str, object], given: Mapping[str, str]) -> dict[str, object] | None:
    """Return the labels that the node had, with those that are given; None if none are."""
    had = old.get("labels")
    return {**(had if isinstance(had, Mapping) else {}), **given} if given else None


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(error: Exception, code: int) -> int:
    sys.stderr.write(f"muster {VERB}: {' '.join(str(error).split())}\n")
    return code
