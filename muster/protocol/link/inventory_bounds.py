"""Bounds of what an agent says of its node: the coordinator keeps and shows all of it."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.protocol.link.control_channel import Inventory
from muster.protocol.observations.fabric import NodeRdma
from muster.protocol.text import count

INVENTORY_BYTES_MAX: Final = 64 << 10
"""The whole inventory as JSON. 16 GPUs, 12 HCAs with 16 addresses each and 256 short labels need
a third of it."""
LABELS_MAX: Final = 256
LABEL_CHARS_MAX: Final = 256
"""Bound of a label's name and value together."""
TEXT_MAX: Final = 256
PATH_MAX: Final = 4096
PCI_LEVELS_MAX: Final = 64

_encoder: Final = msgspec.json.Encoder()


def inventory_problem(inventory: Inventory) -> str | None:
    """Return what of an inventory is too large, as `FIELD ...`; None if nothing is."""
    texts = {
        "address": (inventory.address, TEXT_MAX),
        "machine_id": (inventory.machine_id, TEXT_MAX),
        "interface": (inventory.interface, TEXT_MAX),
        "gpu_model": (inventory.gpu_model, TEXT_MAX),
        "pool": (inventory.pool, TEXT_MAX),
        "python": (inventory.python, PATH_MAX),
        "hostname": (inventory.hostname, TEXT_MAX),
    }
    for field, (text, most) in texts.items():
        if len(text) > most:
            return f"{field} has {len(text)} characters, and {most} is the most"
    return (
        _labels_problem(inventory.labels)
        or _paths_problem(inventory)
        or rdma_problem(inventory.rdma)
        or _size_problem(inventory)
    )


def rdma_problem(rdma: NodeRdma | None) -> str | None:
    """Return what of a node's RDMA is too large, as `FIELD ...`; None if nothing is."""
    texts = () if rdma is None else (rdma.group, rdma.kind, rdma.why)
    longest = max(map(len, texts), default=0)
    return None if longest <= PATH_MAX else f"rdma has a text of {longest} characters"


def _labels_problem(labels: dict[str, str]) -> str | None:
    if len(labels) > LABELS_MAX:
        return f"labels has {count(len(labels), 'label')}, and {LABELS_MAX} is the most"
    for name, value in labels.items():
        size = len(name) + len(value)
        if size > LABEL_CHARS_MAX:
            return (
                f"labels.{name[:40]} has {size} characters with its value, and {LABEL_CHARS_MAX} "
                "is the most"
            )
    return None


def _paths_problem(inventory: Inventory) -> str | None:
    for gpu in inventory.devices:
        if len(gpu.path) > PCI_LEVELS_MAX or any(len(step) > TEXT_MAX for step in gpu.path):
            return f"devices has a GPU ({gpu.pci[:40]}) that no PCI tree has"
    return None


def _size_problem(inventory: Inventory) -> str | None:
    """Name the largest field of an inventory that is too large as a whole."""
    size = len(_encoder.encode(inventory))
    if size <= INVENTORY_BYTES_MAX:
        return None
    fields = {name: getattr(inventory, name) for name in inventory.__struct_fields__}
    largest = max(fields, key=lambda name: len(_encoder.encode(fields[name])))
    return f"{largest} is too large: all is {size} bytes, and {INVENTORY_BYTES_MAX} is the most"
