"""GPUs of a node: from NVML if available, else from PCI and /proc/driver/nvidia."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from agent.probe.fabric.foreign_gpu_processes import strangers, used_by
from agent.probe.fabric.fs_root import FsRoot, Unread
from agent.probe.fabric.pci import (
    DEVICES,
    NVIDIA,
    Function,
    functions,
    is_accelerator,
    numa_node,
)
from muster.fabric.model import Gpu
from muster.fabric.natural_sort import function_order
from muster.fabric.topology import is_function, path_of
from muster.protocol.observations.gpus import TEXT_MAX, GpuDevice, is_uuid

DRIVER: Final = "proc/driver/nvidia/gpus"
_MIG: Final = "proc/driver/nvidia/capabilities"
MIG: Final = "is divided by MIG, and Muster assigns whole GPUs"
EXCLUDED: Final = "is excluded by the NVIDIA driver"
NO_DRIVER: Final = "has no NVIDIA driver"
UNSEEN: Final = "is not shown by NVML: it has failed, or this agent has no permission"
REMAP_FAILED: Final = "has a memory row that could not be remapped: replace the GPU"
NO_NVML: Final = (
    "nvidia-ml-py is not installed for the agent: memory that is in use, idle GPUs and error "
    "counters are not visible"
)
INSTALL_NVML: Final = (
    "install nvidia-ml-py beside the agent's interpreter (the extra `gpu` of muster-cluster), and "
    "restart the agent"
)
_FIELD: Final = re.compile(r"^([A-Za-z ]+):[ \t]*(\S.*?)\s*$", re.MULTILINE)

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """Properties of a GPU from NVIDIA's driver; None is unknown. `fault` is as in GpuDevice;
    `users` are the processes that compute there.
    """

    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    fault: str = ""
    users: tuple[int, ...] = ()


def gpus_of(tree: FsRoot, functions: Sequence[Function]) -> tuple[Gpu, ...]:
    """Return all GPUs in PCI order. Jobs cannot use those that NVML does not show."""
    seen, by_nvml = _seen(tree)
    by_address = {function.address: function for function in functions}
    named = {
        function.address: GpuProperties()
        for function in functions
        if is_accelerator(function) and not (by_nvml and function.vendor == NVIDIA)
    }
    named |= seen
    return tuple(
        _gpu(tree, place, address, named[address], by_address.get(address))
        for place, address in enumerate(sorted(named, key=function_order))
    )


def devices_of(tree: FsRoot) -> tuple[GpuDevice, ...]:
    """Return NVIDIA's GPUs in PCI order, as jobs may get them; excluded ones have the reason."""
    seen, by_nvml = _seen(tree)
    by_address = {
        function.address: function
        for function in functions(tree)
        if function.vendor == NVIDIA and is_accelerator(function)
    }
    absent = GpuProperties(fault=UNSEEN if by_nvml else NO_DRIVER)
    found = []
    for address in sorted(by_address.keys() | seen.keys(), key=function_order):
        card = seen.get(address, absent)
        gpu = _gpu(tree, 0, address, card, by_address.get(address))
        uuid = gpu.uuid if gpu.uuid is not None and is_uuid(gpu.uuid) else ""
        found.append(
            GpuDevice(
                pci=address,
                uuid=uuid,
                model=_words(gpu.name or ""),
                memory_bytes=card.memory_bytes or 0,
                numa_node=None if gpu.numa_node is None or gpu.numa_node < 0 else gpu.numa_node,
                path=gpu.pci_path,
                fault=_words(card.fault),
                busy=_words(used_by(strangers(card.users))),
            )
        )
    return tuple(found)


def minors_of(tree: FsRoot) -> dict[str, int]:
    """Return the number in the name of each GPU's device file (3 for /dev/nvidia3) by PCI address.
    GPUs whose number is unknown are left out.
    """
    names = tree.names(DRIVER)
    found = {}
    for name in () if isinstance(names, Unread) else names:
        text = tree.text(f"{DRIVER}/{name}/information")
        fields = {} if isinstance(text, Unread) else dict(_FIELD.findall(text))
        if (minor := fields.get("Device Minor", "")).isdecimal():
            found[name.lower()] = int(minor)
    return found


