"""Lookups of the gang's names and addresses on a node, through the system's resolver."""

from __future__ import annotations

import os
import socket
import threading
from typing import Dict, List, Set

from muster.check.program.sockets import Message

NAMES_S = 20.0


class NameProof(threading.Thread):
    """Looks up every name and address of the gang, as programs on this node do."""

    def __init__(self, plan: Message, names: List[str], rank: int) -> None:
        super().__init__(daemon=True)
        self._names = names
        self._rank = rank
        ips = os.environ["MUSTER_NODE_IPS"].splitlines()
        self._ip = {name: ips[at] for at, name in enumerate(names)}
        self._all: Dict[str, Set[str]] = {name: {ip} for name, ip in self._ip.items()}
        for addresses in plan["networks"].values():
            for name, address in addresses.items():
                if name in self._all:
                    self._all[name].add(address)
        self._wrong: List[str] = []
        self._unknown: List[str] = []
        self._done = 0

    def run(self) -> None:
        for name in self._names:
            if name != self._names[self._rank]:
                self._look(name)
            self._done += 1

    def problems(self) -> Message:
        """Return `wrong`, sentences, and `unknown`, names and addresses that this node cannot
        resolve."""
        late = len(self._names) - self._done
        return {"wrong": list(self._wrong), "unknown": list(self._unknown), "late": late}

    def _look(self, name: str) -> None:
        ip = self._ip[name]
        found = _addresses(name)
        if not found:
            self._unknown.append(name)
        elif found[0] not in self._all[name]:
            text = "the name %s leads to %s here, and its node is at %s"
            self._wrong.append(text % (name, ", ".join(found[:3]), ip))
        try:
            back = socket.getnameinfo((ip, 0), socket.NI_NAMEREQD)[0]
        except (OSError, UnicodeError):
            self._unknown.append(ip)
            return
        if back.lower() != name.lower() and ip not in _addresses(back):
            text = "the address %s of %s is called %s here, which leads elsewhere"
            self._wrong.append(text % (ip, name, back))


def _addresses(name: str) -> List[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
