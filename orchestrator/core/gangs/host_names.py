"""The names of a gang: which leads where, as each of its nodes is told."""

from __future__ import annotations

import ipaddress
import itertools
from collections import Counter

from muster.protocol.hosts_file import usable_address
from orchestrator.core.model.members import gang_members, require_prepared
from orchestrator.core.model.state import Attempt
from orchestrator.core.scheduling.rendezvous import endpoint

OTHERS_MAX = 12_000
"""So many other addresses of its nodes a gang is told at most, evenly: the plan has to fit a
frame, and what is left out is only taken for another machine's."""


def host_table(attempt: Attempt) -> tuple[tuple[str, str], ...]:
    """The name of every node of the gang with the address at which its peers reach it.

    What a node calls itself besides (its host name) is not in it: nothing shows that such a name
    is not another machine's. A gang of one node needs none.
    """
    gang = gang_members(attempt)
    if len(gang) == 1:
        return ()
    return tuple((str(task.node), endpoint(attempt, task).address) for task in gang)


def elsewhere(attempt: Attempt) -> dict[str, tuple[str, ...]]:
    """By a node's address in the table, its other ones. None of two nodes: a name that leads there
    may lead to either."""
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


def _leads_to_one(address: str) -> bool:
    return usable_address(address) and not (
        (found := ipaddress.ip_address(address)).is_loopback or found.is_link_local
    )
