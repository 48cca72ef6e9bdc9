"""Probe of a node: read everything once, then judge."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from agent.leftovers.inventory import list_leftovers
from agent.leftovers.processes import leftover_processes
from agent.leftovers.units import left_units
from agent.probe import py_spy_check, udp_port
from agent.probe.fabric import host_problems, problems
from agent.probe.fabric.fs_root import FsRoot, Read, Unread
from agent.probe.fabric.gpus import INSTALL_NVML, NO_NVML, gpus_of, lacks_nvml
from agent.probe.fabric.interfaces import networks_of, sockets, with_addresses
from agent.probe.fabric.limits import limits_of
from agent.probe.fabric.pci import (
    INFINIBAND_CLASS,
    Function,
    functions,
    is_accelerator,
    is_hca,
    redirecting,
)
from agent.probe.fabric.rdma_devices import Devices
from agent.probe.fabric.software import software_of
from agent.probe.fabric.user_access import JobUser
from agent.probe.interpreter import NoTorch
from muster.daemon.clock import SystemClock
from muster.fabric import topology
from muster.fabric.hca_selection import choose
from muster.fabric.model import Affinity, FabricProblem, Gpu, Hca, Probe
from muster.fabric.nccl_env import environment
from muster.fabric.nccl_version import version_of
from muster.fabric.operator_rules import Rules

_ON_ITS_WAY_S: Final = 60.0
"""Seconds that a running agent may take to create or remove a directory."""
_OPEN: Final = (
    "run `chmod o+x` on that folder, then `muster doctor` again; or set another `state_dir` in "
    "agent.yaml"
)
_SUBMITTERS: Final = (
    "jobs run as the users who submit them: jobs of a user without an account of the same name on "
    "this node are refused"
)
_ACCOUNTS: Final = "`useradd --create-home NAME` for each user who lacks one, or `user_map`"


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a probe besides its root. `settings` are the operator's for NCCL; `user` runs the
    jobs and `python` is their interpreter; `nccl` is a version; `network` is a pinned interface or
    address; `agent`: this process is the agent itself, whose directory is `state_dir`;
    `open_devices` is why the devices of tasks are not limited; `not_apart` is what does not keep
    jobs apart, with the reasons; `closed` is why the user of jobs cannot enter their folders;
    `submitters`: jobs run as the users who submit them; `certificate_ends`: certificates that end
    soon, each with what to do; `peer_port` is why agents of gangs cannot ask this one; `refusal`:
    the coordinator refuses the node's certificate, with what to do.
    """

    rules: Rules = Rules()
    settings: dict[str, str] = {}
    nccl: str | None = None
    python: str | None = None
    user: JobUser | None = None
    home: str | None = None
    network: str | None = None
    agent: bool = False
    state_dir: Path | None = None
    hosts_file: Path = Path("/etc/hosts")
    processes_max: int | None = None
    open_devices: str = ""
    not_apart: dict[str, str] = {}
    single_team: bool = False
    no_torch: NoTorch | None = None
    closed: str = ""
    submitters: bool = False
    certificate_ends: tuple[tuple[str, str], ...] = ()
    peer_port: str = ""
    refusal: tuple[str, str] | None = None


def _of_interpreter(asked: ProbeOptions, *, live: bool) -> list[FabricProblem]:
    closed: list[FabricProblem] = []
    if live and asked.user is not None and asked.python is not None:
        closed += host_problems.of_python(asked.user, asked.python)
    if asked.no_torch is None or closed:
        return closed
    return [problems.warning(*asked.no_torch)]


def _of_agent(asked: ProbeOptions) -> list[FabricProblem]:
    """Problems of the agent's configuration, its certificate and its ports."""
    found = []
    if asked.refusal is not None:
        found.append(problems.error(*asked.refusal))
    if asked.closed:
        found.append(problems.error(f"every job would be refused: {asked.closed}", _OPEN))
    if asked.submitters:
        found.append(problems.info(_SUBMITTERS, _ACCOUNTS))
    found += [problems.warning(*end) for end in asked.certificate_ends]
    if asked.peer_port:
        found.append(problems.warning(asked.peer_port, udp_port.FIX))
    return found


