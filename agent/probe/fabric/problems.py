"""Problems of a node's fabric, with their effect and the fix.

A compute port that cannot be used is an error. A problem of another port is at most worth knowing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, TypeVar

from agent.probe.fabric.pci import INFINIBAND_CLASS, Function
from muster.fabric.gids import fit_index, nccl_index, routable, strays, version_of
from muster.fabric.hca_selection import Choice, has_no_address, own_addresses
from muster.fabric.model import (
    ACTIVE,
    ETHERNET,
    INFINIBAND,
    FabricProblem,
    Hca,
    NetworkInterface,
    Severity,
)
from muster.fabric.nccl_env import Environment
from muster.fabric.nccl_version import ROBUST, Version, devices_max
from muster.fabric.operator_rules import single_range
from muster.fabric.port_classes import same_ends, speed_of
from muster.fabric.unsupported_devices import EFA, IWARP, OPA, USNIC, special

_GUESSED_PREFIX: Final = 24
_ELSE: Final = "without a plugin NCCL uses TCP"
_WORDS: Final = {OPA: "Omni-Path"}
_PLUGINS: Final = {
    OPA: "install a plugin for Omni-Path (libfabric with OPX or PSM2, and aws-ofi-nccl); do not "
    "set NCCL_IB_HCA",
    USNIC: "nothing: no NCCL plugin supports it; jobs use TCP",
    IWARP: "nothing, unless RDMA was meant to be here: then an InfiniBand or RoCE card is needed",
}

_T = TypeVar("_T")
_K = TypeVar("_K")

Found = Iterator[FabricProblem]


@dataclass(frozen=True, slots=True)
class PortFacts:
    """Input of the port checks. `bare`: PCI functions without a visible RDMA driver. `hidden`:
    devices that may each be one of them. `unread`: why no device is known. `gpus`: the node has
    some. `live`: this machine, not a copy.
    """

    choice: Choice
    environment: Environment
    networks: Sequence[NetworkInterface]
    version: Version | None
    bare: Sequence[Function]
    skipped: dict[str, str]
    hidden: int = 0
    unread: str = ""
    gpus: bool = False
    live: bool = False
    uverbs_there: bool = True
    arp_separate: bool = False


def of_ports(ports: PortFacts) -> Found:
    """Problems of HCAs, their links and addresses."""
    for check in (_hindered, _links, _devices, _addresses, _choice, _drivers):
        yield from check(ports)


def error(what: str, fix: str) -> FabricProblem:
    """RDMA does not work as it should."""
    return FabricProblem(Severity.ERROR, what, fix)


def stop(what: str, fix: str) -> FabricProblem:
    """RDMA does not work at all."""
    return FabricProblem(Severity.ERROR, what, fix, stops=True)


def warning(what: str, fix: str) -> FabricProblem:
    """RDMA may fail or be slow."""
    return FabricProblem(Severity.WARNING, what, fix)


def info(what: str, fix: str) -> FabricProblem:
    """Information without a problem."""
    return FabricProblem(Severity.INFO, what, fix)


def listed(names: Iterable[str]) -> str:
    """Return `mlx5_0, mlx5_1 and 6 more`."""
    found = list(names)
    return (
        ", ".join(found) if len(found) <= 8 else f"{', '.join(found[:7])} and {len(found) - 7} more"
    )


def _hindered(ports: PortFacts) -> Found:
    """Ports of the compute class that cannot be used."""
    choice = ports.choice
    missing = [hca for hca in choice.hcas if hca.expected and not hca.use]
    expected = sum(hca.expected for hca in choice.hcas)
    left = f"{len(choice.used)} of {expected} compute ports are left"
    unused_ends = same_ends(hca for hca in choice.hcas if hca.expected)
    for (state, phys), group in _grouped(missing, lambda hca: (hca.state, hca.phys_state)):
        names = listed(hca.key for hca in group)
        if state is None or state == ACTIVE:
            continue
        what, fix = _down(state, phys, names, group)
        if unused_ends and state == "DOWN":
            yield warning(
                f"{what}; {left}, the same of each card: not cabled?", _leave_out(fix, group)
            )
        else:
            yield error(f"{what}; {left}", fix)
    for hca in missing:
        if hca.state not in (None, ACTIVE):
            continue
        if hca.uverbs_error is not None:
            yield error(
                f"{hca.key}: {hca.reason}; NCCL would skip it silently; {left}",
                "let the jobs' user open the device: udev's rule of rdma-core gives mode 0666; in "
                "a container pass /dev/infiniband and allow it",
            )
        elif has_no_address(hca):
            # A card of unknown model may be any card of the machine.
            own = own_addresses(hca)
            known = hca.hca_type is not None or hca.pci_id is not None or not choice.used
            yield (error if known else warning)(
                f"{hca.key}: {hca.reason}: only peers on the same segment could be reached, so it "
                f"is left out; {left}",
                f"give {_where(hca)} an IP address (or exclude the HCA in the agent's "
                "configuration: fabric.exclude"
                + ("; fabric.include, if it leads to its peers by one cable)" if own else ")"),
            )
        else:
            yield error(
                f"{hca.key}: {hca.reason}; {left}",
                f"give {_where(hca)} an address of the same family as the others",
            )
    for hca in choice.hcas:
        if not hca.expected and hca.state not in (None, ACTIVE):
            physical = f", {hca.phys_state}" if hca.phys_state else ""
            yield info(
                f"{hca.key} is {hca.state}{physical}; it is not one of the compute HCAs",
                "nothing, unless it should be used",
            )


def _down(state: str, phys: str | None, names: str, group: Sequence[Hca]) -> tuple[str, str]:
    verb = "is" if len(group) == 1 else "are"
    what = f"{names} {verb} {state}" + (f" ({phys})" if phys else "")
    if state == "INIT":
        return (
            f"{what}: the link is up, but no subnet manager has configured it",
            "start the fabric's subnet manager (opensm, UFM), or find out why it is unreachable",
        )
    if phys == "Disabled":
        return f"{what}: switched off on this host", f"switch it on: {_on(group)}"
    if phys == "Polling":
        return (
            f"{what}: switched on here, but there is no signal from the other side",
            "look at the cable, the transceivers and the port of the switch",
        )
    if state == "ARMED":
        return (
            f"{what}: on its way up",
            "check again in a minute; otherwise check the subnet manager",
        )
    return what, "look at the port: `ibstat`, `mlxlink -d PCI`, and the kernel's log"


def _on(group: Sequence[Hca]) -> str:
    """Return the commands, with the names of the first port if they are known."""
    first = group[0]
    tool = f"`mlxlink -d {first.pci or 'PCI'} --port_state UP`"
    if first.link_layer != ETHERNET:
        return f"{tool}, or `ibportstate -D 0 {first.port} enable`; see whether it comes up"
    return f"`ip link set {first.netdevs[0] if first.netdevs else 'NETDEV'} up`, or {tool}"


def _leave_out(fix: str, group: Sequence[Hca]) -> str:
    names = ", ".join(hca.key for hca in group)
    return f"{fix}; or, if they are meant to be empty, fabric.exclude: [{names}]"


def _links(ports: PortFacts) -> Found:
    used = ports.choice.used
    fastest: dict[str, float] = {}
    for hca in used:
        fastest[hca.group] = max(fastest.get(hca.group, 0.0), speed_of(hca) or 0.0)
    for hca in used:
        rate = speed_of(hca)
        if rate is not None and rate < fastest[hca.group]:
            yield warning(
                f"{hca.key} runs at {rate:g} Gb/s, others of its class at "
                f"{fastest[hca.group]:g}: every collective waits for it",
                "look at the cable and the transceivers (`mlxlink -d PCI -m`), or exclude it if it "
                "is not a compute HCA (fabric.exclude)",
            )
        elif rate is None and hca.rate_gbps is not None:
            yield info(
                f"{hca.key}: this kernel has no name for the port's speed and reports "
                f"{hca.rate_gbps:g} Gb/s",
                "nothing; a newer kernel or driver reports it",
            )
        if hca.phys_state == "LinkErrorRecovery":
            yield warning(
                f"{hca.key} is ACTIVE, but in LinkErrorRecovery: the link fails and comes back",
                "look at the cable and the transceivers (`mlxlink -d PCI -m -c`)",
            )
        if hca.link_layer == INFINIBAND and hca.sm_lid == 0:
            yield error(
                f"{hca.key} is ACTIVE, but has no subnet manager (sm_lid 0): the next link that "
                "changes stays down",
                "start the fabric's subnet manager (opensm, UFM, or the switch's own)",
            )
        elif hca.link_layer == INFINIBAND and hca.lid == 0:
            yield warning(
                f"{hca.key} is ACTIVE, but has no LID: peers cannot address it",
                "ask the subnet manager; `ibstat` shows the LID once there is one",
            )
    mtus = {
        network.mtu
        for network in ports.networks
        if network.mtu is not None
        and any(hca.link_layer == ETHERNET and network.name in hca.netdevs for hca in used)
    }
    if len(mtus) > 1:
        yield warning(
            f"the RoCE interfaces have different MTUs ({listed(map(str, sorted(mtus)))}): a path "
            "takes the smaller one, or breaks",
            "give all of them the MTU of the switches (`ip link set NETDEV mtu 9000`)",
        )


def _devices(ports: PortFacts) -> Found:
    hcas = ports.choice.hcas
    if any(special(hca) == EFA for hca in hcas):
        names = listed(dict.fromkeys(hca.name for hca in hcas if special(hca) == EFA))
        yield warning(
            f"{names}: EFA, which NCCL's own InfiniBand transport skips; without a plugin NCCL "
            "uses TCP",
            "install the aws-ofi-nccl plugin (libfabric); do not set NCCL_NET=IB and do not set "
            "NCCL_IB_HCA",
        )
    elif not any(hca.use or hca.expected for hca in hcas):
        yield from _others(ports)
    if ports.unread:
        yield warning(
            f"/sys/class/infiniband cannot be read ({ports.unread}): whether there are HCAs, and "
            "whether jobs may use them, is unknown",
            "look with `ls -l /sys/class/infiniband` as the user of the agent; in a container pass "
            "/sys/class/infiniband and /dev/infiniband",
        )
    for name, why in ports.skipped.items():
        yield info(f"/sys/class/infiniband/{name} is not a device: {why}", "nothing")
    used = ports.choice.used
    if ports.live and used and not ports.uverbs_there:
        yield stop(
            "there is no /dev/infiniband: no job can open an HCA, and NCCL uses TCP silently",
            "`modprobe ib_uverbs`; in a container pass /dev/infiniband (--device /dev/infiniband)",
        )
    most = devices_max(ports.version)
    if len(used) > most:
        yield error(
            f"{len(used)} ports are chosen; NCCL takes at most {most} and may crash with more",
            "name fewer in the agent's configuration (fabric.include)",
        )


def _others(ports: PortFacts) -> Found:
    """Problems of a node whose only devices do not suit NCCL's own transport."""
    for kind, group in _grouped(ports.choice.hcas, special):
        fix = _PLUGINS.get(kind or "")
        if fix is None:
            continue
        names = listed(dict.fromkeys(hca.name for hca in group))
        word = _WORDS.get(kind or "", kind)
        what = f"{names}: {word}, which NCCL's own transport does not use; {_ELSE}"
        # Many servers have an Ethernet card that could do iWARP.
        yield (info if kind == IWARP and not ports.gpus else warning)(what, fix)


