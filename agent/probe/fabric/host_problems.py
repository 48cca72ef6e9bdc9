"""Problems of a host besides its HCAs: libraries, limits, GPUDirect, topology, NCCL's files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.leftovers import units
from agent.leftovers.processes import LeftoverProcess, describe
from agent.leftovers.units import LeftUnit
from agent.probe.fabric.fs_root import FsRoot, Unread
from agent.probe.fabric.problems import info, listed, stop, warning
from agent.probe.fabric.user_access import JobUser
from agent.shims.apart import FENCE, HIDDEN, KEYRINGS, OFF, PLACES, USERS
from agent.shims.limits import DEVICES, LIMITED, unenforced
from agent.taskdirs.task_accounts import KEEP_APART
from muster.fabric.model import (
    ETHERNET,
    Affinity,
    AffinityClass,
    FabricProblem,
    Gpu,
    Hca,
    ProcessLimits,
    Software,
)

_MEMLOCK_LEAST: Final = 1 << 30
_NAMED: Final = 16
_NOFILE_LEAST: Final = 65_536
_SHM_LEAST: Final = 1 << 30
_SET_PYTHON: Final = (
    "set `python` in agent.yaml to an interpreter, venv or conda prefix that the user can run"
)
_NVIDIA: Final = "10de:"
_PACKAGES: Final = {
    "debian": {
        "libibverbs.so.1": "apt install libibverbs1 ibverbs-providers",
        "libmlx5.so.1": "apt install ibverbs-providers",
        "librdmacm.so.1": "apt install librdmacm1",
    },
    "redhat": {
        "libibverbs.so.1": "dnf install libibverbs",
        "libmlx5.so.1": "dnf install libibverbs",
        "librdmacm.so.1": "dnf install librdmacm",
    },
    "suse": {
        "libibverbs.so.1": "zypper install libibverbs1",
        "libmlx5.so.1": "zypper install libmlx5-1",
        "librdmacm.so.1": "zypper install librdmacm1",
    },
}
_FAMILIES: Final = {
    "debian": "debian",
    "ubuntu": "debian",
    "rhel": "redhat",
    "rocky": "redhat",
    "almalinux": "redhat",
    "centos": "redhat",
    "fedora": "redhat",
    "ol": "redhat",
    "amzn": "redhat",
    "sles": "suse",
    "opensuse-leap": "suse",
}
_CONTROLLERS: Final = (
    "sys/fs/cgroup/cgroup.controllers",
    "sys/fs/cgroup/unified/cgroup.controllers",
)


_EFFECTS: Final = {
    LIMITED["memory"]: "a job on a part of the node may take all of its memory",
    LIMITED["cpu"]: "a job on a part of the node may take the CPUs from the others",
    LIMITED["pids"]: "a fork bomb of a job may take every process and thread of the node, whatever "
    "processes_max is",
    DEVICES: "a job on a part of the node may open the GPUs of the others",
}
_APART: Final = {
    FENCE: (
        "who reaches the rendezvous of a gang, from this node or another, can take part",
        "install nftables, and set `fence` to true",
    ),
    USERS: (
        "jobs of all users can read and end each other; those with a secret are refused",
        KEEP_APART,
    ),
    PLACES: (
        "jobs share /tmp, /var/tmp, /dev/shm and shared memory with all others",
        "set `private_tmp` to true",
    ),
    HIDDEN: (
        "jobs see the processes of other users, with their command lines",
        "set `hide_processes` to true, on a kernel from Linux 5.8",
    ),
    KEYRINGS: (
        "jobs share the session keyring of the agent",
        "tell the makers of Muster about this machine",
    ),
}
_TO_CGROUPS: Final = (
    "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1 and no cgroup_disable=); in a "
    "container, on a host that has it"
)
_TO_UNITS: Final = (
    "run the agent as root under systemd, with `shims` auto or systemd, on a machine with cgroup v2"
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Input of the checks. `local_name` is the loopback address that the hosts file gives to the
    own host name. `settings` are the operator's for NCCL; `absent` means that the topology file
    they name is missing. `redirecting` are bridges between a GPU and its HCA that send traffic to
    the CPU; `bridges_unread` may do so.
    """

    used: Sequence[Hca]
    hcas: Sequence[Hca]
    gpus: Sequence[Gpu]
    affinity: Sequence[Affinity]
    env: Mapping[str, str]
    settings: Mapping[str, str]
    absent: bool
    limits: ProcessLimits
    software: Software
    flat: bool
    local_name: str | None
    redirecting: Sequence[str]
    bridges_unread: Sequence[str]


