"""Facts about a node that should not differ between nodes."""

from __future__ import annotations

import glob
import importlib.util
import os
import platform
import re
import resource
from importlib import metadata
from typing import Dict, List


def facts() -> Dict[str, str]:
    """Return facts that should not differ between nodes, by name; unknown ones are left out."""
    found: Dict[str, str] = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "CPUs": str(len(os.sched_getaffinity(0))),
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "nofile": _limit(resource.RLIMIT_NOFILE),
    }
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    memory = re.search(r"MemTotal:\s+(\d+)", _read("/proc/meminfo"))
    driver = re.search(r"Module\s.*?(\d+\.\d+[\d.]*)", _read("/proc/driver/nvidia/version"))
    if system:
        found["system"] = system[1]
    if memory:
        # Round, because the memory that firmware reserves differs slightly.
        found["memory"] = "%d GiB" % float("%.2g" % (int(memory[1]) / 2**20))
    if driver:
        found["NVIDIA driver"] = driver[1]
    ofed = _read("/sys/module/mlx5_core/version")
    if ofed:
        found["mlx5_core"] = ofed
    found.update(_torch())
    found.update(_gpus())
    found.update(_hcas())
    return {name: value for name, value in found.items() if value.strip()}


def _torch() -> Dict[str, str]:
    """Read versions from files, because importing torch takes seconds."""
    found = {}
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        text = _read(os.path.join(folder, "version.py"))
        version = re.search(r"^__version__ = '([^']*)'", text, re.MULTILINE)
        cuda = re.search(r"^cuda[^=]*= '([^']*)'", text, re.MULTILINE)
        found["torch"] = version[1] if version else ""
        found["CUDA"] = cuda[1] if cuda else ""
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"):
        try:
            found.setdefault("NCCL", metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> Dict[str, str]:
    models = []
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        model = re.search(r"^Model:\s*(.*?)\s*$", _read(path), re.MULTILINE)
        models.append(model[1] if model else "?")
    return {"GPUs": _counted(models)}


def _hcas() -> Dict[str, str]:
    """Return counts, firmware and port rates of InfiniBand and RoCE devices."""
    kinds, firmware, rates = [], set(), []
    for device in sorted(glob.glob("/sys/class/infiniband/*")):
        kind = _read(device + "/hca_type")
        kinds.append(kind or "?")
        if _read(device + "/fw_ver"):
            firmware.add((kind + " " + _read(device + "/fw_ver")).strip())
        for port in sorted(glob.glob(device + "/ports/*")):
            state = _read(port + "/state").partition(": ")[2] or "?"
            rate = _read(port + "/rate") if state == "ACTIVE" else ""
            rates.append((state + " " + rate).strip())
    return {
        "HCAs": _counted(kinds),
        "HCA firmware": ", ".join(sorted(firmware)),
        "HCA ports": _counted(rates),
    }


def _counted(items: List[str]) -> str:
    return ", ".join("%d x %s" % (items.count(item), item) for item in sorted(set(items)))


def _limit(number: int) -> str:
    soft = resource.getrlimit(number)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def _read(path: str) -> str:
    """Return the text of a small file, or "" if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 16).strip()
    except OSError:
        return ""
