"""GPUs of a node as its agent reports them, and matching of GPU models as users write them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

import msgspec

DEVICES_MAX: Final = 1024
TEXT_MAX: Final = 200
IN_USE: Final = "is in use outside all jobs"
"""Text for users instead of `busy`, which may name processes of others."""
# The format of `nvidia-smi -L`. No commas: CUDA_VISIBLE_DEVICES joins UUIDs with commas.
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,120}")
_WORD: Final = re.compile(r"[0-9a-z]+")


class GpuDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU. `uuid` is NVIDIA's, "" if unknown. `path` leads through the PCI tree from the host
    bridge to the device; () if hidden. `fault` is why no job can have it, as text that follows its
    address, else "". `busy` is a temporary reason in the same form: a job may wait for it.
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
    """Limits for reporting idle GPUs: all of a task's GPUs used less than `util_below` percent of
    the time, for at least `after_s`.
    """

    util_below: int
    after_s: float


def usable(devices: Sequence[GpuDevice]) -> tuple[GpuDevice, ...]:
    """Return the GPUs for jobs."""
    return tuple([device for device in devices if not device.fault])


def divides(devices: Sequence[GpuDevice]) -> bool:
    """True if several jobs could share them: each usable GPU has a UUID."""
    given = usable(devices)
    return bool(given) and all(device.uuid for device in given)


def is_uuid(text: str) -> bool:
    """True if CUDA accepts the text as a GPU."""
    return _UUID.fullmatch(text) is not None


def problem(devices: Sequence[GpuDevice]) -> str | None:
    """Return why a coordinator cannot use an agent's report, or None."""
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
    """True if a model as typed (H100, A100-80GB, rtx4090) matches NVIDIA's `name` (NVIDIA
    A100-SXM4-80GB): it must consist of whole words of the name, in order. So A10 does not match
    A100, nor L4 L40S.
    """
    rests = {"".join(_WORD.findall(wanted.lower()))}
    if rests == {""}:
        return False
    for word in _WORD.findall(name.lower()):
        rests |= {rest.removeprefix(word) for rest in rests if rest.startswith(word)}
    return "" in rests
