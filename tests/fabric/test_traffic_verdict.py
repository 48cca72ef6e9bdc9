"""The verdict on a gang."""

from __future__ import annotations

import pytest

from muster.fabric.nccl_log import NcclLog
from muster.fabric.traffic_verdict import judge
from muster.protocol.observations.traffic import (
    Carrier,
    FabricReport,
    NcclEvidence,
    PortFigures,
    SocketFigures,
)
from tests.fabric import nccl_lines as lines

GB = 10**9


def said(text: str) -> NcclEvidence:
    log = NcclLog()
    log.feed(text.encode())
    return log.evidence()


def ports(each: int = 100 * GB, count: int = 8, got: int | None = None) -> tuple[PortFigures, ...]:
    received = each if got is None else got
    return tuple(
        PortFigures(f"mlx5_{n}:1", planned=True, sent=each, received=received) for n in range(count)
    )


def report(
    text: str = "",
    carried: tuple[PortFigures, ...] | None = None,
    tcp: int = GB,
    peak: float = 41e9,
    seconds: float = 120.0,
    **more: object,
) -> FabricReport:
    return FabricReport(
        seconds=seconds,
        samples=60,
        ports=ports() if carried is None else carried,
        sockets=(SocketFigures("eth0", tcp, tcp),),
        peak=peak,
        nccl=said(text) if text else NcclEvidence(),
        **more,  # type: ignore[arg-type]
    )


def gang(*reports: FabricReport | None) -> list[tuple[str, FabricReport | None]]:
    return [(f"gpu-{n:02d}", one) for n, one in enumerate(reports)]


def test_lines_and_counters_prove_it_in_one_line() -> None:
    found = judge(gang(*[report(lines.IB_2_18)] * 2))
    assert found.carrier is Carrier.PROVED
    assert found.text == "RDMA proved: 8/8 HCAs, 41 GB/s peak, TCP 0.1 %"


def test_an_external_plugin_is_rdma_too() -> None:
    assert judge(gang(*[report(lines.IB_EXT)] * 2)).carrier is Carrier.PROVED


def test_hcas_that_stand_still_are_counted() -> None:
    lame = (*ports()[:7], PortFigures("mlx5_7:1", planned=True, sent=0, received=0))
    text = judge(gang(report(lines.IB_2_18), report(lines.IB_2_18, lame))).text
    assert text.startswith("RDMA proved: 15/16 HCAs of 2 nodes, ")


@pytest.mark.parametrize("lines_of_tcp", [lines.SOCKET_2_18, lines.SOCKET_2_24, lines.SOCKET_2_27])
def test_sockets_on_one_node_are_tcp_and_the_node_is_named(lines_of_tcp: str) -> None:
    found = judge(gang(report(lines.IB_2_18), report(lines_of_tcp)))
    assert found.carrier is Carrier.TCP
    assert found.firm
    assert found.node == "gpu-01"
    assert found.text.startswith("TCP: NCCL used NET/Socket on gpu-01 (NET")


def test_sockets_on_all_nodes_are_nobodys_fault() -> None:
    found = judge(gang(*[report(lines.SOCKET_2_24)] * 2))
    assert found.node is None
    assert found.text == (
        "TCP: NCCL used NET/Socket on all 2 nodes "
        "(NET/IB found no device that fits NCCL_IB_HCA==mlx5_9:1)"
    )


def test_a_single_node_on_sockets_is_enough_before_others_report() -> None:
    found = judge(gang(report(lines.SOCKET_2_18), None, report()))
    assert found.carrier is Carrier.TCP
    assert found.node is None


def test_lines_without_traffic_are_not_believed() -> None:
    found = judge(gang(report(lines.IB_2_18), report(lines.IB_2_18, ports(0))))
    assert found.carrier is Carrier.UNKNOWN
    assert "no HCA of gpu-01 has carried traffic yet" in found.text


def test_rdma_that_fails_is_reported_with_nccl_s_words() -> None:
    found = judge(gang(report(lines.FAILING, ports(0)), report(lines.IB_2_18, ports(0))))
    assert found.carrier is Carrier.UNKNOWN
    assert "gpu-00 warns: NET/IB : Got completion" in found.text


def test_without_counters_channels_prove_it() -> None:
    blind = tuple(PortFigures(f"efa_{n}:1", planned=True, why="no such file") for n in range(4))
    found = judge(gang(*[report(lines.EFA, blind)] * 2))
    assert found.carrier is Carrier.PROVED
    assert found.text.endswith("channels go over AWS Libfabric; the HCAs have no counters")
    chosen = lines.info("Using network IB")
    assert judge(gang(*[report(chosen, blind)] * 2)).carrier is Carrier.UNKNOWN


def test_a_gang_of_one_has_no_traffic() -> None:
    found = judge(gang(report(lines.SOCKET_2_18)))
    assert found.carrier is Carrier.UNKNOWN
    assert found.text == "unknown, because a gang of one node has no traffic between nodes"


def test_nothing_said_is_unknown() -> None:
    assert judge(gang(None, None)).carrier is Carrier.UNKNOWN
    found = judge(gang(report(lines.IB_2_18), report()))
    assert found.text == "unknown, because NCCL has logged no network on gpu-01"


def test_nvlink_between_nodes_is_neither() -> None:
    found = judge(gang(*[report(lines.NVLINK, ports(0))] * 2))
    assert found.carrier is Carrier.UNKNOWN
    assert "NVLink" in found.text


class TestCountersAlone:
    """Jobs in which NCCL logs nothing: gloo, other libraries, its lines sent elsewhere."""

    def test_rdma_that_all_sent_and_all_received(self) -> None:
        found = judge(gang(report(), report()))
        assert found.carrier is Carrier.PROVED
        assert found.text.startswith("RDMA proved by counters alone: 8/8 HCAs, 41 GB/s peak")

    def test_reading_a_data_set_is_no_traffic_of_the_gang(self) -> None:
        reads = report(carried=ports(GB, got=100 * GB))
        assert judge(gang(reads, reads)).carrier is Carrier.UNKNOWN

    def test_tcp_that_all_sent_and_all_received(self) -> None:
        found = judge(gang(*[report(carried=ports(0), tcp=12 * GB)] * 2))
        assert found.carrier is Carrier.TCP
        assert found.text.startswith("TCP: the nodes sent each other 24 GB over eth0, and no HCA")

    def test_a_download_by_tcp_is_no_verdict(self) -> None:
        loading = FabricReport(
            seconds=120.0, ports=ports(0), sockets=(SocketFigures("eth0", GB, 90 * GB),)
        )
        assert judge(gang(loading, loading)).carrier is Carrier.UNKNOWN

    @pytest.mark.parametrize(
        ("early", "why"),
        [
            (report(seconds=20.0), "judged after 60 s"),
            (report(shared=True), "other jobs share the nodes"),
            (report(unheard="the job sets NCCL_DEBUG itself"), "the job sets NCCL_DEBUG itself"),
        ],
    )
    def test_the_reason_why_counters_do_not_count_is_reported(
        self, early: FabricReport, why: str
    ) -> None:
        still = report(seconds=early.seconds, carried=ports(0), tcp=0, shared=early.shared)
        assert why in judge(gang(early, still)).text
        assert judge(gang(early, still)).carrier is Carrier.UNKNOWN

    def test_hcas_without_counters_leave_it_open(self) -> None:
        blind = (PortFigures("mlx5_0:1", planned=True, why="no such file"),)
        found = judge(gang(*[report(carried=blind, tcp=12 * GB)] * 2))
        assert found.carrier is Carrier.UNKNOWN
        assert "not all HCAs have counters" in found.text
