"""Detection of RDMA devices that NCCL's own transport must not use.

Only positive evidence counts: a missing file proves nothing, because many containers and virtual
machines show only a part of a device.
"""

from __future__ import annotations

import re
from typing import Final

from muster.fabric.model import ETHERNET, INFINIBAND, Hca

EFA: Final = "EFA"
OPA: Final = "OPA"
IWARP: Final = "iWARP"
_SOFTWARE: Final = "software RDMA"
USNIC: Final = "usNIC"

# Kernel drivers of the PCI function or of the RDMA device.
_DRIVERS: Final = {
    "efa": EFA,
    "hfi1": OPA,
    "irdma": IWARP,
    "i40iw": IWARP,
    "ice": IWARP,
    "i40e": IWARP,
    "iavf": IWARP,
    "idpf": IWARP,
    "siw": _SOFTWARE,
    "rxe": _SOFTWARE,
    "rdma_rxe": _SOFTWARE,
    "usnic": USNIC,
    "usnic_verbs": USNIC,
    "enic": USNIC,
    "cxgb3": IWARP,
    "cxgb4": IWARP,
    "erdma": IWARP,
}
_NAMES: Final = (
    # The second of each is the name from rdma-core's udev rule: opap1s0, iwp26s0f0.
    (re.compile(r"irdma\d+|i40iw\d+|cxgb[34]_\d+|iw_?cxgb.*|erdma_\d+"), IWARP),
    (re.compile(r"iw(P\d+)?[pso]\d\w*"), IWARP),
    (re.compile(r"(siw|rxe)([_-].*|\d+)?"), _SOFTWARE),
    (re.compile(r"hfi1_\d+"), OPA),
    (re.compile(r"opa(P\d+)?[pso]\d\w*"), OPA),
    (re.compile(r"efa_\d+"), EFA),
    (re.compile(r"usnic_\d+|usnic(P\d+)?[pso]\d\w*"), USNIC),
)
_SMI: Final = re.compile(r"smi\d*")
_AMAZON, _INTEL = "1d0f:", "8086:"
_ETHERNET_CLASS: Final = 0x0200
_KINDS_OF_NODE: Final = {4: IWARP, 5: USNIC, 6: USNIC}
_NODE_TYPES: Final = {
    2: "a switch",
    3: "a router",
    7: "of an unspecified type",
}
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_ADVICE: Final = {
    EFA: "EFA needs the aws-ofi-nccl plugin (libfabric): NCCL's own InfiniBand transport skips it",
    OPA: "Omni-Path: sites run it through a libfabric or PSM2 plugin, never mixed with others",
    IWARP: "iWARP-capable Ethernet (irdma, i40iw): passes NCCL's filter, then fails or is slow",
    _SOFTWARE: "RDMA in software (rxe, siw): no faster than TCP",
    USNIC: "usNIC: NCCL cannot use it",
}


def special(hca: Hca) -> str | None:
    """Return the kind of a device that is unsuitable for NCCL's own transport, or None."""
    if hca.virtual:
        return _SOFTWARE
    for pattern, kind in _NAMES:
        if pattern.fullmatch(hca.name):
            return kind
    if hca.driver is not None and hca.driver in _DRIVERS:
        return _DRIVERS[hca.driver]
    if hca.hca_type is not None and hca.hca_type.upper().startswith("I40IW"):
        return IWARP
    vendor = hca.pci_id or ""
    # Omni-Path cards: 24f0 and 24f1.
    if vendor.startswith("8086:24f"):
        return OPA
    if vendor.startswith(_INTEL) and (hca.pci_class or 0) >> 8 == _ETHERNET_CLASS:
        return IWARP
    unspecified = hca.node_type == 7 or (hca.node_type is None and hca.link_layer == "Unknown")
    if vendor.startswith(_AMAZON) or (hca.name.startswith("rdmap") and unspecified):
        return EFA
    return _KINDS_OF_NODE.get(hca.node_type or 0)


def unfit(hca: Hca) -> str | None:
    """Return why this port is never suitable for NCCL's own transport; None without evidence."""
    if _SMI.fullmatch(hca.name):
        return "a management sub-device of another HCA (smi), not a data port"
    kind = special(hca)
    if kind is not None:
        return _ADVICE[kind]
    if hca.node_type is not None and hca.node_type != 1:
        what = _NODE_TYPES.get(hca.node_type, "of no type that is known")
        return f"{what} (node_type {hca.node_type}), not an InfiniBand or RoCE adapter"
    if hca.link_layer is not None and hca.link_layer not in (ETHERNET, INFINIBAND):
        return f"link layer {hca.link_layer}: NCCL takes InfiniBand and Ethernet only"
    return unnamable(hca)


def unnamable(hca: Hca) -> str | None:
    """Return why NCCL's list cannot contain its name; None if it can."""
    if _NAME.fullmatch(hca.name):
        return None
    return "its name cannot be written in NCCL_IB_HCA"
