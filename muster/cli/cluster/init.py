"""`muster init`: write the files of a new cluster."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import re
import socket
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from muster.cli.cluster.tokens_file import PRIVATE, new_token, read_tokens, tokens_text
from muster.cli.errors import RefusedError
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.client.config import check_url, client_file_path, is_loopback
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import ConfigError
from muster.http.people import user_name_problem
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass

_SYSTEM_DIR: Final = Path("/etc/muster")
_SYSTEM_STATE: Final = Path("/var/lib/muster")
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
_PUBLIC: Final = 0o644
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")


class ListenAt(NamedTuple):
    """The coordinator's listen address."""

    host: str
    port: int


class TlsFiles(NamedTuple):
    """PEM files. `ca` is the CA for agents and clients; None uses the system's trust store."""

    cert: Path
    key: Path
    ca: Path | None


class Cluster(NamedTuple):
    """The values that go into the files."""

    folder: Path
    state: Path
    listen: ListenAt
    url: str
    tls: TlsFiles | None
    user: str
    client_file: Path


class InitOutput(msgspec.Struct, frozen=True):
    """The output of `muster init --json`. Contains no tokens, only the files that hold them."""

    url: str
    user: str
    files: tuple[str, ...]


def make_public(folder: Path) -> None:
    """Make a folder that all may enter, whatever the umask: people read the CA there, and the
    coordinator its configuration. An existing folder is left as it is.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        folder.mkdir()
        folder.chmod(0o755)


class NewFile(NamedTuple):
    """A file to write; `mode` holds its permission bits."""

    path: Path
    text: str
    mode: int


ACCOUNT: Final = "muster"


def account() -> tuple[int, int] | None:
    """Return the user and the group of the coordinator, which own its private files; None if this
    is not root or there is no such user yet."""
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwnam(ACCOUNT)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid


def _read_listen(_context: click.Context, _parameter: click.Parameter, text: str) -> ListenAt:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    usable = colon and _HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536
    if not usable:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:7077")
    return ListenAt(host, int(port))


_PEM = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)


@click.command("init")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write to (default: /etc/muster for root, else ~/.config/muster).",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7077",
    show_default=True,
    callback=_read_listen,
    help="Listen address of the coordinator. Non-loopback addresses need TLS.",
)
@click.option("--tls-cert", type=_PEM, help="The coordinator's certificate (PEM).")
@click.option("--tls-key", type=_PEM, help="Its private key (PEM).")
@click.option("--tls-ca", type=_PEM, help="The CA that agents and clients trust (PEM).")
@click.option("--url", help="URL of the coordinator for nodes (default: from --listen).")
@click.option("--user", help="User of the admin token (default: you).")
@click.option("--force", is_flag=True, help="Replace existing files; their tokens stop working.")
@json_option
def command(
    *,
    folder: Path | None,
    listen: ListenAt,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    url: str | None,
    user: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the configuration and tokens of a new cluster, and print the commands to run next."""
    given = _tls(listen, tls_cert, tls_key, tls_ca)
    client_file = client_file_path(os.environ)
    folder = (folder or default_folder(client_file)).absolute()
    tls, copies = _copies(folder, given)
    cluster = Cluster(
        folder=folder,
        state=_SYSTEM_STATE if folder == _SYSTEM_DIR else folder / "state",
        listen=listen,
        url=url or _url_of(listen, tls),
        tls=tls,
        user=user_named(user or this_user(os.environ)),
        client_file=client_file.absolute(),
    )
    check_url(cluster.url)
    files = [*copies, *cluster_files(cluster)]
    _refuse_journal(cluster)
    if not force:
        _refuse_existing(files)
    elif os.path.lexists(cluster.client_file) and not _is_of(cluster):
        copy = _keep_copy(cluster.client_file)
        note(
            f"kept the client's file of another cluster as {safe(str(copy))}; to use it: "
            f"MUSTER_CONFIG={safe(str(copy))}"
        )
    _write(cluster, files)
    if copies:
        note(f"{safe(str(folder))} has copies of the certificates: renew them there")
    _print_next(cluster, files, as_json=as_json)