def of_earlier_lives(found: tuple[LeftoverProcess, ...]) -> Iterator[FabricProblem]:
    """Processes of jobs without a shim."""
    if found:
        yield warning(
            f"{describe(found)}: still running, although the shim of its job is dead",
            "an agent alone on its machine kills them at its start; or "
            f"`kill -9 {' '.join(str(remain.pid) for remain in found[:_NAMED])}`",
        )


def of_left_units(found: tuple[LeftUnit, ...]) -> Iterator[FabricProblem]:
    """Tasks in systemd units that no agent knows."""
    if found:
        yield warning(
            f"{units.words(found)}: still running, although the directory of its task is gone",
            "an agent alone on its machine kills them at its start; or "
            f"`systemctl stop {' '.join(unit.name for unit in found[:_NAMED])}`",
        )


def of_traces(found: Sequence[str]) -> Iterator[FabricProblem]:
    """Leftovers besides processes."""
    for what in found:
        yield warning(
            f"left by an earlier agent process: {what}",
            "the agent removes it at its start: systemctl restart muster-agent; jobs continue",
        )


def of_limits(
    tree: FsRoot, processes_max: int | None, open_devices: str
) -> Iterator[FabricProblem]:
    """Limits of jobs that are not enforced. `processes_max` is the operator's own limit."""
    if not tree.live and not tree.exists("sys/fs/cgroup"):
        return
    texts = [tree.text(path) for path in _CONTROLLERS]
    found = {name for text in texts if not isinstance(text, Unread) for name in text.split()}
    for what, why in unenforced(found, open_devices).items():
        severe = what == LIMITED["pids"] and processes_max is not None
        effect, fix = _EFFECTS[what], _TO_UNITS if what == DEVICES else _TO_CGROUPS
        text = f"limits of jobs for {what}: not enforced here: {why}, and {effect}"
        yield (warning if severe else info)(text, fix)


def of_apart(found: Mapping[str, str]) -> Iterator[FabricProblem]:
    """Ways in which jobs are not kept apart, with the reasons."""
    for what, why in found.items():
        effect, fix = _APART[what]
        if what == FENCE and why == OFF.format(FENCE):
            fix = "set `fence` to true"
        yield info(f"{what}: not enforced here: {why}, and {effect}", fix)


def of_users(shared: str, *, single_team: bool) -> Iterator[FabricProblem]:
    """Jobs of all users run as the user `shared`, and `single_team` says that this is meant."""
    text = (
        f"all jobs run as {shared} (run_as), so users are not kept apart: a job can read the "
        "files and environments of all others, and end them"
    )
    if single_team:
        yield info(text, "nothing, as long as all users trust each other (`single_team: true`)")
    else:
        yield warning(
            text,
            "set `run_as: SUBMITTER`: jobs then run as the users who submitted them; or set "
            "`single_team: true` if all users trust each other",
        )


def of_python(user: JobUser, python: str) -> Iterator[FabricProblem]:
    """The jobs' interpreter is in a folder that their user cannot enter."""
    if not python.startswith("/"):
        return
    try:
        closed = user.closed_folder(python)
    except OSError as error:
        yield warning(f"{python}, the interpreter of the jobs: {error.strerror}", _SET_PYTHON)
        return
    if closed is not None:
        yield warning(
            f"{user.name}, whom jobs run as, cannot enter {closed}, where the interpreter of the "
            f"jobs is ({python}): jobs that name no `python` are refused",
            _SET_PYTHON,
        )


