"""The GPUs of a node: as NVML shows them where it is, else from PCI and /proc/driver/nvidia."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from agent.probe.fabric.pci import DEVICES, Function, is_accelerator, numa_node
from agent.probe.fabric.tree import Tree, Unread
from muster.fabric.affinity import is_function, path_of
from muster.fabric.order import function_order
from muster.fabric.types import Gpu

DRIVER: Final = "proc/driver/nvidia/gpus"
_FIELD: Final = re.compile(r"^([A-Za-z ]+):[ \t]*(\S.*?)\s*$", re.MULTILINE)


def gpus_of(tree: Tree, functions: Sequence[Function]) -> tuple[Gpu, ...]:
    """All of them in PCI order. Those that NVML does not show are not there for jobs either."""
    seen = _nvml() if tree.live else None
    by_address = {function.address: function for function in functions}
    found = {function.address: (None, None) for function in functions if is_accelerator(function)}
    named: dict[str, tuple[str | None, str | None]] = dict(found)
    if seen is not None:
        named = {
            address: names
            for address, names in named.items()
            if address in seen or not by_address[address].id.startswith("10de:")
        } | seen
    else:
        named |= _driver(tree)
    ordered = sorted(named, key=function_order)
    return tuple(
        _gpu(tree, place, address, named[address], by_address.get(address))
        for place, address in enumerate(ordered)
    )


def _gpu(
    tree: Tree,
    index: int,
    address: str,
    names: tuple[str | None, str | None],
    function: Function | None,
) -> Gpu:
    if function is None:
        where = tree.real(f"{DEVICES}/{address}")
        numa = numa_node(tree, f"{DEVICES}/{address}")
        function = Function(
            address,
            0,
            numa_node=None if isinstance(numa, Unread) else numa,
            path=() if isinstance(where, Unread) else path_of(where),
        )
    return Gpu(
        index=index,
        pci=address,
        numa_node=function.numa_node,
        pci_id=function.id,
        name=names[0],
        uuid=names[1],
        pci_path=function.path,
    )


def _driver(tree: Tree) -> dict[str, tuple[str | None, str | None]]:
    """Model and UUID by address, as NVIDIA's driver tells them."""
    names = tree.names(DRIVER)
    found: dict[str, tuple[str | None, str | None]] = {}
    for name in () if isinstance(names, Unread) else names:
        if is_function(name.lower()):
            text = tree.text(f"{DRIVER}/{name}/information")
            fields = {} if isinstance(text, Unread) else dict(_FIELD.findall(text))
            found[name.lower()] = fields.get("Model"), fields.get("GPU UUID")
    return found


def _nvml() -> dict[str, tuple[str | None, str | None]] | None:
    """Name and UUID by address; None where NVML or its Python module is not."""
    try:
        # The extra `gpu`.
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - whatever it raises, there is another way
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
        return dict(_seen(nvml, handles))
    except Exception:  # noqa: BLE001
        return None
    finally:
        nvml.nvmlShutdown()


def _seen(nvml: Any, handles: Iterable[Any]) -> Iterable[tuple[str, tuple[str, str]]]:
    for handle in handles:
        name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
        yield _address(nvml.nvmlDeviceGetPciInfo(handle).busId), (_text(name), _text(uuid))


def _address(bus: str | bytes) -> str:
    """NVML writes the domain with eight digits, the kernel with four or as many as it takes."""
    domain, _, rest = _text(bus).lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