def _addresses(ports: PortFacts) -> Found:
    roce = [hca for hca in ports.choice.used if hca.link_layer == ETHERNET]
    for hca in roce:
        if has_no_address(hca):
            own = own_addresses(hca)
            but = f" but {listed(own)}" if own else ""
            # Two directly connected machines may be meant to configure themselves.
            yield (warning if own else error)(
                f"{hca.key} is used as the configuration says, although {_where(hca)} has no IP "
                f"address{but}: only peers on the same segment can be reached",
                f"give {_where(hca)} an IP address",
            )
            continue
        yield from _astray(hca, ports.choice)
        kinds = {version_of(gid.type) for gid in routable(hca.gids)}
        if kinds == {1}:
            yield warning(
                f"{hca.key} has RoCE v1 addresses only, which routers do not forward",
                "switch RoCE v2 on (`cma_roce_mode -m 2`, or the driver's configuration)",
            )
    apart = ports.environment.apart
    if apart is not None:
        newer = ports.version is not None and ports.version < ROBUST
        yield error(
            apart,
            f"{'use a torch with NCCL 2.26 or newer, or ' if newer else ''}give the HCAs alike "
            "addresses",
        )
    if not ports.arp_separate:
        yield from _one_subnet(roce, ports.networks)
    if ports.choice.used and ports.live and "NCCL_SOCKET_IFNAME" not in ports.environment.values:
        yield error(
            "no interface has an IP address: NCCL needs one to begin with, also for InfiniBand",
            "give an interface an address, or name one in the agent's configuration (interface)",
        )