def lacks_nvml(tree: FsRoot, functions: Sequence[Function]) -> bool:
    """True if this machine has NVIDIA GPUs but no Python module for NVML. A driver that does not
    answer is reported for its GPUs.
    """
    cards = (one for one in functions if one.vendor == NVIDIA and is_accelerator(one))
    if not tree.live or not any(cards):
        return False
    try:
        importlib.import_module("pynvml")
    except ImportError:
        return True
    return False


def hold_nvml() -> bool:
    """Keep NVML loaded for the life of this process, so that later queries are fast. Returns
    whether NVML is available.
    """
    return _nvml() is not None


def use_of(tree: FsRoot) -> dict[str, int]:
    """Return the recent utilization of each GPU in percent, by UUID. GPUs that NVML does not report
    are left out.
    """
    return _asked_of_each(
        tree, lambda nvml, handle: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    )


class MemoryUse(NamedTuple):
    """Used memory of a GPU, and the computing processes, as far as NVML shows them."""

    used_bytes: int
    pids: tuple[int, ...]


def memory_of(tree: FsRoot) -> dict[str, MemoryUse]:
    """Return the used memory of each GPU by UUID. GPUs that NVML does not report are left out."""

    def ask(nvml: Any, handle: Any) -> MemoryUse:
        used = _used_bytes(nvml, handle)
        users = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return MemoryUse(used, tuple(sorted(int(it.pid) for it in users)))

    return _asked_of_each(tree, ask)


def _asked_of_each(tree: FsRoot, ask: Callable[[Any, Any], _Value]) -> dict[str, _Value]:
    """Call `ask` with NVML and the handle of each GPU; return the results by UUID."""
    found: dict[str, _Value] = {}
    nvml = _nvml() if tree.live else None
    if nvml is None:
        return found
    try:
        for at in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(at)
                found[_text(nvml.nvmlDeviceGetUUID(handle))] = ask(nvml, handle)
            except nvml.NVMLError:
                continue
    except Exception:  # noqa: BLE001 - whatever it raises, what was read is all there is
        return found
    finally:
        nvml.nvmlShutdown()
    return found


def _used_bytes(nvml: Any, handle: Any) -> int:
    """Return the used bytes without the driver's own, which exceed half a GiB on larger cards.
    Older drivers do not separate them.
    """
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=version).used)
        except (nvml.NVMLError, TypeError):
            pass
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _seen(tree: FsRoot) -> tuple[dict[str, GpuProperties], bool]:
    """Return GPUs by address, and whether NVML reported them: jobs cannot use other GPUs."""
    nvml = _nvml() if tree.live else None
    if nvml is None:
        return _driver(tree), False
    try:
        return dict(_shown(nvml)), True
    except Exception:  # noqa: BLE001 - whatever it raises, there is another way
        return _driver(tree), False
    finally:
        nvml.nvmlShutdown()


def _gpu(
    tree: FsRoot, index: int, address: str, card: GpuProperties, function: Function | None
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
        name=card.name,
        uuid=card.uuid,
        pci_path=function.path,
    )


def _driver(tree: FsRoot) -> dict[str, GpuProperties]:
    """Return model and UUID by address from NVIDIA's driver. A GPU that was never initialized has a
    UUID of question marks.
    """
    names = tree.names(DRIVER)
    found: dict[str, GpuProperties] = {}
    for name in () if isinstance(names, Unread) else names:
        if is_function(name.lower()):
            text = tree.text(f"{DRIVER}/{name}/information")
            fields = {} if isinstance(text, Unread) else dict(_FIELD.findall(text))
            fault = EXCLUDED if fields.get("GPU Excluded") == "Yes" else ""
            if not fault and _divided(tree, fields.get("Device Minor", "")):
                fault = MIG
            found[name.lower()] = GpuProperties(
                fields.get("Model"), fields.get("GPU UUID"), None, fault
            )
    return found


