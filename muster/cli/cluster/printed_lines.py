"""Commands that are printed for nodes and people, as they are run there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.wheels.manifest import CURL_LIMITS

if TYPE_CHECKING:
    from muster.http.enrolment import NewJoinSecret
    from muster.http.people import NewToken

LOGIN_PREFIX: Final = "ml1"
"""Before a token with the SHA-256 of the CA by which the coordinator is known."""


class JoinOptions(NamedTuple):
    """A site's options of `muster join`; empty ones are left out."""

    run_as: str = ""
    python: str = ""

    @property
    def text(self) -> str:
        """The options as a shell reads them, with a space before each."""
        given = {"--run-as": self.run_as, "--python": self.python}
        return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)


def public_url(address: str, url: str) -> str:
    """Return the coordinator's URL for others: that of its settings, else the one used here, which
    may be a tunnel of this machine alone."""
    return f"https://{address}" if address else url


def join_line(url: str, made: NewJoinSecret | None, options: JoinOptions) -> str:
    """Return the command with which a machine becomes a node. Without a secret, it asks for one."""
    where = url.partition("://")[2].rstrip("/")
    secret = f" {made.text}" if made is not None else ""
    return f"muster join {where}{secret}{options.text}"


def install_line(url: str, pin: str, made: NewJoinSecret | None, options: JoinOptions) -> str:
    """Return the command with which a machine without Muster becomes a node. The secret is in no
    process's arguments. Without one, the script asks for it.
    """
    secret = f"MUSTER_JOIN={made.text} " if made is not None else ""
    shell = f"{secret}sh{f' -s --{options.text}' if options.text else ''}"
    return f"{_script(url, pin)} | {shell}"


def upgrade_line(url: str, pin: str) -> str:
    """Return the command that upgrades the Muster of a node or person."""
    return f"{_script(url, pin)} | sh -s -- install"


def login_line(url: str, made: NewToken) -> str:
    """Return the command with which a user who has Muster logs in with a new token."""
    if not made.ca_sha256:
        return f"muster login {url}"
    return f"muster login {url} {LOGIN_PREFIX}.{made.ca_sha256}.{made.text}"


def person_line(url: str, made: NewToken) -> str:
    """Return the command with which a user without Muster gets it, without root, and logs in.
    Returns "" if there are no wheels for it."""
    if not made.pin or not made.ca_sha256:
        return ""
    token = f"{LOGIN_PREFIX}.{made.ca_sha256}.{made.text}"
    return f"{_script(url, made.pin)} | MUSTER_LOGIN={token} sh"


def _script(url: str, pin: str) -> str:
    where = f"{url.rstrip('/')}/v1/install.sh"
    return f"curl -fsSk {CURL_LIMITS} --pinnedpubkey {pin} {where}"
