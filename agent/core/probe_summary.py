"""The summary of this node's probe that the coordinator gets: the ports that jobs may use, and what
a gang's fabric plan compares and sets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from muster.fabric.gids import Family, Range, fit_index, fit_indexes, is_sparse, number_of, strays
from muster.fabric.model import ETHERNET, INFINIBAND, Affinity, Hca, NetworkInterface, Probe
from muster.fabric.natural_sort import function_order, natural
from muster.fabric.no_port_reason import no_port_reason
from muster.fabric.operator_rules import Rules, networks, single_range
from muster.fabric.port_classes import speed_of
from muster.fabric.topology import nearest, way
from muster.fabric.unsupported_devices import special, unfit
from muster.protocol.observations.fabric import (
    GPUS_MAX,
    PORTS_MAX,
    TEXT_MAX,
    TEXTS_MAX,
    FabricGpu,
    FabricPort,
    MissingPort,
    NodeFabric,
    NodeRdma,
    PortGids,
)

_TRANSPORT: Final = ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_IB_HCA")
_ADDRESSES: Final = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE")
_READ: Final = (*_TRANSPORT, *_ADDRESSES)
_NVIDIA: Final = "15b3"
_DEVICE: Final = re.compile(r"[0-9a-f]{4}")
_FIT_MAX: Final = 16
_ADDRESSES_MAX: Final = 2
_KIND_CHARS: Final = 12


def node_fabric(
    probe: Probe, rules: Rules | None = None, settings: dict[str, str] | None = None
) -> NodeFabric:
    """Summarize the probe. `rules` and `settings`: those that the probe was run with."""
    within = networks(rules) if rules is not None else ()
    used = sorted((hca for hca in probe.hcas if hca.use), key=_rail_order)[:PORTS_MAX]
    missing = [hca for hca in probe.hcas if hca.expected and not hca.use]
    unused = [hca for hca in probe.hcas if hca.usable_by_nccl_ib and not hca.use]
    conf = probe.software.nccl_conf
    software = probe.software
    versions = {
        "kernel": software.kernel,
        "driver": software.nvidia_driver,
        "OFED": software.ofed,
    }
    gpus = _gpus(probe, used)
    return NodeFabric(
        group=_short(probe.fabric.name or ""),
        ports=tuple(
            replace(_port(hca, probe.networks, within), near=_near(gpus, at))
            for at, hca in enumerate(used)
        ),
        missing=tuple(
            MissingPort(hca.key, hca.pci or "", _short(hca.reason)) for hca in missing[:PORTS_MAX]
        ),
        unused=tuple(hca.key for hca in unused[:TEXTS_MAX]),
        stops=tuple(_short(one.what) for one in probe.problems if one.stops)[:TEXTS_MAX],
        range=single_range(within),
        gpus=gpus,
        nccl=_short(software.nccl or ""),
        nccl_conf={name: _short(conf[name]) for name in _READ if name in conf},
        gpudirect=software.gpudirect or "",
        versions={name: _short(text) for name, text in versions.items() if text},
        fingerprint=probe.fingerprint,
        settings=settings or {},
        ucx=_short(software.ucx or ""),
        unseen=_short(f"its RDMA devices: {probe.fabric.unread}") if probe.fabric.unread else "",
        unfit=tuple(
            _short(f"{hca.key}: {unfit(hca)}")
            for hca in probe.hcas
            if not hca.use and special(hca) is not None
        )[:TEXTS_MAX],
    )


def node_rdma(probe: Probe | None) -> NodeRdma | None:
    """The summary by which the scheduler chooses nodes. Returns None if the probe could not see
    whether the node has RDMA."""
    if probe is None:
        return NodeRdma(why=no_port_reason(NodeFabric()))
    if probe.fabric.unread:
        return None
    fabric = node_fabric(probe)
    places = sorted((hca for hca in probe.hcas if hca.expected), key=_rail_order)
    works = bool(fabric.ports) and not fabric.stops
    kind = msgspec.json.encode([_compared(hca, fabric) for hca in places])
    return NodeRdma(
        group=fabric.group,
        ports=len(fabric.ports) if works else 0,
        expected=probe.fabric.expected,
        kind=hashlib.sha256(kind).hexdigest()[:_KIND_CHARS] if works else "",
        why=""
        if works
        else _short(
            f"cannot use RDMA: {fabric.stops[0]}" if fabric.stops else no_port_reason(fabric)
        ),
    )


def _compared(hca: Hca, fabric: NodeFabric) -> object:
    """The properties of a port that a plan compares. Returns None if the port cannot be used."""
    port = next((port for port in fabric.ports if port.key == hca.key), None)
    if port is None:
        return None
    roce = port.link_layer == ETHERNET
    families = (port.fourth is not None, port.sixth is not None)
    common = (port.link_layer, port.model, port.rate_gbps, port.sm_lid, port.prefix)
    return (*common, port.mtu if roce else None, families if roce and port.table else None)


def _rail_order(hca: Hca) -> tuple[bool, tuple[int, ...], tuple[tuple[str, int], ...], int]:
    """Sort by PCI address; by name if there is no PCI address."""
    return hca.pci is None, function_order(hca.pci or ""), natural(hca.name), hca.port


def _port(hca: Hca, networks: Sequence[NetworkInterface], within: Sequence[Range]) -> FabricPort:
    netdev = _netdev(hca)
    mtu = next((network.mtu for network in networks if network.name == netdev), None)
    roce = hca.link_layer == ETHERNET
    fourth = _gids(hca, "AF_INET", within) if roce else None
    sixth = _gids(hca, "AF_INET6", within) if roce else None
    if roce and fourth is None and sixth is None and hca.gid_index is not None:
        # The operator wants this port anyway: use the GID that NCCL would take.
        fourth = PortGids(hca.gid_index, (hca.gid_index,))
    return FabricPort(
        name=hca.name,
        port=hca.port,
        pci=hca.pci or "",
        link_layer=hca.link_layer or "",
        model=_model(hca),
        rate_gbps=speed_of(hca),
        numa_node=hca.numa_node,
        sm_lid=hca.sm_lid if hca.link_layer == INFINIBAND else None,
        prefix=_prefix(hca) if hca.link_layer == INFINIBAND else "",
        netdev=netdev,
        mtu=mtu,
        addresses=hca.addresses[:_ADDRESSES_MAX],
        table=roce and hca.gid_slots is not None and not hca.gids_unread,
        sparse=roce and is_sparse(hca.gids),
        fourth=fourth,
        sixth=sixth,
    )


def _model(hca: Hca) -> str:
    """The model of the card. If only the PCI ID could be read, derive the model from it as NVIDIA's
    drivers do: 15b3:1021 is an MT4129."""
    vendor, _, device = (hca.pci_id or "").lower().partition(":")
    if hca.hca_type is None and vendor == _NVIDIA and _DEVICE.fullmatch(device):
        return f"MT{int(device, 16)}"
    return hca.hca_type or hca.pci_id or ""


def _netdev(hca: Hca) -> str:
    """The network device of the GID in use; a bond's or a VLAN's is not the port's own."""
    for gid in hca.gids:
        if gid.index == hca.gid_index and gid.netdev:
            return gid.netdev
    return hca.netdevs[0] if hca.netdevs else ""


