"""Counters of ports and interfaces: from readings to bytes, rates and faults.

A port counts data in units of four octets, and may count in 32 bits; a driver may have no counters
at all, and one that is loaded anew begins at 0. What cannot be known is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from muster.protocol.traffic import PortFigures, SocketFigures

WORD_BYTES: Final = 4
SENT: Final = "port_xmit_data"
RECEIVED: Final = "port_rcv_data"
LINK_DOWNED: Final = "link_downed"
DATA: Final = (SENT, RECEIVED)
COUNTERS: Final = "counters"
"""The folder in which they mostly are."""
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
"""Those of `counters` and `hw_counters` that tell of lost or slowed packets."""

NOISE_BYTES: Final = 1 << 20
"""What less than this was carried is the fabric's own talk and no traffic of a task."""

_SHORT: Final = 1 << 32
_LONG: Final = 1 << 64
_PERIOD_S_MIN: Final = 0.2
# What a port counts of an IPoIB packet, beside what its interface does.
_IPOIB_HEADERS: Final = 1.1


class PortReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one port's files say: raw values by name. `why`: it has no counters of data.

    `ipoib` are interfaces that it also carries, and whose bytes it counts; `folders` is where those
    of data were read, if not in `counters`.
    """

    port: str
    values: dict[str, int] = {}
    ipoib: tuple[str, ...] = ()
    why: str = ""
    folders: dict[str, str] = {}


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's ports and interfaces at `at`, in monotonic seconds. Interfaces have their sent and
    received bytes."""

    at: float
    ports: tuple[PortReading, ...] = ()
    sockets: dict[str, tuple[int, int]] = {}


class Total(msgspec.Struct, omit_defaults=True):
    """One counter, summed up from its first reading on; `sum` is None before that. `tcp`: so much
    of it was an IPoIB interface's. `long`: it has been beyond 32 bits. `folder` is that of its
    file."""

    last: int | None = None
    sum: int | None = None
    tcp: int = 0
    long: bool = False
    folder: str = COUNTERS

    @property
    def rdma(self) -> int | None:
        """What is left of it."""
        return None if self.sum is None else max(0, self.sum - self.tcp)


class PortTotals(msgspec.Struct, omit_defaults=True):
    """One port, summed up over readings, in bytes."""

    planned: bool = False
    sent: Total = msgspec.field(default_factory=Total)
    received: Total = msgspec.field(default_factory=Total)
    faults: dict[str, Total] = msgspec.field(default_factory=dict)
    rate: float = 0.0
    peak: float = 0.0
    missed: bool = False
    why: str = ""


class SocketTotals(msgspec.Struct, omit_defaults=True):
    """One interface, summed up, in bytes."""

    sent: Total = msgspec.field(default_factory=Total)
    received: Total = msgspec.field(default_factory=Total)
    peak: float = 0.0


_Moved = tuple[int | None, int | None]
"""Bytes sent and received in one step."""


