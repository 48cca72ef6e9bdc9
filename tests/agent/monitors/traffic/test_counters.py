"""Counters below a made-up root."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.monitors.traffic.counters import CounterReader, interfaces
from muster.fabric.counters import LINK_DOWNED, RECEIVED, SENT, Totals
from tests.agent.probe.fabric.trees import Node, refused_of, refusing, unpack

PORT = "sys/class/infiniband/mlx5_0/ports/1"
FULL = (1 << 32) - 1
CARD = "pci0000:00/0000:00:01.0"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.hca("mlx5_0", path="pci0000:00/0000:00:01.0")
    made.port("mlx5_0", link="InfiniBand")
    made.file(f"{PORT}/counters/{SENT}", "1000\n")
    made.file(f"{PORT}/counters/{RECEIVED}", "2000\n")
    return made


def test_a_port_with_its_ipoib_interface(node: Node) -> None:
    node.file("sys/devices/pci0000:00/0000:00:01.0/net/ib0/type", "32\n")
    node.file("sys/class/net/ib0/statistics/tx_bytes", "70\n")
    node.file("sys/class/net/ib0/statistics/rx_bytes", "80\n")
    node.file(f"{PORT}/counters/{LINK_DOWNED}", "3\n")
    node.file(f"{PORT}/hw_counters/out_of_sequence", "9\n")
    found = CounterReader(node.root).reading(("eth0",), 5.0)
    (port,) = found.ports
    assert port.port == "mlx5_0:1"
    assert port.values == {SENT: 1000, RECEIVED: 2000, LINK_DOWNED: 3, "out_of_sequence": 9}
    assert (port.ipoib, port.why) == (("ib0",), "")
    # An interface without statistics is unknown, not silent.
    assert found.sockets == {"ib0": (70, 80)}


def test_roce_has_no_ipoib(node: Node) -> None:
    node.file(f"{PORT}/link_layer", "Ethernet\n")
    node.file("sys/devices/pci0000:00/0000:00:01.0/net/eth4/type", "1\n")
    (port,) = CounterReader(node.root).reading((), 0.0).ports
    assert port.ipoib == ()


def interface(node: Node, name: str, kind: int, port: int, count: int = 7) -> str:
    """Make a network interface of the card with two ports; `port` counts from 0."""
    folder = f"sys/devices/{CARD}/net/{name}"
    node.file(f"{folder}/type", f"{kind}\n")
    node.file(f"{folder}/dev_port", f"{port}\n")
    for way in ("tx_bytes", "rx_bytes"):
        node.file(f"sys/class/net/{name}/statistics/{way}", f"{count}\n")
    return folder


@pytest.fixture
def card(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.hca("mlx4_0", path=CARD)
    for port in (1, 2):
        made.port("mlx4_0", port, link="InfiniBand")
    return made


@pytest.mark.parametrize("number", [0, 1])
def test_an_ethernet_port_of_the_card_is_no_ipoib_interface(card: Node, number: int) -> None:
    card.file("sys/class/infiniband/mlx4_0/ports/2/link_layer", "Ethernet\n")
    interface(card, "ib0", 32, 0)
    interface(card, "eth5", 1, number)
    found = CounterReader(card.root).reading((), 0.0)
    assert [port.ipoib for port in found.ports] == [("ib0",), ()]
    # Its bytes are none of the gang's, who did not ask for it.
    assert found.sockets == {"ib0": (7, 7)}


def test_two_ports_have_their_own_ipoib_interfaces(card: Node) -> None:
    interface(card, "ib0", 32, 0)
    interface(card, "ib1", 32, 1)
    found = CounterReader(card.root).reading((), 0.0)
    assert [port.ipoib for port in found.ports] == [("ib0",), ("ib1",)]


def test_the_port_guid_identifies_the_owner_of_an_ipoib_interface(card: Node) -> None:
    for port, name in ((1, "ib7"), (2, "ib3")):
        card.port(
            "mlx4_0",
            port,
            link="InfiniBand",
            gids={0: (f"fe80:0000:0000:0000:0002:c903:00f9:bfa{port}", None, None)},
        )
        address = f"80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:f9:bf:a{port}"
        card.file(f"{interface(card, name, 32, 0)}/address", f"{address}\n")
    found = CounterReader(card.root).reading((), 0.0)
    assert [port.ipoib for port in found.ports] == [("ib7",), ("ib3",)]


def test_a_port_without_an_ipoib_interface_has_not_that_of_the_other(card: Node) -> None:
    interface(card, "ib0", 32, 0)
    found = CounterReader(card.root).reading((), 0.0)
    assert [port.ipoib for port in found.ports] == [("ib0",), ()]


@pytest.mark.parametrize("text", ["N/A (no PMA)\n", "", "x" * 70_000, "-1\n", "\xff"])
def test_a_value_that_is_no_number_is_no_counter(node: Node, text: str) -> None:
    node.file(f"{PORT}/counters/{SENT}", text)
    node.file(f"{PORT}/counters/{RECEIVED}", text)
    (port,) = CounterReader(node.root).reading((), 0.0).ports
    assert port.values == {}
    assert port.why


def test_a_kernel_that_refuses(node: Node) -> None:
    read = refusing(node.root, {f"{PORT}/counters/{SENT}"}, errno.EINVAL)
    (port,) = CounterReader(node.root, read).reading((), 0.0).ports
    assert port.values == {RECEIVED: 2000}
    assert port.why == ""


def test_counters_of_64_bits_before_linux_4_5(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.hca("mlx4_0")
    folder = node.port("mlx4_0")
    node.file(f"{folder}/counters_ext/port_xmit_data_64", "5\n")
    node.file(f"{folder}/counters_ext/port_rcv_data_64", "6\n")
    (port,) = CounterReader(tmp_path).reading((), 0.0).ports
    assert port.values == {SENT: 5, RECEIVED: 6}


def longer(node: Node, text: str) -> None:
    """Write the 64-bit counters."""
    node.file(f"{PORT}/counters_ext/port_xmit_data_64", text)
    node.file(f"{PORT}/counters_ext/port_rcv_data_64", text)


def shorter(node: Node, text: str) -> None:
    """Write the 32-bit counters."""
    for what in (SENT, RECEIVED):
        node.file(f"{PORT}/counters/{what}", text)


def test_counters_of_64_bits_are_preferred(node: Node) -> None:
    shorter(node, f"{FULL}\n")
    longer(node, "8589934592\n")
    (port,) = CounterReader(node.root).reading((), 0.0).ports
    assert port.values == {SENT: 1 << 33, RECEIVED: 1 << 33}


def test_counters_of_32_bits_are_the_fallback(node: Node) -> None:
    longer(node, "N/A (no PMA)\n")
    (port,) = CounterReader(node.root).reading((), 0.0).ports
    assert port.values == {SENT: 1000, RECEIVED: 2000}


@pytest.mark.parametrize("first", ["8589934592\n", "N/A (no PMA)\n"])
def test_a_counter_never_continues_from_another_file(node: Node, first: str) -> None:
    reader, totals = CounterReader(node.root), Totals()
    texts = [first, "8589934692\n", "N/A (no PMA)\n", "8589934892\n"]
    for at, text in enumerate(texts):
        longer(node, text)
        shorter(node, f"{1000 + 100 * at}\n")
        totals.add(reader.reading((), float(at)), 5.0)
    (port,) = totals.port_figures()
    assert (port.sent, port.received) == (1200, 1200)
    assert port.peak == 400.0


@pytest.mark.parametrize("first", ["8589934592\n", "N/A (no PMA)\n"])
def test_another_life_may_read_another_file(node: Node, first: str) -> None:
    totals = Totals()
    longer(node, first)
    totals.add(CounterReader(node.root).reading((), 0.0), 5.0)
    longer(node, "N/A (no PMA)\n" if first[0] == "8" else "8589934592\n")
    totals.add(CounterReader(node.root).reading((), 1.0), 5.0)
    (port,) = totals.port_figures()
    assert (port.sent, port.received, port.peak) == (0, 0, 0.0)


def test_bytes_of_the_driver_stand_in_for_no_counter_that_failed_once(node: Node) -> None:
    for name in ("tx_bytes", "rx_bytes"):
        node.file(f"{PORT}/hw_counters/{name}", "400000\n")
    reader = CounterReader(node.root)
    reader.reading((), 0.0)
    shorter(node, "N/A (no PMA)\n")
    (port,) = reader.reading((), 1.0).ports
    assert port.values == {}


def test_a_counter_at_the_end_of_its_32_bits_is_unknown(node: Node) -> None:
    shorter(node, f"{FULL}\n")
    (port,) = CounterReader(node.root).reading((), 0.0).ports
    assert (port.values, port.why) == ({}, "it has reached its maximum of 32 bits")


def test_efa_counts_bytes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.hca("efa_0")
    folder = node.port("efa_0")
    node.file(f"{folder}/hw_counters/tx_bytes", "4000\n")
    node.file(f"{folder}/hw_counters/rx_bytes", "8000\n")
    (port,) = CounterReader(tmp_path).reading((), 0.0).ports
    assert port.values == {SENT: 1000, RECEIVED: 2000}


def test_no_devices(tmp_path: Path) -> None:
    assert CounterReader(tmp_path).reading(("eth0",), 0.0).ports == ()
    assert interfaces(tmp_path) == ()


@pytest.mark.parametrize("case", ["procfs-infiniband", "node-exporter-infiniband"])
def test_real_nodes(tmp_path: Path, case: str) -> None:
    root = unpack(case, tmp_path)
    found = CounterReader(root, refusing(root, refused_of(case))).reading((), 0.0)
    assert found.ports
    counted = [port for port in found.ports if port.values]
    assert any(SENT in port.values for port in counted)
    if case == "node-exporter-infiniband":
        silent = next(port for port in found.ports if port.port.startswith("i40iw"))
        assert silent.why == "no counter"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=64))
def test_any_bytes_in_any_counter(node: Node, raw: bytes) -> None:
    for name in (SENT, LINK_DOWNED):
        node.file(f"{PORT}/counters/{name}", raw)
    node.file(f"{PORT}/link_layer", raw)
    node.file("sys/class/net/eth0/statistics/tx_bytes", raw)
    node.file("sys/class/net/eth0/statistics/rx_bytes", raw)
    CounterReader(node.root).reading(("eth0",), 0.0)