def _prefix(hca: Hca) -> str:
    """The subnet prefix of GID 0."""
    first = next((gid.gid for gid in hca.gids if gid.index == 0), "")
    return first[:19] if number_of(first) is not None else ""


def _gids(hca: Hca, family: Family, within: Sequence[Range]) -> PortGids | None:
    index = fit_index(hca.gids, hca.gid_slots, family, within)
    if index is None:
        return None
    fit = sorted(fit_indexes(hca.gids, family, within) | {index})
    ranged = strays(hca.gids, hca.gid_slots, family, index)
    return PortGids(index, tuple(fit[:_FIT_MAX]), ranged=ranged)


def _gpus(probe: Probe, used: Sequence[Hca]) -> tuple[FabricGpu, ...]:
    pairs = {(pair.gpu, pair.hca): pair for pair in probe.affinity}
    return tuple(
        FabricGpu(
            gpu.pci,
            gpu.uuid or "",
            tuple(_way(pairs.get((gpu.pci, hca.name))) for hca in used),
        )
        for gpu in probe.gpus[:GPUS_MAX]
    )


def _near(gpus: Sequence[FabricGpu], port: int) -> tuple[int, ...]:
    known = (number for number, gpu in enumerate(gpus) if any(way >= 0 for way in gpu.ways))
    return tuple(number for number in known if port in nearest([gpus[number].ways]))


def _way(pair: Affinity | None) -> int:
    return -1 if pair is None else way(pair)


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
