"""Nodes whose sysfs is made up, and whose counters move as a test says."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from examples.local_cluster import LocalCluster
from tests.agent.probe.fabric.trees import Node

WORD_BYTES = 4
CLASS = "sys/class/infiniband"


@dataclass
class ScriptedNode:
    """The sysfs tree of a node: `hcas` InfiniBand ports, and the interface `lo` for the sockets."""

    root: Path
    hcas: int = 2
    words: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        node = Node(self.root)
        for number in range(self.hcas):
            name = f"mlx5_{number}"
            node.hca(name, path=f"pci0000:0{number}/0000:0{number}:01.0", hca_type="MT4129")
            node.port(name, link="InfiniBand", lid="0x3", sm_lid="0x1")
            for counter, value in (("port_xmit_data", 10**6), ("port_rcv_data", 10**6)):
                self._write(f"{CLASS}/{name}/ports/1/counters/{counter}", value)
            self.count(f"mlx5_{number}", "link_downed", 0)
            self.count(f"mlx5_{number}", "symbol_error", 0)
        self._write("sys/class/net/lo/statistics/tx_bytes", 5000)
        self._write("sys/class/net/lo/statistics/rx_bytes", 5000)

    def carry(self, hca: str, sent: int, received: int) -> None:
        """So many bytes more went by this HCA."""
        self._add(f"{CLASS}/{hca}/ports/1/counters/port_xmit_data", sent // WORD_BYTES)
        self._add(f"{CLASS}/{hca}/ports/1/counters/port_rcv_data", received // WORD_BYTES)

    def carry_by_tcp(self, sent: int, received: int) -> None:
        """So many bytes more went by the sockets' interface."""
        self._add("sys/class/net/lo/statistics/tx_bytes", sent)
        self._add("sys/class/net/lo/statistics/rx_bytes", received)

    def count(self, hca: str, counter: str, value: int) -> None:
        """A counter of faults stands at `value`."""
        self._write(f"{CLASS}/{hca}/ports/1/counters/{counter}", value)

    def put(self, path: str, text: str) -> None:
        """At every instant the old text or the new one is there."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.new")
        temporary.write_text(text)
        os.replace(temporary, place)

    def _add(self, path: str, more: int) -> None:
        self._write(path, int((self.root / path).read_text()) + more)

    def _write(self, path: str, value: int) -> None:
        self.put(path, f"{value}\n")


@dataclass
class ScriptedCluster(LocalCluster):
    """Each agent reads a tree of its own."""

    fabric: dict[int, ScriptedNode] = field(default_factory=dict)

    def _place(self, number: int) -> dict[str, object]:
        node = self.fabric[number] = ScriptedNode(self.root / f"fabric-{number}")
        return {**super()._place(number), "fabric": {"root": str(node.root)}}
