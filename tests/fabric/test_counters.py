"""From readings of counters to figures."""

from __future__ import annotations

import msgspec
import pytest

from muster.fabric.counters import (
    LINK_DOWNED,
    RECEIVED,
    SENT,
    PortReading,
    Reading,
    Totals,
    carried,
    imbalance,
    tcp_share,
)
from muster.protocol.observations.traffic import PortFigures

LONGEST_S = 10.0


def port(
    name: str = "mlx5_0:1",
    sent: int | None = 0,
    got: int | None = 0,
    more: dict[str, int] | None = None,
) -> PortReading:
    values = {SENT: sent, RECEIVED: got, **(more or {})}
    return PortReading(name, {k: v for k, v in values.items() if v is not None})


def totals(*readings: Reading, planned: tuple[str, ...] = ("mlx5_0:1",)) -> Totals:
    found = Totals(planned=planned)
    for reading in readings:
        found.add(reading, LONGEST_S)
    return found


def test_a_word_is_four_octets() -> None:
    found = totals(
        Reading(10.0, (port(sent=1000, got=50),)), Reading(12.0, (port(sent=1500, got=60),))
    )
    (figures,) = found.port_figures()
    assert (figures.sent, figures.received) == (2000, 40)
    assert figures.rate == figures.peak == found.peak == 1000.0
    assert figures.planned


def test_counts_before_the_task_are_not_its_own() -> None:
    (figures,) = totals(Reading(0.0, (port(sent=10**15),))).port_figures()
    assert (figures.sent, figures.received, figures.peak) == (0, 0, 0.0)


@pytest.mark.parametrize("size", [1 << 32, 1 << 64])
def test_a_counter_goes_round(size: int) -> None:
    found = totals(Reading(0.0, (port(sent=size - 100),)), Reading(1.0, (port(sent=150),)))
    assert found.port_figures()[0].sent == 4 * 250


def test_a_counter_that_began_anew_counts_from_nothing() -> None:
    # Had it gone round, the port would have carried more than it can.
    found = totals(Reading(0.0, (port(sent=2_000_000),)), Reading(0.25, (port(sent=1000),)))
    assert found.port_figures()[0].sent == 4000
    long = totals(Reading(0.0, (port(sent=1 << 40),)), Reading(1.0, (port(sent=70),)))
    assert long.port_figures()[0].sent == 280


def sent_at(*words: int) -> list[Reading]:
    """A reading each second."""
    return [Reading(float(at), (port(sent=sent),)) for at, sent in enumerate(words)]


@pytest.mark.parametrize("before", [1000, 3_000_000_000])
def test_a_driver_loaded_anew_makes_no_traffic_of_a_fast_port(before: int) -> None:
    # A port of 400 Gb/s could have filled 32 bits in less time than that.
    found = totals(*sent_at(before, 900))
    (figures,) = found.port_figures()
    assert (figures.sent, figures.peak, found.peak) == (3600, 0.0, 0.0)
    assert carried([figures]) == 0


def test_a_counter_that_began_anew_has_no_rate_then() -> None:
    found = totals(*sent_at(2_000_000, 3_000_000, 1000))
    (figures,) = found.port_figures()
    assert (figures.rate, figures.peak) == (4e6, 4e6)


def test_a_step_back_is_not_all_that_was_ever_counted() -> None:
    assert totals(*sent_at(10**12, 10**12 - 5)).port_figures()[0].sent == 0
    found = totals(
        Reading(0.0, (), {"bond0": (10**12, 10**12)}),
        Reading(1.0, (), {"bond0": (10**12 - 5, 10**12)}),
    )
    (socket,) = found.socket_figures()
    assert (socket.sent, socket.received, socket.peak) == (0, 0, 0.0)


def test_a_counter_goes_round_at_the_rate_that_it_had() -> None:
    top = 1 << 32
    found = totals(*sent_at(top - 750, top - 500, top - 250, 0))
    assert found.port_figures()[0].sent == 3000
    big = 10**8
    found = totals(*sent_at(*((top - 3 * big + n * big + 50) % top for n in range(6))))
    (figures,) = found.port_figures()
    assert (figures.sent, figures.peak) == (4 * 5 * big, 4.0 * big)


def test_a_counter_that_may_wrap_more_than_once_proves_nothing() -> None:
    # 3e9 units a second: whether the last step is 1.3e9 or began anew cannot be known.
    found = totals(*sent_at(0, 3_000_000_000, 100))
    (figures,) = found.port_figures()
    assert (figures.sent, figures.peak) == (4 * 3_000_000_100, 12e9)


def test_a_counter_that_was_longer_does_not_go_round_in_32_bits() -> None:
    found = totals(*sent_at(5_000_000_000, 10, (1 << 32) - 10, 5))
    assert found.port_figures()[0].sent == 4 * (10 + (1 << 32) - 20 + 5)


def test_an_interface_that_began_anew_is_no_traffic_of_its_port() -> None:
    def reading(at: float, words: int, tcp: int) -> Reading:
        own = PortReading("mlx5_0:1", {SENT: words, RECEIVED: words}, ipoib=("ib0",))
        return Reading(at, (own,), {"ib0": (tcp, tcp)})

    # It may have carried all of the second step, before it was made anew.
    found = totals(reading(0.0, 0, 10**9), reading(1.0, 10**6, 10**9), reading(2.0, 10**9, 7))
    (figures,) = found.port_figures()
    assert (figures.sent, figures.rate, figures.peak) == (4 * 10**6, 4e6, 4e6)
    (socket,) = found.socket_figures()
    assert (socket.sent, socket.peak) == (7, 0.0)


