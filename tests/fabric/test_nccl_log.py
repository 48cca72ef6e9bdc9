"""NCCL's log lines, by version; arbitrary bytes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.fabric.nccl_log import LINE_BYTES_MAX, NcclLog, ProcessEvidence, merged
from muster.protocol.observations.traffic import NcclEvidence
from tests.fabric import nccl_lines as lines


def read(text: str) -> ProcessEvidence:
    log = NcclLog()
    log.feed(text.encode())
    return log.evidence()


@pytest.mark.parametrize(
    ("text", "network", "rdma", "gdr"),
    [
        (lines.IB_2_18, "IB", 4, 4),
        (lines.IB_2_21, "IB", 1, 1),
        (lines.IB_2_27, "IB", 4, 0),
        (lines.IB_EXT, "IBext_v8", 4, 0),
        (lines.EFA, "AWS Libfabric", 4, 4),
        (lines.OLD_2_4, "", 1, 1),
    ],
)
def test_rdma(text: str, network: str, rdma: int, gdr: int) -> None:
    found = read(text)
    assert (found.network, found.over_rdma, found.gdr) == (network, rdma, gdr)
    assert (found.decided, found.sockets, found.over_tcp, found.reason) == (1, 0, 0, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (lines.SOCKET_2_18, "NET/IB found no device"),
        (lines.SOCKET_2_24, "NET/IB found no device that fits NCCL_IB_HCA==mlx5_9:1"),
        (lines.SOCKET_2_27, "NET plugin IB failed to start"),
        (lines.NO_LIBRARY, "libibverbs.so cannot be loaded"),
        (lines.FORBIDDEN, "mlx5_0 cannot be opened"),
        (lines.SWITCHED_OFF, "NCCL_IB_DISABLE=1"),
    ],
)
def test_sockets_and_why(text: str, reason: str) -> None:
    found = read(text)
    assert found.sockets == found.decided == 1
    assert found.reason.startswith(reason)


def test_the_devices_of_nccl_s_own_list() -> None:
    assert read(lines.IB_2_18).devices == ("mlx5_0:1", "mlx5_3:1")
    assert read(lines.IB_2_21).devices == ("mlx5_0:1", "mlx5_1:1")
    assert read(lines.SOCKET_2_24).devices == ()


def test_no_line_about_a_network_decides_nothing() -> None:
    assert read(lines.INSIDE).decided == 0
    assert read("").decided == 0


def test_the_last_communicator_counts() -> None:
    assert read(lines.info("Using network Socket") + lines.info("Using network IB")).sockets == 0
    assert read(lines.info("Using network IB") + lines.info("Using network Socket")).sockets == 1


def test_a_single_channel_over_sockets_is_enough() -> None:
    assert read(lines.IB_2_18 + lines.channels("Socket", 1, gdr=False)).sockets == 1


def test_rdma_that_does_not_work_is_reported() -> None:
    (line,) = read(lines.FAILING).trouble
    assert "status=12" in line


def test_a_harmless_warning_is_passed_over() -> None:
    assert read(lines.IB_2_27).trouble == ()


def test_nvlink_between_nodes() -> None:
    assert read(lines.NVLINK).over_nvlink == 1


def test_processes_of_a_node_together() -> None:
    found = merged([read(lines.IB_2_18), read(lines.SOCKET_2_18), read("")])
    assert (found.processes, found.decided, found.sockets) == (3, 2, 1)
    assert (found.network, found.reason) == ("Socket", "NET/IB found no device")
    assert found.version == "2.18.6"
    assert merged([]) == NcclEvidence()


@given(st.data())
def test_in_pieces_it_says_the_same(data: st.DataObject) -> None:
    raw = (lines.SOCKET_2_24 + lines.FAILING + lines.IB_2_21).encode()
    log = NcclLog()
    while raw:
        size = data.draw(st.integers(1, 200))
        log.feed(raw[:size])
        raw = raw[size:]
    assert log.evidence() == read(lines.SOCKET_2_24 + lines.FAILING + lines.IB_2_21)


@given(st.lists(st.binary(max_size=6000), max_size=6))
def test_any_bytes_are_taken(pieces: list[bytes]) -> None:
    log = NcclLog()
    for piece in pieces:
        log.feed(piece)
    found = log.evidence()
    assert found.network.isprintable()
    assert all(line.isprintable() for line in (*found.trouble, found.reason))


@given(st.binary(max_size=400))
def test_any_bytes_in_the_place_of_a_name(rest: bytes) -> None:
    for start in (b"NCCL INFO Using network ", b"NET/IB : Using [0]", b" NCCL WARN ibv_x failed"):
        log = NcclLog()
        log.feed(b"h:1:2 [0] " + start + rest + b"\n")
        log.evidence()


def test_it_goes_on_from_what_was_read_before() -> None:
    log = NcclLog(read(lines.SOCKET_2_24))
    log.feed(lines.channels("Socket", 2, gdr=False).encode())
    found = log.evidence()
    assert (found.over_tcp, found.sockets) == (2, 1)
    assert "mlx5_9" in found.reason


def test_a_line_without_end_costs_no_memory() -> None:
    log = NcclLog()
    log.feed(lines.info("Using network IB").encode())
    for _ in range(100):
        log.feed(b"NET " * 10_000)
    assert log.unfinished <= LINE_BYTES_MAX
    log.feed(b"\n" + lines.info("Using network Socket").encode())
    assert log.evidence().network == "Socket"


def test_many_lines_cost_no_memory() -> None:
    log = NcclLog()
    text = (lines.FAILING + lines.IB_2_21).encode()
    for n in range(50):
        log.feed(text.replace(b"mlx5_", b"mlx%d_" % n))
    size = sys.getsizeof(log.evidence().devices) + sum(map(len, log.evidence().trouble))
    for n in range(500):
        log.feed(text.replace(b"mlx5_", b"mlx%d_" % (n + 100)))
    assert sys.getsizeof(log.evidence().devices) + sum(map(len, log.evidence().trouble)) == size
