"""Counters of ports and interfaces: conversion of readings to bytes, rates and faults.

A port counts data in units of four octets, possibly with 32 bits. A driver may have no counters,
and a reloaded one restarts them at 0. An unknown value is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from muster.protocol.observations.traffic import PortFigures, SocketFigures

WORD_BYTES: Final = 4
SENT: Final = "port_xmit_data"
RECEIVED: Final = "port_rcv_data"
LINK_DOWNED: Final = "link_downed"
DATA: Final = (SENT, RECEIVED)
COUNTERS: Final = "counters"
"""Their usual directory."""
FAULTS: Final = (
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "roce_adp_retrans",
    "np_cnp_sent",
    "rp_cnp_handled",
    "req_cqe_error",
)
"""Counters in `counters` and `hw_counters` that indicate lost or delayed packets."""

NOISE_BYTES: Final = 1 << 20
"""Fewer bytes than this are the fabric's own control traffic, not a task's."""

_SHORT: Final = 1 << 32
_LONG: Final = 1 << 64
_PERIOD_S_MIN: Final = 0.2
# Ratio of a port's count to its interface's for an IPoIB packet, because of headers.
_IPOIB_HEADERS: Final = 1.1


class PortReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reading of one port: raw values by name. `why`: the reason if it has no data counters.

    `ipoib` are interfaces on the port, whose bytes are included. `folders` is where the data
    counters were read, if not in `counters`.
    """

    port: str
    values: dict[str, int] = {}
    ipoib: tuple[str, ...] = ()
    why: str = ""
    folders: dict[str, str] = {}


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reading of a node's ports and interfaces at `at` (monotonic seconds). Interfaces have their
    sent and received bytes.
    """

    at: float
    ports: tuple[PortReading, ...] = ()
    sockets: dict[str, tuple[int, int]] = {}


class Total(msgspec.Struct, omit_defaults=True):
    """Sum of a counter since its first reading; `sum` is None before that. `tcp` is the part of an
    IPoIB interface. `long` means that it has exceeded 32 bits. `folder` is the directory of its
    file.
    """

    last: int | None = None
    sum: int | None = None
    tcp: int = 0
    long: bool = False
    folder: str = COUNTERS

    @property
    def rdma(self) -> int | None:
        """The part without TCP."""
        return None if self.sum is None else max(0, self.sum - self.tcp)


class PortTotals(msgspec.Struct, omit_defaults=True):
    """Sums of one port, in bytes."""

    planned: bool = False
    sent: Total = msgspec.field(default_factory=Total)
    received: Total = msgspec.field(default_factory=Total)
    faults: dict[str, Total] = msgspec.field(default_factory=dict)
    rate: float = 0.0
    peak: float = 0.0
    missed: bool = False
    why: str = ""


class SocketTotals(msgspec.Struct, omit_defaults=True):
    """Sums of one interface, in bytes."""

    sent: Total = msgspec.field(default_factory=Total)
    received: Total = msgspec.field(default_factory=Total)
    peak: float = 0.0


_Moved = tuple[int | None, int | None]
"""Bytes sent and received between two readings."""


class Totals(msgspec.Struct, omit_defaults=True):
    """Totals of all readings of a task, of constant size.

    They can be stored and continued by another process of the same boot.
    """

    ports: dict[str, PortTotals] = msgspec.field(default_factory=dict)
    sockets: dict[str, SocketTotals] = msgspec.field(default_factory=dict)
    began: float | None = None
    last: float | None = None
    samples: int = 0
    gaps: int = 0
    gap_s: float = 0.0
    peak: float = 0.0
    planned: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds from the first reading to the last."""
        return 0.0 if self.began is None or self.last is None else self.last - self.began

    def add(self, reading: Reading, longest_s: float) -> None:
        """Add the next reading. After a pause of more than `longest_s`, the bytes count, but the
        rate is not used as a peak.
        """
        before, self.last = self.last, reading.at
        if before is None or self.began is None:
            before = self.began = reading.at
        period_s = reading.at - before
        gap = period_s > longest_s
        self.samples += 1
        self.gaps += gap
        self.gap_s += period_s if gap else 0.0
        counts = period_s >= _PERIOD_S_MIN and not gap
        moved = {
            name: self._socket(name, pair, period_s, counts=counts)
            for name, pair in reading.sockets.items()
        }
        both = [0.0, 0.0]
        for port in reading.ports:
            rates = self._port(port, moved, period_s, counts=counts)
            if not self.planned or port.port in self.planned:
                both = [both[0] + rates[0], both[1] + rates[1]]
        if counts:
            self.peak = max(self.peak, *both)

    def _socket(self, name: str, pair: tuple[int, int], period_s: float, *, counts: bool) -> _Moved:
        totals = self.sockets.setdefault(name, SocketTotals())
        seen = totals.peak * period_s
        sent, received = grow(totals.sent, pair[0], seen), grow(totals.received, pair[1], seen)
        if counts:
            totals.peak = max(totals.peak, (sent or 0) / period_s, (received or 0) / period_s)
        return sent, received

    def _port(
        self,
        port: PortReading,
        moved: Mapping[str, _Moved],
        period_s: float,
        *,
        counts: bool,
    ) -> tuple[float, float]:
        totals = self.ports.setdefault(port.port, PortTotals(port.port in self.planned))
        totals.why = port.why
        seen = totals.peak * period_s
        # This step includes bytes of an earlier missed reading, so it is no rate.
        missed, totals.missed = totals.missed, any(name not in port.values for name in DATA)
        counts = counts and not missed
        rates = []
        for way, (name, total) in enumerate(((SENT, totals.sent), (RECEIVED, totals.received))):
            step: int | None = 0
            if name in port.values:
                folder = port.folders.get(name, COUNTERS)
                if folder != total.folder:
                    # An earlier agent process read another file: the bytes in between are unknown.
                    total.folder, total.last, total.long = folder, None, False
                step = grow(total, port.values[name], seen, WORD_BYTES)
            # The bytes of its IPoIB interfaces are TCP, however they travelled.
            own = [moved[netdev][way] for netdev in port.ipoib if netdev in moved]
            known = [tcp for tcp in own if tcp is not None]
            tcp = sum(known) * _IPOIB_HEADERS
            if len(known) < len(own):
                # All of it may belong to an interface whose counters restarted.
                tcp, counts = max(tcp, step or 0), False
            total.tcp += int(tcp)
            counts = counts and step is not None
            rates.append(max(0.0, (step or 0) - tcp) / period_s if counts else 0.0)
        for name in (*FAULTS, LINK_DOWNED):
            if name in port.values:
                # These counters never wrap around: a smaller value means a restart.
                grow(totals.faults.setdefault(name, Total()), port.values[name], math.inf)
        if counts:
            totals.rate = max(rates)
            totals.peak = max(totals.peak, totals.rate)
        return rates[0], rates[1]

    def port_figures(self) -> tuple[PortFigures, ...]:
        """Return the figures of all ports, those of the plan first and in its order."""
        order = {name: place for place, name in enumerate(self.planned)}
        names = sorted(self.ports, key=lambda name: order.get(name, len(order)))
        return tuple(_port_figures(name, self.ports[name]) for name in names)

    def socket_figures(self) -> tuple[SocketFigures, ...]:
        """Return the figures of all interfaces."""
        return tuple(
            SocketFigures(name, each.sent.sum, each.received.sum, each.peak)
            for name, each in self.sockets.items()
        )


