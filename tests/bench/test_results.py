"""Output of the benchmark's program, and the meaning of its numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.bench.results import (
    PassLine,
    Row,
    RunInfo,
    factors,
    pass_line,
    rates_of,
    read_line,
)
from muster.http.fabric import NodeFabricView, PlannedPort, PlanView

NCCL = RunInfo(ranks=16, nodes=2, backend="nccl", device="H100", torch="2.9", nccl="2.27.5")
GLOO = RunInfo(ranks=2, nodes=2, backend="gloo", device="CPU", torch="2.9", why="no GPU")


def row(size: int, busbw: float, wrong: int = 0) -> Row:
    return Row(size, size // 4, 20, 1.0, 1.0, 1.0, busbw, busbw, wrong)


def test_a_row_is_read() -> None:
    line = (
        "     1048576       262144  float    sum     20      4780.1      3070.2  1080.3 0.2 0.4  7"
    )
    assert read_line(line) == Row(1048576, 262144, 20, 4780.1, 3070.2, 1080.3, 0.2, 0.4, 7)


def test_the_description_is_read() -> None:
    line = '# {"ranks": 2, "nodes": 2, "backend": "gloo", "device": "CPU", "torch": "2.9", "x": 1}'
    assert read_line(line) == RunInfo(2, 2, "gloo", "CPU", "2.9")


@given(st.text(max_size=60).flatmap(lambda t: st.sampled_from([t, f"# {{{t}", f"{t} " * 11])))
def test_any_line_is_read_or_passed_over(line: str) -> None:
    read_line(line)


EIGHT_400G = {"a": 3200.0, "b": 3200.0}


def planned(transport: str, *rates: tuple[float | None, ...]) -> PlanView:
    """A plan for as many nodes as there are lists of rates."""
    nodes = []
    for rank, mine in enumerate(rates):
        ports = tuple(
            PlannedPort(rail, f"mlx5_{rail}:1", None, None, rate, None, (), None, ())
            for rail, rate in enumerate(mine)
        )
        nodes.append(
            NodeFabricView(f"n{rank}", rank, ports, (), None, "10.0.0.1", None, None, {}, None, ())
        )
    return PlanView(transport, "", (), tuple(nodes), (), None)


@pytest.mark.parametrize(
    ("plan", "rates"),
    [
        (None, {}),
        (planned("rdma", (400.0,) * 8, (400.0,) * 8), {"n0": 3200.0, "n1": 3200.0}),
        (planned("rdma", (400.0, 200.0), (100.0,)), {"n0": 600.0, "n1": 100.0}),
        (planned("rdma", (400.0, None), (400.0, 400.0)), {}),
        (planned("tcp", (400.0,), (400.0,)), {}),
        (planned("open", (), ()), {}),
    ],
)
def test_rates_are_those_of_the_ports_of_the_plan(
    plan: PlanView | None, rates: dict[str, float]
) -> None:
    assert rates_of(plan) == rates


def test_the_line_is_eight_tenths_of_what_the_hcas_of_a_node_carry() -> None:
    line = pass_line(NCCL, [row(1 << 20, 1.0), row(1 << 30, 330.0)], EIGHT_400G)
    assert (line.gb_s, line.passed) == (320.0, True)
    assert "80% of the 3200 Gbit/s" in line.text


def test_the_node_with_the_least_decides() -> None:
    line = pass_line(NCCL, [row(1 << 30, 200.0)], {"a": 3200.0, "b": 1600.0})
    assert (line.gb_s, line.passed) == (160.0, True)


def test_below_the_line() -> None:
    assert pass_line(NCCL, [row(1 << 30, 27.5)], EIGHT_400G).passed is False


def test_tcp_never_passes() -> None:
    line = pass_line(NCCL, [row(1 << 30, 330.0)], EIGHT_400G, tcp=True)
    assert line.passed is False
    assert "over TCP" in line.text


@pytest.mark.parametrize(
    ("about", "rows", "rates", "said"),
    [
        (GLOO, [row(4, 1.0)], EIGHT_400G, "gloo over TCP (no GPU), no HCA is used"),
        (NCCL, [row(4, 1.0)], {}, "no HCAs whose rates are known"),
        (NCCL, [row(4, 1.0)], {"a": 3200.0, "b": 0.0}, "no HCAs whose rates are known"),
        (RunInfo(8, 1, "nccl", "H100", "2.9"), [row(4, 1.0)], EIGHT_400G, "one node"),
        (NCCL, [], EIGHT_400G, "nothing was measured"),
        (None, [], {}, "nothing was measured"),
    ],
)
def test_no_line_is_claimed_where_nothing_can_be_asked(
    about: RunInfo | None, rows: list[Row], rates: dict[str, float], said: str
) -> None:
    line = pass_line(about, rows, rates)
    assert line == PassLine(None, None, line.text)
    assert said in line.text


def test_factors_are_of_sizes_that_both_have() -> None:
    assert factors([row(4, 12.0), row(8, 9.0), row(16, 1.0)], [row(4, 3.0), row(8, 0.0)]) == {
        4: 4.0
    }