def _astray(hca: Hca, choice: Choice) -> Found:
    """Ports where NCCL would choose an address that reaches no peer or is not meant, although the
    port has a suitable one.
    """
    meant = fit_index(hca.gids, hca.gid_slots, choice.family, choice.within)
    if single_range(choice.within) or not strays(hca.gids, hca.gid_slots, choice.family, meant):
        return
    taken = nccl_index(hca.gids, hca.gid_slots or 0, choice.family)
    address = next((gid.address or gid.gid for gid in hca.gids if gid.index == taken), "nothing")
    if any(gid.index == taken for gid in routable(hca.gids)):
        yield info(
            f"{hca.key}: NCCL would take {address} (GID index {taken}), which is in none of the "
            f"networks of fabric.include; index {meant} is the one for jobs",
            "nothing; one network around those that are meant, and no other, is surer",
        )
        return
    yield warning(
        f"{hca.key}: NCCL would take {address} (GID index {taken}), which reaches no peer beyond "
        f"its own segment; index {meant} is the one for jobs",
        f"take {address} off {_where(hca)}: programs that find their address themselves use it",
    )


def _one_subnet(roce: Sequence[Hca], networks: Sequence[NetworkInterface]) -> Found:
    lengths = {
        address.partition("/")[0]: int(address.partition("/")[2])
        for network in networks
        for address in network.addresses
        if "/" in address
    }
    together: dict[str, list[Hca]] = {}
    for hca in roce:
        for subnet in {_subnet(one, lengths) for one in hca.addresses if ":" not in one}:
            together.setdefault(subnet, []).append(hca)
    for subnet, group in sorted(together.items()):
        netdevs = [set(hca.netdevs) for hca in group]
        if all(one & other for one, other in combinations(netdevs, 2)):
            continue
        yield warning(
            f"{listed(hca.key for hca in group)} have addresses in one network ({subnet}): traffic "
            "for one may leave through another (ARP flux)",
            "a network for each rail; or arp_ignore=1 and arp_announce=2 (net.ipv4.conf.all) with "
            "a routing table for each interface",
        )