def grow(total: Total, value: int, seen: float, unit: int = 1) -> int | None:
    """Add the increase of a counter to `total` and return it in bytes of `unit`. None if unknown.

    A smaller value means a restart at 0: earlier bytes are lost, and the increase is at least the
    new value. It is a wraparound only if the increase does not exceed the fastest one `seen` in an
    equal time, in bytes.
    """
    before, total.last = total.last, value
    total.long = total.long or value >= _SHORT
    if before is None:
        total.sum = total.sum or 0
        return None
    most = max(seen, NOISE_BYTES) / unit
    step = value - before
    anew = False
    if step < 0:
        size = _LONG if total.long else _SHORT
        # The port's capacity does not help: 200 Gb/s fill 32 bits between two samples. If the port
        # was seen to fill half of them, it may have wrapped more than once, which looks like a
        # restart. Most 32-bit counters stop at their maximum instead.
        anew = not step + size <= most <= size // 2
        if not anew:
            step += size
        else:
            step = value if value <= most else 0
    total.sum = (total.sum or 0) + step * unit
    return None if anew else step * unit


def _port_figures(name: str, totals: PortTotals) -> PortFigures:
    downed = totals.faults.get(LINK_DOWNED)
    unknown = totals.sent.sum is None and totals.received.sum is None
    return PortFigures(
        port=name,
        planned=totals.planned,
        sent=totals.sent.rdma,
        received=totals.received.rdma,
        rate=totals.rate,
        peak=totals.peak,
        flaps=None if downed is None else downed.sum or 0,
        errors={
            fault: total.sum
            for fault, total in totals.faults.items()
            if fault != LINK_DOWNED and total.sum
        },
        why=(totals.why or "no counters of data") if unknown else "",
    )


def carried(figures: Iterable[PortFigures]) -> int:
    """Return the number of ports that carried the task's traffic."""
    return sum(each.bytes >= NOISE_BYTES for each in figures)


def imbalance(figures: Iterable[PortFigures]) -> float | None:
    """Return by how much the least busy port is below the mean, 0 to 1. None if fewer than two are
    known, or without traffic.
    """
    known = [each.bytes for each in figures if each.sent is not None or each.received is not None]
    if len(known) < 2 or max(known) < NOISE_BYTES:
        return None
    return 1.0 - min(known) / (sum(known) / len(known))


def tcp_share(ports: Iterable[PortFigures], sockets: Iterable[SocketFigures]) -> float | None:
    """Return the share of all bytes that went by TCP, 0 to 1; None if unknown."""
    rdma = sum(each.bytes for each in ports)
    tcp = sum(each.bytes for each in sockets)
    return tcp / (rdma + tcp) if rdma + tcp else None
