"""Owners of the UDP port at which agents of gangs ask each other (`peer_port`)."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agent.config import AgentConfig

TABLES: Final = (Path("/proc/self/net/udp"), Path("/proc/self/net/udp6"))
EFFECT: Final = "gangs with this node end if the coordinator is away for longer than their lease"
FIX: Final = (
    "end the program that has it (`ss -ulpn` as root names it), or set `peer_port`; then "
    "systemctl restart muster-agent"
)


def owners(port: int, tables: Iterable[Path] = TABLES) -> list[int]:
    """Return the uids whose sockets have a UDP port of this network namespace."""
    wanted, found = f":{port:04X}", set[int]()
    for table in tables:
        with contextlib.suppress(OSError):
            for line in table.read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if len(fields) > 7 and fields[1].endswith(wanted):
                    found.add(int(fields[7]))
    return sorted(found)


def named(uids: Iterable[int]) -> str:
    """Return the names of users, for a person: "bob (uid 1001) and uid 65533"."""
    return " and ".join(map(_name, uids))


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def taken_by_others(config: AgentConfig, tables: Iterable[Path] = TABLES) -> str:
    """Return that users other than the agent's have its `peer_port`, or ""."""
    if config.shared_host:
        return ""  # such an agent takes any other port
    try:
        own = os.stat(config.state_dir).st_uid
    except OSError:
        own = os.geteuid()
    others = [uid for uid in owners(config.peer_port, tables) if uid != own]
    if not others:
        return ""
    return f"a program of {named(others)} has UDP port {config.peer_port} (peer_port): {EFFECT}"
