"""The GPUs of a node: as its agent reports them, and what a model means that somebody typed."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

import msgspec

DEVICES_MAX: Final = 1024
TEXT_MAX: Final = 200
# As in `nvidia-smi -L`; what is joined with commas into CUDA_VISIBLE_DEVICES holds none.
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,120}")
_WORD: Final = re.compile(r"[0-9a-z]+")


class GpuDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU. `uuid` is NVIDIA's, "" where it is not known. `path` leads through the PCI tree,
    from the host bridge to the device; () where it is hidden. `fault`: why no job is given it, in
    words that follow its address; "" where one may be. `busy`: why none is given it now, in such
    words: it passes, and a job may wait for it.
    """

    pci: str
    uuid: str = ""
    model: str = ""
    memory_bytes: int = 0
    numa_node: int | None = None
    path: tuple[str, ...] = ()
    fault: str = ""
    busy: str = ""


class IdleGpus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node is to tell of a task's GPUs: that all of them have been used less than
    `util_below` percent of the time, once that has been so for `after_s`."""

    util_below: int
    after_s: float


def usable(devices: Sequence[GpuDevice]) -> tuple[GpuDevice, ...]:
    """Those that jobs are given."""
    return tuple(device for device in devices if not device.fault)


def divides(devices: Sequence[GpuDevice]) -> bool:
    """Whether several jobs could share them: each that may be given can be told by its UUID."""
    given = usable(devices)
    return bool(given) and all(device.uuid for device in given)


def is_uuid(text: str) -> bool:
    """Whether CUDA would take this for a GPU."""
    return _UUID.fullmatch(text) is not None


def problem(devices: Sequence[GpuDevice]) -> str | None:
    """Why no coordinator can go by what an agent reports; None where it can."""
    if len(devices) > DEVICES_MAX:
        return f"{len(devices)} GPUs"
    seen: set[str] = set()
    for device in devices:
        if device.uuid and not is_uuid(device.uuid):
            return f"a GPU with the UUID {device.uuid[:80]!r}"
        if device.uuid in seen:
            return f"two GPUs with the UUID {device.uuid}"
        if device.uuid:
            seen.add(device.uuid)
        for text in (device.pci, device.model, device.fault, device.busy):
            if len(text) > TEXT_MAX or not text.isprintable():
                return f"a GPU described as {text[:80]!r}"
    return None


@functools.lru_cache(maxsize=4096)
def is_model(wanted: str, name: str) -> bool:
    """Whether a model as typed (H100, A100-80GB, rtx4090) is the one that NVIDIA calls `name`
    (NVIDIA A100-SXM4-80GB): it is made of whole words of the name, in their order. So A10 is no
    A100, and L4 no L40S.
    """
    rests = {"".join(_WORD.findall(wanted.lower()))}
    if rests == {""}:
        return False
    for word in _WORD.findall(name.lower()):
        rests |= {rest.removeprefix(word) for rest in rests if rest.startswith(word)}
    return "" in rests