def test_absent_counters_are_unknown_and_not_nothing() -> None:
    silent = PortReading("mlx5_0:1", {}, why="no such file")
    (figures,) = totals(Reading(0.0, (silent,)), Reading(1.0, (silent,))).port_figures()
    assert (figures.sent, figures.received, figures.flaps) == (None, None, None)
    assert figures.why == "no such file"


def test_a_single_direction() -> None:
    found = totals(Reading(0.0, (port(got=None),)), Reading(1.0, (port(sent=25, got=None),)))
    (figures,) = found.port_figures()
    assert (figures.sent, figures.received, figures.why) == (100, None, "")


def test_a_reading_that_failed_makes_no_peak() -> None:
    found = totals(
        Reading(0.0, (port(sent=0),)),
        Reading(1.0, (port(sent=None, got=None),)),
        Reading(2.0, (port(sent=1000),)),
        Reading(3.0, (port(sent=1250),)),
    )
    (figures,) = found.port_figures()
    assert (figures.sent, figures.peak) == (5000, 1000.0)


def test_a_gap_counts_and_is_reported_and_makes_no_peak() -> None:
    found = totals(Reading(0.0, (port(),)), Reading(60.0, (port(sent=10**9),)))
    assert found.port_figures()[0].sent == 4 * 10**9
    assert (found.gaps, found.gap_s, found.peak) == (1, 60.0, 0.0)


def test_flaps_and_faults_since_the_start() -> None:
    faulty = port(more={LINK_DOWNED: 4, "symbol_error": 9, "port_rcv_errors": 0})
    found = totals(
        Reading(0.0, (port(more={LINK_DOWNED: 3, "symbol_error": 2, "port_rcv_errors": 0}),)),
        Reading(1.0, (faulty,)),
    )
    (figures,) = found.port_figures()
    assert (figures.flaps, figures.errors) == (1, {"symbol_error": 7})


def test_a_flap_counter_that_began_anew() -> None:
    found = totals(
        Reading(0.0, (port(more={LINK_DOWNED: 255}),)), Reading(1.0, (port(more={LINK_DOWNED: 1}),))
    )
    assert found.port_figures()[0].flaps == 1


def test_ipoib_is_tcp_though_the_port_counts_it() -> None:
    def reading(at: float, words: int, tcp: int) -> Reading:
        own = PortReading("mlx5_0:1", {SENT: words, RECEIVED: words}, ipoib=("ib0",))
        return Reading(at, (own,), {"ib0": (tcp, tcp)})

    found = totals(reading(0.0, 0, 0), reading(1.0, 260_000, 1_000_000))
    (figures,) = found.port_figures()
    assert (figures.sent, figures.peak) == (0, 0.0)
    (socket,) = found.socket_figures()
    assert (socket.sent, socket.peak) == (1_000_000, 1_000_000.0)


def test_the_planned_ports_come_first_and_make_the_peak() -> None:
    def reading(at: float, words: int) -> Reading:
        return Reading(at, tuple(port(f"mlx5_{n}:1", words) for n in range(3)))

    found = totals(reading(0.0, 0), reading(1.0, 500), planned=("mlx5_2:1", "mlx5_0:1"))
    assert [one.port for one in found.port_figures()] == ["mlx5_2:1", "mlx5_0:1", "mlx5_1:1"]
    assert found.peak == 4000.0


def test_memory_is_the_same_after_many_samples() -> None:
    found = Totals(planned=("mlx5_0:1",))
    sizes = []
    for n in range(1001):
        faulty = port(sent=n * 10**6, got=n * 10**6, more={LINK_DOWNED: 1})
        found.add(Reading(float(n), (faulty,), {"eth0": (n * 1000, n * 1000)}), LONGEST_S)
        if n in (10, 1000):
            sizes.append(
                len(found.ports) + len(found.sockets) + len(found.ports["mlx5_0:1"].faults)
            )
    assert sizes[0] == sizes[1]
    assert len(msgspec.json.encode(found)) < 1000


def test_stored_counts_continue() -> None:
    first = totals(Reading(0.0, (port(),)), Reading(1.0, (port(sent=100),)))
    again = msgspec.json.decode(msgspec.json.encode(first), type=Totals)
    again.add(Reading(2.0, (port(sent=150),)), LONGEST_S)
    assert again.port_figures()[0].sent == 600
    assert again.samples == 3


def test_imbalance_between_rails() -> None:
    even = [PortFigures(f"mlx5_{n}:1", sent=10**9, received=10**9) for n in range(4)]
    assert imbalance(even) == 0.0
    lame = [*even[:3], PortFigures("mlx5_3:1", sent=10**8, received=10**8)]
    assert imbalance(lame) == pytest.approx(0.871, abs=0.001)
    assert imbalance(even[:1]) is None
    assert imbalance([PortFigures("a:1", sent=0), PortFigures("b:1", sent=0)]) is None


def test_share_of_tcp() -> None:
    assert tcp_share([], []) is None
    assert tcp_share([PortFigures("a:1", sent=999, received=0)], []) == 0.0
