"""The GID that NCCL takes: the rule against a second implementation, and the settings by
version."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.fabric.gids import (
    Family,
    address_of,
    fit_index,
    flid_index,
    is_empty,
    is_routable,
    is_sparse,
    nccl_index,
    number_of,
)
from muster.fabric.hca_selection import choose
from muster.fabric.model import Gid, Hca
from muster.fabric.nccl_env import environment
from muster.fabric.nccl_version import version_of

V1, V2 = "IB/RoCE v1", "RoCE v2"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:5054:00ff:fe12:3456"
PREFIX = "fe80:0000:0000:0000:0000:0000:0000:0000"
FOURTH = "0000:0000:0000:0000:0000:ffff:0a98:000c"
OTHER = "0000:0000:0000:0000:0000:ffff:c0a8:0105"
SIXTH = "fd93:16d3:59b6:010d:0690:81ff:fe39:0001"

Row = tuple[str, str | None]
HOST: tuple[Row, ...] = ((LOCAL, V1), (LOCAL, V2), (FOURTH, V1), (FOURTH, V2))
DUAL: tuple[Row, ...] = (*HOST, (SIXTH, V1), (SIXTH, V2))
POD: tuple[Row, ...] = ((ZERO, None),) * 4 + HOST
SIXTH_ONLY: tuple[Row, ...] = ((LOCAL, V2), (SIXTH, V2))
LOCAL_ONLY: tuple[Row, ...] = ((LOCAL, V1), (LOCAL, V2))


def table(rows: tuple[Row, ...]) -> tuple[Gid, ...]:
    """A table of a probe: without the empty entries."""
    return tuple(
        Gid(index, gid, kind)
        for index, (gid, kind) in enumerate(rows)
        if not is_empty(number_of(gid) or 0)
    )


def written_out(rows: list[Row], family: Family) -> int:
    """The rule once more, step by step as in the reference."""

    def sort(gid: str) -> str:
        return "AF_INET" if gid.startswith("0000:0000:0000:0000:0000:ffff") else "AF_INET6"

    def valid(gid: str) -> bool:
        return gid not in (ZERO, PREFIX) and not gid.startswith("fe80:0000:0000:0000")

    cur = 0
    for c in range(1, len(rows)):
        (now, now_kind), (gid, kind) = rows[cur], rows[c]
        if sort(gid) != sort(now) and sort(gid) == family:
            cur = c
        elif sort(gid) == family and valid(gid):
            differ = kind != now_kind
            if (differ or not valid(now)) and kind == V2:
                cur = c
    return cur


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ZERO, LOCAL, PREFIX, FOURTH, OTHER, SIXTH]), st.sampled_from([V1, V2])
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["AF_INET", "AF_INET6"]),
)
def test_the_rule_beside_itself(rows: list[Row], family: Family) -> None:
    kinds = [(gid, None if gid == ZERO else kind) for gid, kind in rows]
    assert nccl_index(table(tuple(kinds)), len(kinds), family) == written_out(kinds, family)


@pytest.mark.parametrize(
    ("rows", "family", "index"),
    [
        (HOST, "AF_INET", 3),
        (HOST, "AF_INET6", None),
        (DUAL, "AF_INET", 3),
        (DUAL, "AF_INET6", 5),
        (POD, "AF_INET", 7),
        (SIXTH_ONLY, "AF_INET", None),
        (SIXTH_ONLY, "AF_INET6", 1),
        (LOCAL_ONLY, "AF_INET", None),
        # The first IPv4 address with v2 wins, a later one never.
        ((*HOST, (OTHER, V1), (OTHER, V2)), "AF_INET", 3),
        # v1 alone is taken, too.
        (((LOCAL, V1), (FOURTH, V1)), "AF_INET", 1),
        # An address at 0 stays.
        (((FOURTH, V2), (LOCAL, V2)), "AF_INET", 0),
        (((FOURTH, V1), (FOURTH, V2)), "AF_INET", 1),
        # A kernel before 4.5 reports no types.
        (((LOCAL, None), (FOURTH, None)), "AF_INET", 1),
        (((ZERO, None),) * 4, "AF_INET", None),
    ],
)
def test_the_index_that_leads_somewhere(
    rows: tuple[Row, ...], family: Family, index: int | None
) -> None:
    assert fit_index(table(rows), len(rows), family) == index


OWN = "0000:0000:0000:0000:0000:ffff:a9fe:0709"
OWN_ONLY: tuple[Row, ...] = ((LOCAL, V1), (LOCAL, V2), (OWN, V1), (OWN, V2))
OWN_FIRST: tuple[Row, ...] = (*OWN_ONLY, (FOURTH, V1), (FOURTH, V2))


def test_an_address_that_an_interface_gave_itself_leads_nowhere() -> None:
    assert not is_routable(number_of(OWN) or 0)
    for rows, index in ((OWN_ONLY, None), (OWN_FIRST, 5), ((*HOST, (OWN, V2)), 3)):
        assert nccl_index(table(rows), len(rows)) == 3
        assert fit_index(table(rows), len(rows), "AF_INET") == index


@pytest.mark.parametrize("version", [None, "2.20.5", "2.21.5", "2.27.3"])
def test_nccl_gets_the_index_if_another_entry_comes_first(version: str | None) -> None:
    number = version_of(version) if version else None
    alike = choose([roce("mlx5_0", OWN_FIRST), roce("mlx5_1", OWN_FIRST)], [])
    made = environment(alike, (), number)
    assert made.values["NCCL_IB_GID_INDEX"] == "5"
    assert "NCCL_IB_ADDR_RANGE" not in made.values
    apart = environment(choose([roce("mlx5_0", OWN_FIRST), roce("mlx5_1", HOST)], []), (), number)
    assert "mlx5_0:1 needs 5, mlx5_1:1 needs 3" in (apart.apart or "")
    assert not any("GID_INDEX" in name or "ADDR" in name for name in apart.values)


def test_an_address_range_may_shut_all_out() -> None:
    rows = (*HOST, (OTHER, V1), (OTHER, V2))
    other, none = (ipaddress.ip_network(text) for text in ("192.168.0.0/16", "172.16.0.0/12"))
    assert nccl_index(table(rows), len(rows), within=other) == 5
    assert nccl_index(table(rows), len(rows), within=none) == 0
    assert fit_index(table(rows), len(rows), "AF_INET", (other,)) == 5
    assert fit_index(table(rows), len(rows), "AF_INET", (none,)) is None


@pytest.mark.parametrize(
    ("rows", "version", "set_to"),
    [
        (HOST, "2.18.3", {"NCCL_IB_GID_INDEX": "3"}),
        (HOST, "2.20.5", {"NCCL_IB_GID_INDEX": "3"}),
        (HOST, "2.21.5", {}),
        (HOST, "2.25.1", {}),
        (HOST, "2.26.2", {}),
        (HOST, "2.30.7", {}),
        (HOST, None, {}),
        (POD, "2.20.5", {"NCCL_IB_GID_INDEX": "7"}),
        (POD, "2.21.5", {"NCCL_IB_GID_INDEX": "7"}),
        (POD, "2.25.1", {"NCCL_IB_GID_INDEX": "7"}),
        (POD, "2.26.2", {}),
        (POD, None, {}),
        (SIXTH_ONLY, "2.20.5", {"NCCL_IB_GID_INDEX": "1"}),
        (SIXTH_ONLY, "2.21.5", {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}),
        (SIXTH_ONLY, "2.27.3", {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}),
        (SIXTH_ONLY, None, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}),
    ],
)
def test_variables_by_nccl_version(
    rows: tuple[Row, ...], version: str | None, set_to: dict[str, str]
) -> None:
    hca = roce("mlx5_0", rows)
    made = environment(choose([hca], []), (), version_of(version) if version else None)
    assert made.values.pop("NCCL_IB_HCA") == "=mlx5_0:1"
    assert made.values.pop("UCX_NET_DEVICES") == "mlx5_0:1"
    assert made.values == set_to
    assert made.apart is None


@pytest.mark.parametrize(
    ("rows", "ucx", "index"),
    [
        # Entry 0 by itself, then the right one, but not of IPv6.
        (HOST, "1.4.0", "3"),
        (POD, "1.4.0", "7"),
        (HOST, "1.5.0", None),
        (POD, "1.18.1", None),
        (SIXTH_ONLY, "1.4.0", "1"),
        (SIXTH_ONLY, "1.18.1", "1"),
        (SIXTH_ONLY, "1.20.0", None),
        (DUAL, "1.18.1", None),
        (HOST, None, None),
    ],
)
def test_variables_by_ucx_version(
    rows: tuple[Row, ...], ucx: str | None, index: str | None
) -> None:
    choice = choose([roce("mlx5_0", rows), roce("mlx5_1", rows)], [])
    made = environment(choice, (), (2, 27), version_of(ucx) if ucx else None)
    assert made.values.get("UCX_IB_GID_INDEX") == index


def test_a_single_entry_for_ucx_or_none() -> None:
    shifted = ((LOCAL, V1), (LOCAL, V2), (SIXTH, V1), (SIXTH, V2), (OTHER, V1), (OTHER, V2))
    apart = choose([roce("mlx5_0", HOST), roce("mlx5_1", shifted)], [])
    assert "UCX_IB_GID_INDEX" not in environment(apart, (), (2, 27), (1, 4)).values
    hca = Hca(name="mlx5_0", port=1, link_layer="InfiniBand", state="ACTIVE")
    made = environment(choose([hca], []), (), (2, 27), (1, 4))
    assert "UCX_IB_GID_INDEX" not in made.values


def test_infiniband_needs_no_index() -> None:
    hca = Hca(name="mlx5_0", port=1, link_layer="InfiniBand", state="ACTIVE")
    for version in ("2.18.3", "2.21.5", "2.27.3"):
        made = environment(choose([hca], []), (), version_of(version))
        assert "NCCL_IB_GID_INDEX" not in made.values


def test_a_single_index_for_different_hcas() -> None:
    shifted = ((LOCAL, V1), (LOCAL, V2), (SIXTH, V1), (SIXTH, V2), (OTHER, V1), (OTHER, V2))
    made = environment(
        choose([roce("mlx5_0", HOST), roce("mlx5_1", shifted)], []), (), version_of("2.20.5")
    )
    assert "NCCL_IB_GID_INDEX" not in made.values
    assert made.apart is not None
    assert "mlx5_0:1 needs 3, mlx5_1:1 needs 5" in made.apart
    # An index that both ports have is used, even if neither port alone would get it.
    both = (*HOST, (OTHER, V1), (OTHER, V2))
    made = environment(
        choose([roce("mlx5_0", both), roce("mlx5_1", shifted)], []), (), version_of("2.20.5")
    )
    assert made.values["NCCL_IB_GID_INDEX"] == "5"


def test_an_old_nccl_and_a_table_that_is_not_known() -> None:
    hca = Hca(name="mlx5_0", port=1, link_layer="Ethernet", state="ACTIVE")
    made = environment(choose([hca], []), (), version_of("2.20.5"))
    assert "NCCL_IB_GID_INDEX" not in made.values
    assert "mlx5_0:1 is unknown" in (made.apart or "")
    for version in ("2.21.5", "2.27.3"):
        assert environment(choose([hca], []), (), version_of(version)).apart is None


def test_kinds_of_gids() -> None:
    assert str(address_of(number_of(FOURTH) or 0)) == "10.152.0.12"
    assert str(address_of(number_of(SIXTH) or 0)) == "fd93:16d3:59b6:10d:690:81ff:fe39:1"
    assert address_of(0) is None
    assert is_empty(number_of(PREFIX) or 0)
    assert not is_routable(number_of(LOCAL) or 0)
    assert is_sparse(table(POD))
    assert not is_sparse(table(HOST))
    assert not is_sparse(())


def test_a_routable_gid_of_infiniband() -> None:
    assert flid_index(()) == 0
    assert flid_index((Gid(0, LOCAL), Gid(1, LOCAL))) == 0
    assert flid_index((Gid(0, LOCAL), Gid(1, "fe80:0000:0007:0000:0002:c903:00f9:bfa1"))) == 1


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.27.3", (2, 27)),
        ("v2.20.5-1", (2, 20)),
        ("2.26.2+cuda12.8", (2, 26)),
        ("2.21", (2, 21)),
        ("22703", (2, 27)),
        ("torch", None),
        ("", None),
        ("2", None),
    ],
)
def test_versions(text: str, version: tuple[int, int] | None) -> None:
    assert version_of(text) == version


def roce(name: str, rows: tuple[Row, ...]) -> Hca:
    return Hca(
        name=name,
        port=1,
        link_layer="Ethernet",
        state="ACTIVE",
        gids=table(rows),
        gid_slots=len(rows),
    )