def cluster_files(cluster: Cluster) -> list[NewFile]:
    """Return the files of a new cluster, with fresh tokens in them."""
    admin, admin_record = new_token(TokenClass.USER, cluster.user, role=Role.ADMIN)
    join, join_record = new_token(TokenClass.JOIN, cluster.user)
    ca = cluster.tls.ca if cluster.tls else None
    return [
        NewFile(cluster.folder / "coordinator.yaml", _coordinator_yaml(cluster), _PUBLIC),
        NewFile(cluster.folder / "agent.yaml", _agent_yaml(cluster), _PUBLIC),
        NewFile(_tokens_path(cluster), tokens_text([admin_record, join_record]), PRIVATE),
        NewFile(_join_path(cluster), f"{join}\n", PRIVATE),
        NewFile(
            cluster.client_file,
            _yaml({"url": cluster.url, "token": admin} | ({"ca": str(ca)} if ca else {})),
            PRIVATE,
        ),
    ]


def _tokens_path(cluster: Cluster) -> Path:
    return cluster.folder / "tokens.yaml"


def _join_path(cluster: Cluster) -> Path:
    return cluster.folder / "join-token"


def _coordinator_yaml(cluster: Cluster) -> str:
    text = (
        "# A coordinator; run it with: muster coordinator --config THIS_FILE\n"
        "listen:\n"
        f"  host: {_scalar(cluster.listen.host)}\n"
        f"  port: {cluster.listen.port}\n"
        + _yaml({"state_dir": str(cluster.state / "coordinator")})
        + _yaml({"tokens_file": str(_tokens_path(cluster))})
    )
    if cluster.tls is not None:
        text += (
            "tls:\n"
            f"  cert: {_scalar(str(cluster.tls.cert))}\n"
            f"  key: {_scalar(str(cluster.tls.key))}\n"
            + (f"  ca: {_scalar(str(cluster.tls.ca))}\n" if cluster.tls.ca else "")
        )
    return text


def _agent_yaml(cluster: Cluster) -> str:
    settings = {
        "coordinator": cluster.url,
        "token_file": str(_join_path(cluster)),
        "state_dir": str(cluster.state / "agent"),
    }
    if cluster.tls is not None and cluster.tls.ca is not None:
        settings["tls_ca"] = str(cluster.tls.ca)
    return (
        "# A node's agent; run it with: muster agent --config THIS_FILE\n"
        + _yaml(settings)
        + _HINTS
    )


_HINTS: Final = """\
# Interpreter, with torch, for jobs that do not set `python`. Default: the agent's own.
#python: /opt/training/bin/python
# User of the jobs, if the agent runs as root. Default: SUBMITTER, each job's own.
#run_as: trainer
#single_team: true
# Network of the jobs on this node: an address, or else an interface. Default: for each gang, the
# coordinator chooses the best network that all of its nodes share.
#address: 10.0.0.11
#interface: ib0
"""


def _yaml(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}: {_scalar(value)}\n" for name, value in settings.items())


def _scalar(text: str) -> str:
    """Quote `text` as a JSON string, so that YAML does not read it as a number, date or boolean."""
    return json.dumps(text)


