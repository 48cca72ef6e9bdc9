"""Nodes with GPUs that are not there: a tree of files for each agent, as NVIDIA's driver has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples.local_cluster import LocalCluster
from examples.namespace_cluster import NamespaceCluster
from tests.agent.probe.fabric.trees import Node

GPUS = 8


def address(number: int) -> str:
    return f"0000:{0x10 + number:02x}:00.0"


def uuid(node: int, number: int) -> str:
    return f"GPU-{node:08x}-0000-0000-0000-{number:012x}"


def plant(root: Path, node: int, count: int = GPUS) -> None:
    """Two sockets; on each, two GPUs behind each of two switches."""
    tree = Node(root)
    for number in range(count):
        socket, switch = number // 4, number // 2
        bridge = f"pci0000:{socket:02x}/0000:{socket:02x}:0{switch}.0"
        tree.gpu(f"{bridge}/{address(number)}", socket)
        describe(root, number, uuid(node, number))


def describe(root: Path, number: int, name: str) -> None:
    """Write the driver's description of one GPU."""
    Node(root).file(
        f"proc/driver/nvidia/gpus/{address(number)}/information",
        f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t {number}\nGPU UUID: \t {name}\n"
        f"Device Minor: \t {number}\nGPU Excluded:\t No\n",
    )


@dataclass
class GpuCluster(LocalCluster):
    """Each node has eight."""

    def tree(self, number: int) -> Path:
        return self.root / "trees" / str(number)

    def _place(self, number: int) -> dict[str, object]:
        return {**super()._place(number), **_cards(self.tree(number), number)}


@dataclass
class GpuMachines(NamespaceCluster):
    """So has each machine."""

    def _place(self, number: int) -> dict[str, object]:
        tree = self.root / "trees" / str(number)
        return {**super()._place(number), **_cards(tree, number)}


def _cards(tree: Path, number: int) -> dict[str, object]:
    plant(tree, number)
    return {"gpus": "auto", "fabric": {"root": str(tree)}}
