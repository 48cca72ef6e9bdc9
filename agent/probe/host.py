"""Inventory of a node: CPUs, memory, GPUs, address and identity, read without any tool.

All files are read under a root that a test can choose.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import structs

from agent.config import AgentConfig
from agent.probe.fabric.fs_root import FsRoot
from agent.probe.fabric.gpus import devices_of
from agent.probe.network import NetworkProbe
from agent.shim.system.credentials import PATH
from muster.daemon.errors import ConfigError, DaemonError
from muster.protocol.link.control_channel import Inventory, with_devices
from muster.protocol.observations.gpus import GpuDevice, usable
from muster.protocol.observations.interfaces import Interface

_ROOT: Final = Path("/")
LEFT_OUT: Final = "is excluded by `gpus` in the agent's configuration"


class ProbeError(DaemonError):
    """The agent cannot determine a required property of this node."""


def inventory(
    config: AgentConfig, interfaces: tuple[Interface, ...] = (), root: Path = _ROOT
) -> Inventory:
    """Return the resources of this node. Its GPUs are those of the configured tree. May wait for a
    name server.

    Raises ProbeError and ConfigError.
    """
    described = Inventory(
        address=config.address or address_towards(config.coordinator),
        machine_id=machine_id(root),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(root),
        pool=config.pool,
        labels=config.labels,
        python=default_python(config),
        shared_host=config.shared_host,
        hostname=socket.gethostname(),
        interfaces=interfaces,
        git=shutil.which("git", path=PATH) is not None,
    )
    found = devices(config)
    if not found and config.gpus != "auto":
        model = next((gpu.model for gpu in devices_of(FsRoot(config.fabric.root)) if gpu.model), "")
        return structs.replace(described, gpus=config.gpus, gpu_model=model)
    return with_devices(described, found)


def interfaces(config: AgentConfig, network: NetworkProbe) -> tuple[Interface, ...]:
    """Return the interfaces on which a gang could connect. Raises ProbeError, also for a pinned one
    without an address.
    """
    try:
        found = network.interfaces()
    except OSError as error:
        raise ProbeError(f"the network of this node cannot be read: {error}") from error
    if any(one.pinned and not one.addresses for one in found):
        there = ", ".join(one.name for one in found if one.addresses) or "none"
        raise ProbeError(
            f"interface: {config.interface} has no address on this node; "
            f"those that have one: {there}"
        )
    return found


def boot_id(root: Path = _ROOT) -> str:
    """Return the id of this boot. Raises ProbeError."""
    path = root / "proc/sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ProbeError(f"{path} cannot be read ({error.strerror}): is /proc mounted?") from error


def machine_id(root: Path = _ROOT) -> str:
    """Return the id of the host: agents with the same one share its ports. Raises ProbeError."""
    try:
        text = (root / "etc/machine-id").read_text().strip()
    except OSError:
        text = ""
    # An image that was never booted has "uninitialized".
    if re.fullmatch(r"[0-9a-f]{32}", text):
        return text
    return boot_id(root)


def memory_bytes(root: Path = _ROOT) -> int:
    """Return the size of main memory in bytes; 0 if unknown."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return 0
    match = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def devices(config: AgentConfig) -> tuple[GpuDevice, ...]:
    """Return the GPUs of this node according to its configuration; () if that counts more GPUs than
    exist, and they cannot be distinguished.
    """
    found = devices_of(FsRoot(config.fabric.root))
    if config.gpus == "auto":
        return found
    sound = usable(found)
    if len(sound) < config.gpus:
        return ()
    left_out = {device.pci for device in sound[config.gpus :]}
    return tuple(
        structs.replace(device, fault=LEFT_OUT) if device.pci in left_out else device
        for device in found
    )


def address_towards(coordinator: str) -> str:
    """Return the local address of the route to the coordinator. Sends nothing. Raises
    ProbeError.
    """
    url = urlsplit(coordinator)
    host, port = url.hostname or "", url.port or 443
    try:
        family, _, _, _, peer = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(peer)
            return str(sock.getsockname()[0])
    except socket.gaierror as error:
        raise ProbeError(
            f"coordinator: this node cannot resolve {host} ({error.strerror or error}); enter the "
            "name in DNS or /etc/hosts, or write another `coordinator` in the agent's configuration"
        ) from error
    except OSError as error:
        raise ProbeError(
            f"the address of this node is unknown: there is no route to {host} "
            f"({error.strerror or error}); set `address` in the agent's configuration"
        ) from error


def default_python(config: AgentConfig) -> str:
    """Return the interpreter of jobs that name none.

    It is not the agent's own, whose environment has torch only by chance.
    """
    if config.python is not None:
        return str(config.python)
    return shutil.which("python3", path=_JOB_PATH) or ""


# PATH of jobs. The agent's own PATH may begin with its private environment.
_JOB_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_labels(config: AgentConfig) -> None:
    """Refuse labels that no job could request. Raises ConfigError."""
    for name, value in config.labels.items():
        if not name.isprintable() or not value.isprintable() or len(name) + len(value) > 256:
            raise ConfigError(
                f"labels.{name[:40]}: use printable text of at most 256 characters in all"
            )
