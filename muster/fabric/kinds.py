"""RDMA devices that NCCL's own transport is not to use, told from what is known of them.

Only what was read counts: a file that is not there proves nothing, as many containers and virtual
machines show half of a device.
"""

from __future__ import annotations

import re
from typing import Final

from muster.fabric.types import ETHERNET, INFINIBAND, Hca

EFA: Final = "EFA"
OPA: Final = "OPA"
_IWARP: Final = "iWARP"
_SOFTWARE: Final = "software RDMA"
_USNIC: Final = "usNIC"

# Kernel drivers of the PCI function or of the RDMA device.
_DRIVERS: Final = {
    "efa": EFA,
    "hfi1": OPA,
    "irdma": _IWARP,
    "i40iw": _IWARP,
    "ice": _IWARP,
    "i40e": _IWARP,
    "iavf": _IWARP,
    "idpf": _IWARP,
    "siw": _SOFTWARE,
    "rxe": _SOFTWARE,
    "rdma_rxe": _SOFTWARE,
    "usnic": _USNIC,
    "usnic_verbs": _USNIC,
    "enic": _USNIC,
}
_NAMES: Final = (
    (re.compile(r"irdma\d+|i40iw\d+"), _IWARP),
    (re.compile(r"(siw|rxe)([_-].*|\d+)?"), _SOFTWARE),
    (re.compile(r"hfi1_\d+"), OPA),
    (re.compile(r"efa_\d+"), EFA),
    (re.compile(r"usnic_\d+"), _USNIC),
)
_SMI: Final = re.compile(r"smi\d*")
_AMAZON, _INTEL = "1d0f:", "8086:"
_ETHERNET_CLASS: Final = 0x0200
_NODE_TYPES: Final = {
    2: "a switch",
    3: "a router",
    4: "an iWARP card",
    5: "usNIC",
    6: "usNIC",
    7: "of an unspecified type",
}
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_ADVICE: Final = {
    EFA: "EFA needs the aws-ofi-nccl plugin (libfabric): NCCL's own InfiniBand transport skips it",
    OPA: "Omni-Path: sites run it through a libfabric or PSM2 plugin, never mixed with others",
    _IWARP: "iWARP-capable Ethernet (irdma, i40iw): passes NCCL's filter, then fails or is slow",
    _SOFTWARE: "RDMA in software (rxe, siw): no faster than TCP",
    _USNIC: "usNIC: NCCL cannot use it",
}


def special(hca: Hca) -> str | None:
    """What kind of device this is, if it is one of those that are not for NCCL's own transport."""
    if hca.virtual:
        return _SOFTWARE
    for pattern, kind in _NAMES:
        if pattern.fullmatch(hca.name):
            return kind
    if hca.driver is not None and hca.driver in _DRIVERS:
        return _DRIVERS[hca.driver]
    if hca.hca_type is not None and hca.hca_type.upper().startswith("I40IW"):
        return _IWARP
    vendor = hca.pci_id or ""
    if vendor.startswith(_INTEL) and hca.pci_class is not None:
        if hca.pci_class >> 8 == _ETHERNET_CLASS:
            return _IWARP
        # Omni-Path cards: 24f0 and 24f1.
        if vendor.startswith("8086:24f"):
            return OPA
    if vendor.startswith(_AMAZON) or (hca.name.startswith("rdmap") and hca.node_type == 7):
        return EFA
    return None


def unfit(hca: Hca) -> str | None:
    """Why this port is never for NCCL's own transport, on evidence; None if nothing speaks against
    it."""
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
    """Why no list of NCCL's can hold its name; None if one can."""
    if _NAME.fullmatch(hca.name):
        return None
    return "its name cannot be written in NCCL_IB_HCA"
