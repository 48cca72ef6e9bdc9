"""The networks on which nodes are to reach each other, from what their agents report."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

from muster.http.views import NodeView
from muster.protocol.interfaces import InterfaceKind, NetworkRank, rank_of, usable_address

PEERS: Final = "the cluster's addresses"
"""A network that is no subnet: the addresses at which gangs meet, where those are in several."""

Networks: TypeAlias = dict[str, dict[str, str]]


def networks_of(nodes: Sequence[NodeView]) -> Networks:
    """By network, the address of each node that has one there; networks that two nodes have or
    more. Networks that end on their own machine are none, nor is one that a machine shares with
    itself.
    """
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
        # Subnets of their own for each node or rack, with a way between them.
        found[PEERS] = peers
    return {key: mine for key, mine in sorted(found.items()) if len(mine) > 1}


def doubled(nodes: Sequence[NodeView]) -> dict[str, list[str]]:
    """Addresses that several machines have, which no network can bear: their nodes, by address."""
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
    """Without what two nodes have: whoever sends there may reach either."""
    claims = Counter(mine.values())
    return {name: address for name, address in mine.items() if claims[address] == 1}