class Totals(msgspec.Struct, omit_defaults=True):
    """What came of all readings of a task; it is as large after a million as after two.

    It can be written down, and gone on with by another process of the same boot.
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
        """From the first reading to the last."""
        return 0.0 if self.began is None or self.last is None else self.last - self.began

    def add(self, reading: Reading, longest_s: float) -> None:
        """Take in the next reading. After more than `longest_s` nobody looked for a while: the
        bytes count, and the rate of that time says nothing of a peak."""
        before, self.last = self.last, reading.at
        if before is None or self.began is None:
            before = self.began = reading.at
        period_s = reading.at - before
        gap = period_s > longest_s
        self.samples += 1
        self.gaps += gap
        self.gap_s += period_s if gap else 0.0
        told = period_s >= _PERIOD_S_MIN and not gap
        moved = {
            name: self._socket(name, pair, period_s, told=told)
            for name, pair in reading.sockets.items()
        }
        both = [0.0, 0.0]
        for port in reading.ports:
            rates = self._port(port, moved, period_s, told=told)
            if not self.planned or port.port in self.planned:
                both = [both[0] + rates[0], both[1] + rates[1]]
        if told:
            self.peak = max(self.peak, *both)

    def _socket(self, name: str, pair: tuple[int, int], period_s: float, *, told: bool) -> _Moved:
        totals = self.sockets.setdefault(name, SocketTotals())
        seen = totals.peak * period_s
        sent, received = grow(totals.sent, pair[0], seen), grow(totals.received, pair[1], seen)
        if told:
            totals.peak = max(totals.peak, (sent or 0) / period_s, (received or 0) / period_s)
        return sent, received

    def _port(
        self,
        port: PortReading,
        moved: Mapping[str, _Moved],
        period_s: float,
        *,
        told: bool,
    ) -> tuple[float, float]:
        totals = self.ports.setdefault(port.port, PortTotals(port.port in self.planned))
        totals.why = port.why
        seen = totals.peak * period_s
        # What was missed the last time is in this step, which then is no rate.
        missed, totals.missed = totals.missed, any(name not in port.values for name in DATA)
        told = told and not missed
        rates = []
        for way, (name, total) in enumerate(((SENT, totals.sent), (RECEIVED, totals.received))):
            step: int | None = 0
            if name in port.values:
                folder = port.folders.get(name, COUNTERS)
                if folder != total.folder:
                    # Another life of the agent read another file: what went between is unknown.
                    total.folder, total.last, total.long = folder, None, False
                step = grow(total, port.values[name], seen, WORD_BYTES)
            # However they travelled, the bytes of its IPoIB interfaces are TCP.
            own = [moved[netdev][way] for netdev in port.ipoib if netdev in moved]
            known = [tcp for tcp in own if tcp is not None]
            tcp = sum(known) * _IPOIB_HEADERS
            if len(known) < len(own):
                # All of it may be that of an interface that began anew.
                tcp, told = max(tcp, step or 0), False
            total.tcp += int(tcp)
            told = told and step is not None
            rates.append(max(0.0, (step or 0) - tcp) / period_s if told else 0.0)
        for name in (*FAULTS, LINK_DOWNED):
            if name in port.values:
                # None of them goes round: what is less than before began anew.
                grow(totals.faults.setdefault(name, Total()), port.values[name], math.inf)
        if told:
            totals.rate = max(rates)
            totals.peak = max(totals.peak, totals.rate)
        return rates[0], rates[1]

    def port_figures(self) -> tuple[PortFigures, ...]:
        """Of all ports, those that the task is to use first and in their order."""
        order = {name: place for place, name in enumerate(self.planned)}
        names = sorted(self.ports, key=lambda name: order.get(name, len(order)))
        return tuple(_port_figures(name, self.ports[name]) for name in names)

    def socket_figures(self) -> tuple[SocketFigures, ...]:
        """Of all interfaces."""
        return tuple(
            SocketFigures(name, each.sent.sum, each.received.sum, each.peak)
            for name, each in self.sockets.items()
        )


def grow(total: Total, value: int, seen: float, unit: int = 1) -> int | None:
    """Add to `total` what a counter went on by, and return that, in units' bytes; None: unknown.

    One that is less than before began anew, at 0: what went before is lost, and of this step no
    more is known than what it says now. It has gone round only if it then went on by no more than
    it was `seen` to in as long, in bytes.
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
        # What the port could carry tells nothing: one of 200 Gb/s fills 32 bits in less than a
        # look. Where it was seen to fill half of them it may have gone round more than once, which
        # is not told from one that began anew; and most of 32 bits stop at their end.
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
    """Ports that had traffic of a task."""
    return sum(each.bytes >= NOISE_BYTES for each in figures)


def imbalance(figures: Iterable[PortFigures]) -> float | None:
    """How much less the least busy of the ports carried than the mean, 0 to 1; None where fewer
    than two are known, or there was no traffic."""
    known = [each.bytes for each in figures if each.sent is not None or each.received is not None]
    if len(known) < 2 or max(known) < NOISE_BYTES:
        return None
    return 1.0 - min(known) / (sum(known) / len(known))


def tcp_share(ports: Iterable[PortFigures], sockets: Iterable[SocketFigures]) -> float | None:
    """The part of all bytes that went by TCP, 0 to 1; None where nothing is known."""
    rdma = sum(each.bytes for each in ports)
    tcp = sum(each.bytes for each in sockets)
    return tcp / (rdma + tcp) if rdma + tcp else None