def probe(
    root: Path = Path("/"), asked: ProbeOptions | None = None, read: Read | None = None
) -> Probe:
    """Read the tree below `root` and judge it. Never raises because of its content.

    With another root than /, this machine is not queried.
    """
    asked = asked or ProbeOptions()
    tree = FsRoot(root, read)
    pci = functions(tree)
    devices = Devices(tree, asked.user if tree.live else None, pci)
    gpus = gpus_of(tree, pci)
    networks = networks_of(tree, devices.hcas)
    hcas = with_addresses(devices.hcas, networks.networks)
    bare = _bare(pci, hcas)
    pairs, flat = _affinity(gpus, hcas, bare, virtual=_is_virtual(tree))
    choice = choose(hcas, pairs, asked.rules)
    software = software_of(tree, python=asked.python, home=asked.home, nccl=asked.nccl)
    version = version_of(software.nccl) if software.nccl else None
    ucx = version_of(software.ucx) if software.ucx else None
    env = environment(choice, sockets(networks, choice.hcas, asked.network), version, ucx)
    values = env.values | (asked.settings if choice.used else {})
    hcas = [_forced(hca, env.index) for hca in choice.hcas]
    choice = replace(choice, hcas=tuple(hcas))
    limits = limits_of(tree, own=asked.agent)
    hostname = _hostname(tree)
    ports = problems.PortFacts(
        choice=choice,
        environment=env,
        networks=networks.networks,
        version=version,
        bare=bare,
        hidden=_hidden(hcas),
        skipped=devices.skipped,
        unread=devices.unread,
        gpus=bool(gpus),
        live=tree.live,
        uverbs_there=tree.exists("dev/infiniband"),
        arp_separate=_arp_separate(tree),
    )
    redirects, unread = redirecting(tree, _near_paths(gpus, choice.used, pairs))
    node = host_problems.HostFacts(
        used=choice.used,
        hcas=hcas,
        gpus=gpus,
        affinity=pairs,
        env=values,
        settings=asked.settings,
        absent=_absent(tree, asked.settings.get("NCCL_TOPO_FILE")),
        limits=limits,
        software=software,
        flat=flat,
        local_name=host_problems.local_name(tree, hostname),
        redirecting=redirects,
        bridges_unread=unread,
    )
    found = [*problems.of_ports(ports), *host_problems.of_node(node)]
    if lacks_nvml(tree, pci):
        found.append(problems.warning(NO_NVML, INSTALL_NVML))
    if tree.live and py_spy_check.find() is None:
        found.append(problems.info(py_spy_check.ABSENT, py_spy_check.INSTALL))
    if asked.user is not None and not (asked.agent and asked.single_team):
        found += host_problems.of_users(asked.user.name, single_team=asked.single_team)
    found += host_problems.of_apart(asked.not_apart)
    found += _of_agent(asked)
    found += _of_interpreter(asked, live=tree.live)
    if not asked.agent:
        found += host_problems.of_limits(tree, asked.processes_max, asked.open_devices)
    # An agent has removed leftovers at its start.
    if tree.live and not asked.agent:
        found += host_problems.of_earlier_lives(leftover_processes())
        found += host_problems.of_left_units(left_units())
        if asked.state_dir is not None:
            before = SystemClock().now().wall - _ON_ITS_WAY_S
            left = list_leftovers(asked.state_dir, asked.hosts_file, before)
            found += host_problems.of_traces(left)
    found.sort(key=lambda problem: list(type(problem.severity)).index(problem.severity))
    return Probe(
        hostname=hostname or "unknown",
        hcas=tuple(hcas),
        gpus=gpus,
        affinity=tuple(pairs),
        networks=networks.networks,
        env=values,
        problems=tuple(found),
        fabric=replace(choice.fabric, unread=devices.unread),
        limits=limits,
        software=software,
        fingerprint=_fingerprint(hcas, gpus),
    )


