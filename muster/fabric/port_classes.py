"""Classes of similar ports, and the choice of the compute class.

A port with unknown properties joins a class that matches its known ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from muster.fabric.model import ACTIVE, INFINIBAND, Hca
from muster.fabric.topology import card_of
from muster.fabric.unsupported_devices import special

# The faster of two classes is clearly the compute class with at least this ratio of bandwidths.
_CLEAR: Final = 2
# An old kernel reports unknown speeds as SDR, 2.5 Gb/s per lane. Cards newer than Connect-IB never
# run at it; 10 GbE interfaces report QDR.
_LANE_GBPS: Final = 2.5
_WRITTEN: Final = re.compile(r"[0-9.]{1,12} Gb/sec \(([0-9]{1,3})X(?: (\w{1,16}))?\)")
_NEWER: Final = (range(4113, 10_000), range(41_000, 100_000))
# Port speed of most cards of a model, by the PCI device number: ConnectX-3 to ConnectX-8,
# BlueField-1 to -3. Virtual functions have none.
_BUILT_GBPS: Final = {
    4099: 40.0,
    4103: 40.0,
    4113: 56.0,
    4115: 100.0,
    4117: 25.0,
    4119: 100.0,
    4121: 100.0,
    4123: 200.0,
    4125: 100.0,
    4127: 25.0,
    4129: 400.0,
    4131: 800.0,
    41682: 100.0,
    41686: 100.0,
    41692: 200.0,
}
_MELLANOX: Final = "15b3"

Groups = Mapping[str, Sequence[Hca]]


def grouped(hcas: Iterable[Hca]) -> list[Hca]:
    """Return the ports with the names of their classes."""
    named = [replace(hca, group=_name(hca)) for hca in hcas]
    surest = sorted(named, key=_known, reverse=True)
    made = []
    for hca in named:
        like = next((o for o in surest if _known(o) > _known(hca) and _may_be_like(hca, o)), hca)
        made.append(replace(hca, group=like.group))
    return made


def speed_of(hca: Hca) -> float | None:
    """Return the rate of an active port in Gb/s; None if unknown. A port that is down reports any
    number, and so does an old kernel for an unknown speed.
    """
    if hca.state != ACTIVE or hca.rate_gbps is None:
        return None
    return None if _is_unnamed(hca, hca.rate_gbps) else hca.rate_gbps


def by_bandwidth(groups: Groups) -> list[str]:
    """Return the class names, the one to use first: by bandwidth, or by the number of ports if a
    speed is unknown; InfiniBand before Ethernet.
    """
    known = all(speed_of_class(ports) is not None for ports in groups.values())

    def order(name: str) -> tuple[float, bool, str]:
        ports = groups[name]
        weight = _links(ports) * ((speed_of_class(ports) or 0.0) if known else 1.0)
        return -weight, ports[0].link_layer != INFINIBAND, name

    return sorted(groups, key=order)


def clearly(first: Sequence[Hca], second: Sequence[Hca]) -> bool:
    """True if the first has far more bandwidth than the second."""
    one, other = speed_of_class(first), speed_of_class(second)
    speeds = (1.0, 1.0) if one is None or other is None else (one, other)
    return _links(first) * speeds[0] >= _CLEAR * _links(second) * speeds[1]


def speed_of_class(ports: Sequence[Hca]) -> float | None:
    """Return the port speed of a class in Gb/s: that of the fastest port, or of the model if all
    ports are down.
    """
    said = [speed for hca in ports if (speed := speed_of(hca)) is not None]
    if not said and all(hca.state not in (None, ACTIVE) for hca in ports):
        said = [speed for hca in ports if (speed := _built(hca)) is not None]
    return max(said, default=None)


def same_ends(ports: Iterable[Hca]) -> bool:
    """True if all multi-port cards have the same ports up: then the others are not cabled."""
    cards: dict[str, list[tuple[str, bool]]] = {}
    for hca in ports:
        card = card_of(hca.pci) if hca.pci else hca.name
        end = f"{hca.pci.rpartition('.')[2] if hca.pci else ''}/{hca.port}"
        cards.setdefault(card, []).append((end, hca.state == ACTIVE))
    patterns = {tuple(sorted(ends)) for ends in cards.values()}
    if len(patterns) != 1:
        return False
    return {up for _, up in next(iter(patterns))} == {True, False}


def cabled(ports: Sequence[Hca]) -> list[Hca]:
    """Return the ports without the port numbers that no card uses."""
    same = same_ends(ports)
    return [hca for hca in ports if not same or hca.state == ACTIVE]


def in_words(name: str, ports: Sequence[Hca]) -> str:
    """Return `Ethernet MT4125: 4 ports of 100 Gb/s`."""
    speeds = sorted({speed for hca in ports if (speed := speed_of(hca)) is not None})
    rate = f" of {'/'.join(f'{speed:g}' for speed in speeds)} Gb/s" if speeds else ""
    return f"{name}: {len(ports)} port{'s' if len(ports) != 1 else ''}{rate}"


def _name(hca: Hca) -> str:
    kind = special(hca)
    if kind is not None:
        return kind
    model = hca.hca_type or hca.pci_id or ""
    return f"{hca.link_layer or 'unknown link'} {model}".strip()


def _known(hca: Hca) -> int:
    """Return how many of the class-defining properties are known."""
    if special(hca) is not None:
        return 0
    return (
        4 * (hca.link_layer is not None) + 2 * (hca.hca_type is not None) + (hca.pci_id is not None)
    )


def _may_be_like(hca: Hca, other: Hca) -> bool:
    """True if no property known of both differs."""
    if special(hca) is not None or special(other) is not None:
        return False
    if None not in (hca.link_layer, other.link_layer) and hca.link_layer != other.link_layer:
        return False
    for one, two in ((hca.hca_type, other.hca_type), (hca.pci_id, other.pci_id)):
        if one is not None and two is not None:
            return one == two
    speeds = speed_of(hca), speed_of(other)
    return None in speeds or speeds[0] == speeds[1]


def _is_unnamed(hca: Hca, rate: float) -> bool:
    """True if the kernel had no name for the speed. An unknown card may be such a case, too: cards
    that really run at SDR date from 2005.
    """
    model = _model(hca)
    known = hca.hca_type is not None or hca.pci_id is not None
    if known and (model is None or not any(model in numbers for numbers in _NEWER)):
        return False
    found = _WRITTEN.fullmatch(hca.rate or "")
    if found is None:
        return known and rate <= 4 * _LANE_GBPS
    return found[2] in (None, "SDR") and rate == int(found[1]) * _LANE_GBPS


def _built(hca: Hca) -> float | None:
    model = _model(hca)
    return None if model is None else _BUILT_GBPS.get(model)


def _model(hca: Hca) -> int | None:
    """Return NVIDIA's model number."""
    model = (hca.hca_type or "").removeprefix("MT")
    if model.isascii() and model.isdecimal() and len(model) < 10:
        return int(model)
    vendor, _, device = (hca.pci_id or "").partition(":")
    found = vendor == _MELLANOX and re.fullmatch(r"[0-9a-f]{4}", device)
    return int(device, 16) if found else None


def _links(ports: Iterable[Hca]) -> int:
    """Return the number of links. Virtual functions share the link of their owner."""
    return len({hca.physical_function or hca.key for hca in ports})