def _divided(tree: FsRoot, minor: str) -> bool:
    """True if MIG has split the GPU with this minor number."""
    names = tree.names(f"{_MIG}/gpu{minor}/mig") if minor.isdecimal() else ()
    return not isinstance(names, Unread) and any(name.startswith("gi") for name in names)


def _nvml() -> Any:
    """Initialize NVML again; None if it or its Python module is missing."""
    try:
        # The extra `gpu`.
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - whatever it raises, there is another way
        return None
    return nvml


def _shown(nvml: Any) -> Iterator[tuple[str, GpuProperties]]:
    """Yield each GPU with its address; a lost GPU has none."""
    for at in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(at)
            address = _address(nvml.nvmlDeviceGetPciInfo(handle).busId)
        except nvml.NVMLError:
            continue
        yield address, _card(nvml, handle)


def _card(nvml: Any, handle: Any) -> GpuProperties:
    def asked(call: Callable[[Any], _Value]) -> _Value | None:
        try:
            return call(handle)
        except nvml.NVMLError:
            return None

    name = asked(nvml.nvmlDeviceGetName)
    memory: Any = asked(nvml.nvmlDeviceGetMemoryInfo)
    mode: Any = asked(nvml.nvmlDeviceGetMigMode)
    users: Any = asked(nvml.nvmlDeviceGetComputeRunningProcesses)
    fault = MIG if mode and mode[0] else ailment(nvml, handle)
    uuid = None
    try:
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError as error:
        fault = f"does not answer: {error}"
    return GpuProperties(
        None if name is None else _text(name),
        uuid,
        None if memory is None else int(memory.total),
        fault,
        tuple(int(process.pid) for process in users or ()),
    )


def counted(fault: str) -> str:
    """Return the kind of a fault that `ailment` found, as a word; "" for other reasons: a GPU that
    is excluded for another reason has not failed.
    """
    return next((kind for words, kind in _COUNTED if fault.startswith(words)), "")


def ailment(nvml: Any, handle: Any) -> str:
    """Return the problems that NVML counts, as text that follows the GPU's address. "" if there are
    none or they are unknown: older drivers and cards report less.
    """

    def asked(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (nvml.NVMLError, AttributeError, IndexError):
            return None

    rows = asked(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    if rows and rows[3]:
        return REMAP_FAILED
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", _RECOVERY_ACTION)
    values = asked(lambda: nvml.nvmlDeviceGetFieldValues(handle, [field]))
    if values and values[0].nvmlReturn == 0:
        action = _RECOVERY.get(values[0].value.uiVal)
        if action:
            return f"{_MUST_RECOVER}: {action}"
    errors = asked(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE))
    if errors:
        many = "s" if errors != 1 else ""
        return f"{_COUNTS}{errors} uncorrectable ECC error{many} since its last reset: reset it"
    return ""


_MUST_RECOVER: Final = "must be recovered, according to its driver"
_COUNTS: Final = "counts "
_COUNTED: Final = ((REMAP_FAILED, "remap"), (_MUST_RECOVER, "recovery"), (_COUNTS, "ecc"))
_RECOVERY_ACTION: Final = 274
_RECOVERY: Final = {
    1: "reset it (nvidia-smi --gpu-reset)",
    2: "reboot the node",
    4: "drain the node and reset it",
}
"""The recovery actions after which it serves no job. Action 3 only drains peer traffic."""
_UNCORRECTED: Final = 1
_VOLATILE: Final = 0


def _words(text: str) -> str:
    """Shorten the text to the coordinator's limit."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:TEXT_MAX]


def _address(bus: str | bytes) -> str:
    """Normalize a PCI address: NVML writes the domain with eight digits, the kernel with four or
    more.
    """
    domain, _, rest = _text(bus).lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
