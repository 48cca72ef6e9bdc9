"""The networks on which nodes should reach each other, from their agents' reports."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

from muster.http.views import NodeView
from muster.protocol.observations.interfaces import (
    InterfaceKind,
    NetworkRank,
    rank_of,
    usable_address,
)

PEERS: Final = "the cluster's addresses"
"""A pseudo-network of the gangs' rendezvous addresses, if they are in several subnets."""

Networks: TypeAlias = dict[str, dict[str, str]]


def networks_of(nodes: Sequence[NodeView]) -> Networks:
    """Return each node's address by network, for networks that two or more nodes share. Leaves out
    networks that never leave a machine, and networks of a machine with itself."""
    subnets: Networks = {}
    for node in nodes:
        for interface in node.interfaces:
            rank = rank_of(InterfaceKind(interface.kind), rdma=interface.rdma)
            for text in interface.addresses:
                address = text.partition("/")[0]
                leads = rank is not NetworkRank.NEVER and interface.running
                if usable_address(text) and (leads or address == node.address):
                    subnet = str(ipaddress.ip_interface(text).network)
                    subnets.setdefault(subnet, {}).setdefault(node.name, address)
    found = {subnet: _of_one_each(mine) for subnet, mine in subnets.items()}
    peers = _of_one_each({node.name: node.address for node in nodes if node.address})
    if not any(peers.keys() <= mine.keys() for mine in found.values()):
        # Each node or rack has its own subnet, with routes between them.
        found[PEERS] = peers
    return {key: mine for key, mine in sorted(found.items()) if len(mine) > 1}


def doubled(nodes: Sequence[NodeView]) -> dict[str, list[str]]:
    """Return addresses that several machines have, with their nodes. No network can work with
    them."""
    owners: dict[str, dict[str, str]] = {}
    for node in nodes:
        for interface in node.interfaces:
            if rank_of(InterfaceKind(interface.kind), rdma=interface.rdma) is NetworkRank.NEVER:
                continue
            for text in interface.addresses:
                owners.setdefault(text.partition("/")[0], {})[node.name] = node.hostname
    return {
        address: sorted(mine)
        for address, mine in owners.items()
        if len(mine) > 1 and len(set(mine.values())) > 1
    }


def _of_one_each(mine: dict[str, str]) -> dict[str, str]:
    """Return the entries without addresses that two nodes have, because a sender may reach
    either."""
    claims = Counter(mine.values())
    return {name: address for name, address in mine.items() if claims[address] == 1}