def _tls(listen: ListenAt, cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    if (cert is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key must be used together")
    if cert is not None and key is not None:
        return TlsFiles(cert, key, ca)
    if not is_loopback(listen.host):
        raise click.UsageError(
            f"{listen.host} is reachable from the network, where tokens need TLS: add --tls-cert "
            "and --tls-key (and --tls-ca for a CA of your own)"
        )
    return None


def _copies(folder: Path, given: TlsFiles | None) -> tuple[TlsFiles | None, list[NewFile]]:
    """Return the PEM files as the configuration names them, and those to copy into the folder. The
    coordinator's user and all people can read them there, unlike in the home of root.
    """
    if given is None:
        return None, []
    names = {"cert": "server.pem", "key": "server-key.pem", "ca": "ca.pem"}
    copies = {}
    for kind, path in given._asdict().items():
        if path is None or path.parent == folder.resolve():
            continue
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RefusedError(f"{safe(str(path))} cannot be read: {safe(str(error))}") from error
        copies[kind] = NewFile(folder / names[kind], text, PRIVATE if kind == "key" else _PUBLIC)
    return given._replace(**{kind: copy.path for kind, copy in copies.items()}), [*copies.values()]


def _url_of(listen: ListenAt, tls: TlsFiles | None) -> str:
    host = socket.gethostname() if listen.host in _WILDCARDS else listen.host
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{listen.port}"


def default_folder(client_file: Path) -> Path:
    return _SYSTEM_DIR if os.geteuid() == 0 else client_file.parent


def this_user(environ: Mapping[str, str]) -> str:
    """Return the user at the terminal: under sudo, the user who ran sudo."""
    if os.geteuid() == 0 and environ.get("SUDO_USER"):
        return environ["SUDO_USER"]
    return getpass.getuser()


def user_named(text: str) -> str:
    """Return `text` if it is a valid user name; otherwise raise UsageError."""
    if problem := user_name_problem(text):
        raise click.UsageError(f"{text!r} {problem}")
    return text


def _refuse_existing(files: list[NewFile]) -> None:
    existing = [file.path for file in files if os.path.lexists(file.path)]
    if existing:
        raise RefusedError(
            "nothing was written, because these exist already:\n"
            + "".join(f"  {safe(str(path))}\n" for path in existing)
            + "  choose another --dir (and MUSTER_CONFIG for the client's file), or --force"
        )


def _refuse_journal(cluster: Cluster) -> None:
    """Refuse new tokens that the coordinator would not read, because it has imported others."""
    journal = cluster.state / "coordinator" / "journal.sqlite"
    if not os.path.lexists(journal):
        return
    config = safe(str(cluster.folder / "coordinator.yaml"))
    raise RefusedError(
        f"nothing was written: the coordinator of this folder has run; its users and tokens are in "
        f"{safe(str(journal))}\n"
        f"  for an admin's token: muster coordinator --config {config} --new-admin NAME\n"
        f"  for a new cluster: move {safe(str(cluster.state))} away, or choose another --dir"
    )


def _is_of(cluster: Cluster) -> bool:
    """True if the existing client's file holds a token of the cluster that is being replaced."""
    try:
        text = cluster.client_file.read_text("utf-8")
        known = read_tokens(_tokens_path(cluster))
    except (OSError, ValueError, ConfigError):
        return False
    return any(f"_{record.id}_" in text for record in known)


def _keep_copy(file: Path) -> Path:
    """Copy the file to an unused name."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RefusedError(
            f"nothing was written: {safe(str(file))} cannot be copied ({error.strerror})\n"
            "  move it away, or name another file with MUSTER_CONFIG"
        ) from error
    copies = (file.with_name(f"{file.name}.old{f'-{n}' if n > 1 else ''}") for n in count(1))
    copy = next(path for path in copies if not os.path.lexists(path))
    write_atomic(copy, data, PRIVATE)
    return copy


def _write(cluster: Cluster, files: list[NewFile]) -> None:
    owner, private = account(), cluster.client_file.parent
    if cluster.folder != private:
        make_public(cluster.folder)
    for file in files:
        file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = file.mode == PRIVATE and file.path not in (cluster.client_file, _join_path(cluster))
        write_atomic(file.path, file.text.encode(), file.mode, owner=owner if own else None)


def _print_next(cluster: Cluster, files: list[NewFile], *, as_json: bool) -> None:
    for file in files:
        note(f"wrote {safe(str(file.path))}")
    if cluster.user == "root":
        note("jobs of root are refused by agents unless allow_root_jobs is set; see --user")
    if as_json:
        paths = tuple(str(file.path) for file in files)
        print_json(InitOutput(cluster.url, cluster.user, paths))
        return
    folder = safe(str(cluster.folder))
    if not is_loopback(cluster.listen.host):
        ca = cluster.tls.ca if cluster.tls else None
        copied = [cluster.folder / "agent.yaml", _join_path(cluster), *([ca] if ca else [])]
        note(
            f"each node needs copies at the same paths: {', '.join(safe(str(it)) for it in copied)}"
            " (join-token: mode 0600, root's); `muster up` sets up a cluster without copies"
        )
    config = "" if _is_default(cluster.client_file) else f"MUSTER_CONFIG={cluster.client_file} "
    print(
        f"muster coordinator --config {folder}/coordinator.yaml\n"
        f"muster agent --config {folder}/agent.yaml  # on each node, with the join-token\n"
        f"{config}muster submit -- python train.py"
    )


def _is_default(client_file: Path) -> bool:
    elsewhere = {name: value for name, value in os.environ.items() if name != "MUSTER_CONFIG"}
    return client_file == client_file_path(elsewhere).absolute()
