"""The host names of a gang and their addresses, as sent to each of its nodes."""

from __future__ import annotations

import ipaddress
import itertools
from collections import Counter

from muster.protocol.hosts_file import usable_address
from orchestrator.core.model.members import gang_members, require_prepared
from orchestrator.core.model.state import Attempt
from orchestrator.core.scheduling.rendezvous import endpoint

OTHERS_MAX = 12_000
"""Upper bound of the other addresses sent for all nodes of a gang, split evenly between them.

The plan has to fit a frame. An address that is left out is only taken for another machine's.
"""


def host_table(attempt: Attempt) -> tuple[tuple[str, str], ...]:
    """The name of every node of the gang with the address at which its peers reach it.

    A node's own host name is left out: it might also be the name of another machine. A gang of one
    node needs no table.
    """
    gang = gang_members(attempt)
    if len(gang) == 1:
        return ()
    return tuple((str(task.node), endpoint(attempt, task).address) for task in gang)


def elsewhere(attempt: Attempt) -> dict[str, tuple[str, ...]]:
    """For each node's address in the table, the node's other addresses.

    An address that two nodes report is left out: a name that resolves to it may mean either.
    """
    members = [
        (endpoint(attempt, t).address, require_prepared(t).addresses) for t in gang_members(attempt)
    ]
    claims = Counter(a for address, more in members for a in {address, *more})
    most = OTHERS_MAX // len(members)
    return {
        address: tuple(
            itertools.islice(
                (a for a in more if a != address and claims[a] == 1 and _leads_to_one(a)), most
            )
        )
        for address, more in members
    }


def addresses(attempt: Attempt) -> tuple[str, ...]:
    """All addresses of the gang's present nodes, as its plans have them."""
    known = elsewhere(attempt)
    return tuple(dict.fromkeys(it for address, more in known.items() for it in (address, *more)))


def _leads_to_one(address: str) -> bool:
    return usable_address(address) and not (
        (found := ipaddress.ip_address(address)).is_loopback or found.is_link_local
    )