def of_node(node: HostFacts) -> Iterator[FabricProblem]:
    """Problems of everything except the ports."""
    for check in (_libraries, _limits, _gpudirect, _topology, _nccl_conf, _nccl, _name):
        yield from check(node)


def local_name(tree: FsRoot, hostname: str) -> str | None:
    """Return the loopback address that the hosts file gives to this machine's own name."""
    text = tree.text("etc/hosts")
    if isinstance(text, Unread) or not hostname:
        return None
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if hostname in names:
            return address if address.startswith("127.") or address == "::1" else None
    return None


def _libraries(node: HostFacts) -> Iterator[FabricProblem]:
    if not node.hcas:
        return
    packages = _PACKAGES[_FAMILIES.get(node.software.os or "", "debian")]
    mlx5 = any(hca.name.startswith("mlx5") or hca.driver == "mlx5_core" for hca in node.hcas)
    for name, place in node.software.libraries.items():
        if place is not None:
            continue
        if name == "libibverbs.so.1":
            yield stop(
                f"{name} is not installed: NCCL cannot use InfiniBand or RoCE and uses TCP",
                packages[name],
            )
        elif name == "libmlx5.so.1" and mlx5:
            yield stop(
                f"{name} is not installed: libibverbs finds no mlx5 device, and NCCL uses TCP",
                packages[name],
            )
        elif name == "librdmacm.so.1":
            yield info(f"{name} is not installed; UCX and plugins of NCCL need it", packages[name])


def _limits(node: HostFacts) -> Iterator[FabricProblem]:
    limits = node.limits
    memlock = limits.memlock
    if node.used and isinstance(memlock, int):
        what = f"jobs may lock {_size(memlock)} of memory (memlock of {limits.source})"
        fix = (
            "LimitMEMLOCK=infinity in the agent's unit (the shipped one has it; limits.conf does "
            "not reach services), then `systemctl daemon-reload` and restart the agent; in a "
            "container --ulimit memlock=-1"
        )
        if memlock < _MEMLOCK_LEAST:
            yield stop(f"{what}: RDMA fails with `ibv_create_cq: Cannot allocate memory`", fix)
        else:
            yield warning(f"{what}: RDMA may run out of it", fix)
    files = limits.nofile
    if (node.used or node.gpus) and isinstance(files, int) and files < _NOFILE_LEAST:
        yield warning(
            f"jobs may open {files} files (nofile of {limits.source}): many ranks and data loaders "
            "need more",
            "LimitNOFILE=1048576 in the agent's unit",
        )
    if node.gpus and limits.shm_bytes is not None and limits.shm_bytes < _SHM_LEAST:
        yield warning(
            f"shared memory has {_size(limits.shm_bytes)}: NCCL and data loaders need more",
            "`mount -o remount,size=50% /dev/shm`; in a container --shm-size=16g",
        )


def _gpudirect(node: HostFacts) -> Iterator[FabricProblem]:
    nvidia = any(gpu.pci_id.startswith(_NVIDIA) or gpu.uuid for gpu in node.gpus)
    if not node.used or not nvidia:
        return
    if node.software.gpudirect == "none":
        yield warning(
            "neither nvidia_peermem nor dma-buf: the HCAs cannot reach GPU memory, every byte is "
            "copied through the host (no GPUDirect RDMA)",
            "`modprobe nvidia-peermem` (and a file in /etc/modules-load.d), or NVIDIA's open "
            "kernel modules with Linux 5.12 or newer",
        )
    if node.redirecting:
        yield warning(
            f"PCI access control (ACS) sends traffic between GPUs and HCAs through the CPU "
            f"({listed(node.redirecting)}): GPUDirect RDMA is slow",
            "on a machine without virtual machines: switch ACS off in the firmware, or "
            "`setpci -s BRIDGE ECAP_ACS+0x6.w=0000` at each boot",
        )
    elif node.bridges_unread:
        yield info(
            f"whether PCI access control (ACS) sends traffic between GPUs and HCAs through the CPU "
            f"is unknown: the configuration of {listed(node.bridges_unread)} is only partly "
            "readable",
            "run `muster doctor` as root on the node, which may read it",
        )