def lacks_driver(root: Path) -> bool:
    """True if there are RDMA-capable cards but no RDMA device: InfiniBand cards, or cards for RoCE
    beside GPUs.
    """
    pci = functions(FsRoot(root))
    bare = _bare(pci, ())
    return any(card.kind == INFINIBAND_CLASS for card in bare) or (
        bool(bare) and any(is_accelerator(function) for function in pci)
    )


def _bare(pci: Sequence[Function], hcas: Sequence[Hca]) -> tuple[Function, ...]:
    served = {hca.pci for hca in hcas} | {hca.physical_function for hca in hcas}
    return tuple(
        function
        for function in pci
        if is_hca(function) and not function.virtual and function.address not in served
    )


def _hidden(hcas: Sequence[Hca]) -> int:
    """Return the number of devices that may each be a PCI function that is not known."""
    return len({it.name for it in hcas if it.pci is None and not it.virtual})


def _affinity(
    gpus: Sequence[Gpu], hcas: Sequence[Hca], bare: Sequence[Function], *, virtual: bool | None
) -> tuple[list[Affinity], bool]:
    """Return the pairs, and whether the PCI tree does not show them."""
    ends = {hca.name: (hca.pci_path, hca.numa_node) for hca in hcas}
    ends |= {function.address: (function.path, function.numa_node) for function in bare}
    found = topology.pairs(gpus, [(name, path, numa) for name, (path, numa) in ends.items()])
    flat = topology.is_flat(gpus, list(ends.values()), virtual=virtual)
    return (topology.unknown(found) if flat else found), flat


def _near_paths(
    gpus: Sequence[Gpu], used: Sequence[Hca], pairs: Sequence[Affinity]
) -> list[topology.Path]:
    """Return the paths between each GPU and its nearest HCAs."""
    gpu_paths = {gpu.pci: gpu.pci_path for gpu in gpus}
    hca_paths = {hca.name: hca.pci_path for hca in used}
    near = [pair for pair in pairs if pair.distance in topology.NEAR and pair.hca in hca_paths]
    return [path for pair in near for path in (gpu_paths[pair.gpu], hca_paths[pair.hca])]


def _forced(hca: Hca, index: int | None) -> Hca:
    if index is None or not hca.use or hca.gid_index is None:
        return hca
    return replace(hca, gid_index=index)


def _is_virtual(tree: FsRoot) -> bool | None:
    """True if this is a virtual machine; None if the processor does not report it."""
    text = tree.text("proc/cpuinfo")
    if isinstance(text, Unread):
        return None
    return any(line.startswith("flags") and " hypervisor" in line for line in text.splitlines())


def _absent(tree: FsRoot, path: str | None) -> bool:
    """True if a named file is missing. A copy may just not include it."""
    if path is None or not tree.live:
        return False
    found = tree.locate(path.lstrip("/"))
    return isinstance(found, Unread) and found.absent


def _hostname(tree: FsRoot) -> str:
    if tree.live:
        return socket.gethostname()
    for path in ("etc/hostname", "proc/sys/kernel/hostname"):
        text = tree.text(path)
        if not isinstance(text, Unread):
            return text.split()[0]
    return ""


def _arp_separate(tree: FsRoot) -> bool:
    """True if each interface answers only for its own addresses."""
    folder = "proc/sys/net/ipv4/conf/all"
    ignore, announce = tree.text(f"{folder}/arp_ignore"), tree.text(f"{folder}/arp_announce")
    return ignore in ("1", "2") and announce == "2"


def _fingerprint(hcas: Sequence[Hca], gpus: Sequence[Gpu]) -> str:
    what = [
        [
            (
                hca.key,
                hca.pci,
                hca.hca_type,
                hca.fw_ver,
                hca.board_id,
                hca.node_guid,
                hca.link_layer,
            )
            for hca in hcas
        ],
        [(gpu.pci, gpu.pci_id, gpu.uuid) for gpu in gpus],
    ]
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:16]
