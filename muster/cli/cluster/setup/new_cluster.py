"""Files of a new cluster: its CA, its certificates, the coordinator's settings, the first admin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.cli.cluster.init import ACCOUNT, account, make_public
from muster.cli.cluster.tokens_file import new_token, tokens_text
from muster.cli.errors import RefusedError
from muster.cli.output.format import note, safe
from muster.daemon.clock import SystemClock
from muster.daemon.durable_files import write_atomic
from muster.daemon.listen_address import all_names
from muster.daemon.units import make_readable, program, why_not_run_by
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass
from muster.spec.units import duration_text

SYSTEM_DIR: Final = Path("/etc/muster")
SYSTEM_STATE: Final = Path("/var/lib/muster")
SUBMITTER: Final = "SUBMITTER"
"""The value of `run_as` for the user who submitted the job."""
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644


class NewCluster(NamedTuple):
    """The choices of a new cluster."""

    folder: Path
    state: Path
    host: str
    port: int
    agents_port: int
    listen: str
    names: tuple[str, ...]
    run_as: str
    python: str
    pools: tuple[str, ...]
    time_limit_s: float
    user: str
    approve: bool


def write_cluster(plan: NewCluster, client_file: Path, *, start: bool) -> None:
    """Write the files; the configuration comes last, because by it a later run knows that all of
    them are there."""
    from muster.daemon.certificates import Authority, new_authority, new_key, server_certificate

    if os.path.lexists(plan.state / "coordinator" / "journal.sqlite"):
        raise RefusedError(
            f"nothing was written: a coordinator has run here, with its journal in "
            f"{safe(str(plan.state / 'coordinator'))}; choose another --dir, or move it away"
        )
    if os.path.lexists(client_file):
        raise RefusedError(
            f"nothing was written: {safe(str(client_file))} is for another cluster; move it away, "
            "or name another file with MUSTER_CONFIG"
        )
    owner = _account(create=start)
    if plan.folder == SYSTEM_DIR:
        _open(plan.state, start=start)
    make_public(plan.folder)
    client_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = SystemClock().now().wall
    ca, ca_key = plan.folder / "ca.pem", plan.folder / "ca-key.pem"
    if os.path.lexists(ca) and os.path.lexists(ca_key):
        # Of a run that was interrupted: nodes and people may know this CA already.
        authority = Authority(ca.read_bytes(), ca_key.read_bytes())
    else:
        authority = new_authority(now)
        write_atomic(ca_key, authority.key, _PRIVATE, owner=owner)
        write_atomic(ca, authority.cert, _PUBLIC)
    key = new_key()
    hosts, addresses = all_names((plan.host, *plan.names))
    cert = server_certificate(authority, key, hosts, addresses, now)
    write_atomic(plan.folder / "server-key.pem", key, _PRIVATE, owner=owner)
    write_atomic(plan.folder / "server.pem", cert, _PUBLIC)
    token, record = new_token(TokenClass.USER, plan.user, role=Role.ADMIN)
    tokens = tokens_text([record]).encode()
    write_atomic(plan.folder / "tokens.yaml", tokens, _PRIVATE, owner=owner)
    settings = {"url": _url(plan.host, plan.port), "token": token, "ca": str(ca)}
    write_atomic(client_file, _yaml(settings).encode(), _PRIVATE)
    write_atomic(plan.folder / "coordinator.yaml", _coordinator(plan).encode(), _PUBLIC)


def _open(state: Path, *, start: bool) -> None:
    """Let the coordinator's user and people reach what a shell with another umask has made."""
    for folder in (SYSTEM_DIR, state):
        if folder.is_dir() and folder.stat().st_mode & 0o055 != 0o055:
            folder.chmod(folder.stat().st_mode | 0o055)
            note(f"{folder} was closed; others may enter it now, as its files with secrets are not")
    if make_readable(Path(sys.prefix)):
        note(f"made {sys.prefix} readable for all users")
    if start and (why := why_not_run_by(ACCOUNT)):
        raise RefusedError(
            f"nothing was written: the user {ACCOUNT}, as whom the coordinator runs, cannot run "
            f"{program()}: {safe(why)}\n  install Muster where all users can enter, such as "
            "/opt/muster"
        )


def _coordinator(plan: NewCluster) -> str:
    listen = {"host": plan.listen, "port": plan.port}
    folder = plan.folder
    limit = {"defaults": {"time_limit": duration_text(plan.time_limit_s)}}
    return (
        "# A coordinator, written by `muster up`; run it with: muster coordinator --config "
        "THIS_FILE\n"
        + _yaml(
            {
                "listen": listen,
                "listen_agents": {**listen, "port": plan.agents_port},
                "state_dir": str(plan.state / "coordinator"),
                "tokens_file": str(folder / "tokens.yaml"),
                "tls": {
                    "cert": str(folder / "server.pem"),
                    "key": str(folder / "server-key.pem"),
                    "ca": str(folder / "ca.pem"),
                    "ca_key": str(folder / "ca-key.pem"),
                },
                "join": {
                    "approve": plan.approve,
                    "run_as": plan.run_as,
                    **({"python": plan.python} if plan.python else {}),
                    "address": _shown(plan.host, plan.port),
                    "wheels": str(plan.state / "wheels"),
                },
                "pools": dict.fromkeys(plan.pools, limit),
            }
        )
    )


def _account(*, create: bool) -> tuple[int, int] | None:
    """Return the coordinator's own user, who owns the private files; None for the caller."""
    if create and os.geteuid() == 0 and account() is None:
        words = ["useradd", "--system", "--shell", "/usr/sbin/nologin", "--no-create-home"]
        subprocess.run([*words, "--home-dir", str(SYSTEM_STATE), ACCOUNT], check=True)
    return account()


def give_to_account(files: Iterable[Path]) -> None:
    """Give private files of root to the coordinator's own user, who is created if missing: `up
    --no-start` wrote them, and the unit runs as that user. Files that others can read, or that
    another user owns, stay as they are.
    """
    owner = _account(create=True)
    if owner is None:
        return
    for path in files:
        found = path.stat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            os.chown(path, *owner)


def _url(host: str, port: int) -> str:
    return f"https://{_shown(host, port)}"


def _shown(host: str, port: int) -> str:
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def _yaml(settings: dict[str, Any]) -> str:
    """Write JSON values, which are YAML, so that no text is read as a number or a date."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