def _topology(node: HostFacts) -> Iterator[FabricProblem]:
    if node.absent:
        yield warning(
            f"fabric.settings names the topology file {node.settings['NCCL_TOPO_FILE']}, which is "
            "not there: NCCL ignores it without an error",
            "put the provider's file there, or correct the agent's configuration",
        )
        return
    if "NCCL_TOPO_FILE" in node.software.nccl_conf or "NCCL_TOPO_FILE" in node.settings:
        return
    used = {hca.name for hca in node.used}
    unknown = any(
        pair.distance is AffinityClass.UNKNOWN for pair in node.affinity if pair.hca in used
    )
    if node.flat or unknown:
        why = "virtual PCI topology" if node.flat else "no NUMA nodes or PCI paths"
        yield warning(
            f"{why}: distances between HCAs and GPUs are unknown, also to NCCL; this may cost most "
            "of the bandwidth",
            "set NCCL_TOPO_FILE to the provider's file for this kind of machine, in the agent's "
            "configuration (fabric.settings), in /etc/nccl.conf or in the jobs' env",
        )


def _nccl_conf(node: HostFacts) -> Iterator[FabricProblem]:
    for name, setting in node.software.nccl_conf.items():
        value, _, end = setting.rpartition(" (from ")
        file = end.removesuffix(")")
        ours = node.env.get(name)
        fix = f"take {name} out of {file}"
        if ours is not None and ours != value:
            yield warning(
                f"{file} sets {name}={value}, this probe {ours}: the jobs' environment overrides "
                "it, other programs use the file's",
                fix,
            )
        elif _forces_tcp(name, value) and node.used:
            yield stop(f"{file} sets {name}={value}: NCCL uses TCP", fix)
        elif name == "NCCL_IB_GID_INDEX" and ours is None and _wrong_index(node.used, value):
            yield warning(
                f"{file} sets {name}={value} for all HCAs, where NCCL would choose "
                f"{listed(_indexes(node.used))}",
                fix,
            )


def _forces_tcp(name: str, value: str) -> bool:
    if name == "NCCL_IB_DISABLE":
        return value not in ("", "0")
    return name == "NCCL_NET" and value.lower() == "socket"


def _wrong_index(used: Sequence[Hca], value: str) -> bool:
    return value != "-1" and any(index != value for index in _indexes(used))


def _indexes(used: Sequence[Hca]) -> list[str]:
    ports = [hca for hca in used if hca.link_layer == ETHERNET and hca.gid_index is not None]
    return sorted({str(hca.gid_index) for hca in ports})


def _nccl(node: HostFacts) -> Iterator[FabricProblem]:
    if node.software.nccl is None and _indexes(node.used):
        yield info(
            "the version of the jobs' NCCL is not known; 2.26 or newer is assumed, which finds the "
            "GID index itself",
            "`muster probe --nccl VERSION` shows what an older one needs",
        )


def _name(node: HostFacts) -> Iterator[FabricProblem]:
    if node.local_name is None:
        return
    what = (
        f"this machine's own name is {node.local_name} in /etc/hosts: programs that look "
        "themselves up (gloo without GLOO_SOCKET_IFNAME) give peers an unreachable address"
    )
    fix = "give the name its real address in /etc/hosts, or remove the line"
    yield warning(what, fix) if node.hcas or node.gpus else info(what, fix)


def _size(number: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << shift:
            return re.sub(r"\.0$", "", f"{number / (1 << shift):.1f}") + f" {unit}"
    return f"{number} bytes"