def _subnet(address: str, lengths: dict[str, int]) -> str:
    prefix = lengths.get(address, _GUESSED_PREFIX)
    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))


def _choice(ports: PortFacts) -> Found:
    choice = ports.choice
    for entry in choice.unmatched:
        yield warning(
            f"fabric.include or fabric.exclude names {entry}, which is not an HCA of this node",
            "`muster probe` lists names, PCI addresses, interfaces and addresses",
        )
    if choice.fabric.alternatives:
        others = "; ".join(choice.fabric.alternatives)
        what = f"{choice.fabric.name} is used as the compute fabric; not used: {others}"
        fix = "if that is wrong, name the HCAs in the agent's configuration (fabric.include)"
        yield warning(what, fix) if choice.close else info(what, fix)


def _drivers(ports: PortFacts) -> Found:
    for kind, group in _grouped(ports.bare, lambda function: (function.id, function.kind)):
        name, number = kind
        # A device with a hidden function may be any of them.
        without = len(group) - ports.hidden
        if without <= 0:
            continue
        of = f" of {len(group)}" if ports.hidden else ""
        count = f"{without}{of} InfiniBand PCI function{'s' if len(group) > 1 else ''}"
        where = listed(function.address for function in group)
        none = not ports.choice.hcas
        if number == INFINIBAND_CLASS:
            yield FabricProblem(
                Severity.WARNING,
                f"{count} ({name}) without an RDMA device: driver mlx5_ib/ib_uverbs not loaded? "
                f"({where})",
                "`modprobe mlx5_ib ib_uverbs` (mlx4_ib for ConnectX-3); if that fails, install "
                "rdma-core and the kernel's extra modules, or DOCA-OFED",
                stops=none,
            )
        else:
            yield FabricProblem(
                Severity.INFO,
                f"{without}{of} network function{'s' if len(group) > 1 else ''} ({name}) that "
                f"could do RoCE without an RDMA device ({where})",
                "nothing, unless RoCE is wanted: `modprobe mlx5_ib ib_uverbs`",
                stops=none and ports.gpus,
            )


def _where(hca: Hca) -> str:
    return listed(hca.netdevs) if hca.netdevs else "its interface"


def _grouped(items: Iterable[_T], key: Callable[[_T], _K]) -> list[tuple[_K, list[_T]]]:
    found: dict[_K, list[_T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.items())
