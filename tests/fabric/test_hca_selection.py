"""Selection of HCAs: the rule step by step, and the operator's choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster.fabric.hca_selection import Choice, choose
from muster.fabric.model import Affinity, AffinityClass, Gid, Hca
from muster.fabric.nccl_env import environment
from muster.fabric.operator_rules import Rules
from muster.fabric.port_classes import speed_of

LEFT_ALONE = {
    "NCCL_IB_CUDA_SUPPORT",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_NET_GDR_LEVEL",
    "PYTORCH_TCP_SOCKET_IFNAME",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_IGNORE_CPU_AFFINITY",
}


def ib(name: str, /, **fields: object) -> Hca:
    first: dict[str, object] = {
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "hca_type": "MT4129",
        "rate_gbps": 400.0,
    }
    return replace(Hca(name=name, port=1), **{**first, **fields})


def eth(name: str, address: str | None = "10.0.0.1", /, **fields: object) -> Hca:
    gids: tuple[Gid, ...] = ()
    if address:
        one, two, three, four = (int(part) for part in address.split("."))
        gid = f"0000:0000:0000:0000:0000:ffff:{one:02x}{two:02x}:{three:02x}{four:02x}"
        gids = (Gid(1, gid, "RoCE v2", "eth0"),)
    own = {"gids": gids, "gid_slots": 4, "addresses": (address,) if address else ()}
    return ib(name, link_layer="Ethernet", **{**own, **fields})


def used(choice: Choice) -> list[str]:
    return [hca.name for hca in choice.used]


def reason(choice: Choice, name: str) -> str:
    return next(hca.reason for hca in choice.hcas if hca.name == name)


def test_the_class_with_the_most_bandwidth() -> None:
    fast = [ib(f"mlx5_{n}") for n in range(2)]
    many = [eth(f"mlx5_{n}", hca_type="MT4125", rate_gbps=100.0) for n in range(2, 6)]
    choice = choose([*fast, *many], [])
    assert used(choice) == ["mlx5_0", "mlx5_1"]
    assert choice.fabric.name == "InfiniBand MT4129"
    assert choice.fabric.alternatives == ("Ethernet MT4125: 4 ports of 100 Gb/s",)
    assert not choice.close


def test_infiniband_wins_a_tie_and_the_tie_is_reported() -> None:
    choice = choose([eth("mlx5_0"), ib("mlx5_1")], [])
    assert used(choice) == ["mlx5_1"]
    assert choice.close


def test_the_class_with_most_ports_if_speeds_are_unknown() -> None:
    choice = choose([eth("a", hca_type="X", rate_gbps=None), eth("b"), eth("c")], [])
    assert used(choice) == ["b", "c"]


def test_a_port_that_is_down_counts_with_its_class_and_not_with_its_rate() -> None:
    down = [ib(f"mlx5_{n}", state="DOWN", phys_state="Polling", rate_gbps=40.0) for n in (1, 2)]
    choice = choose([ib("mlx5_0"), *down], [])
    assert used(choice) == ["mlx5_0"]
    assert (choice.fabric.used, choice.fabric.expected) == (1, 3)
    assert reason(choice, "mlx5_1") == "port DOWN, Polling"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"name": "rxe0"}, "software"),
        ({"name": "siw_eth0"}, "software"),
        ({"name": "mydev", "virtual": True}, "software"),
        ({"name": "irdma0"}, "iWARP"),
        ({"driver": "ice"}, "iWARP"),
        ({"driver": "i40e"}, "iWARP"),
        ({"hca_type": "I40IW"}, "iWARP"),
        ({"pci_id": "8086:1593", "pci_class": 0x020000}, "iWARP"),
        ({"name": "hfi1_0"}, "Omni-Path"),
        ({"driver": "hfi1"}, "Omni-Path"),
        ({"pci_id": "8086:24f0", "pci_class": 0x020800}, "Omni-Path"),
        ({"driver": "efa"}, "aws-ofi-nccl"),
        ({"pci_id": "1d0f:efa1"}, "aws-ofi-nccl"),
        ({"name": "rdmap16s27", "node_type": 7}, "aws-ofi-nccl"),
        ({"name": "usnic_0"}, "usNIC"),
        ({"driver": "enic"}, "usNIC"),
        ({"name": "smi1"}, "smi"),
        ({"node_type": 4}, "iWARP"),
        ({"node_type": 7}, "unspecified"),
        ({"link_layer": "Unknown"}, "link layer Unknown"),
        ({"name": "a,b"}, "NCCL_IB_HCA"),
        ({"state": "INIT", "phys_state": "LinkUp"}, "INIT"),
        ({"uverbs_error": "permission denied"}, "cannot be opened"),
    ],
)
def test_ports_dropped_on_evidence(fields: dict[str, object], word: str) -> None:
    choice = choose([ib("mlx5_9"), ib("mlx5_0", **fields)], [])
    assert used(choice) == ["mlx5_9"]
    assert word in choice.hcas[1].reason


@pytest.mark.parametrize(
    "fields",
    [
        {"link_layer": None},
        {"state": None},
        {"node_type": None},
        {"hca_type": None},
        {"rate_gbps": None},
        {"uverbs": None},
        {"link_layer": "Ethernet", "gid_slots": None},
        # Some entries were not read: one of them may do.
        {"link_layer": "Ethernet", "gid_slots": 4, "gids_unread": 2},
        {"name": "qib0", "driver": "ib_qib", "hca_type": "InfiniPath_QLE7340"},
        {"name": "bnxt_re0"},
        {"name": "rocep1s0f0"},
    ],
)
def test_unknown_values_drop_no_port(fields: dict[str, object]) -> None:
    (hca,) = choose([ib("mlx5_0", **fields)], []).hcas
    assert hca.use


@pytest.mark.parametrize(
    "unread",
    ["hca_type", "pci_id", "link_layer", "state", "rate_gbps", "node_type", "driver", "pci"],
)
@pytest.mark.parametrize("all_but_it", [False, True])
def test_an_unread_value_moves_no_port_to_another_class(unread: str, all_but_it: bool) -> None:
    """Four for compute and two for storage; of one port, or of all of them, a file is missing."""
    full: dict[str, object] = {"pci_id": "15b3:1021", "driver": "mlx5_core", "node_type": 1}
    hcas = [ib(f"mlx5_{n}", **full, pci=f"0000:{n + 1:02x}:00.0") for n in range(4)]
    slow: dict[str, object] = {**full, "pci_id": "15b3:101d", "hca_type": "MT4125"}
    slow |= {"rate_gbps": 100.0}
    hcas += [ib(f"mlx5_{n}", **slow, pci=f"0000:{n + 1:02x}:00.0") for n in (4, 5)]
    missing = (0, 1, 2, 3, 4, 5) if all_but_it else (0,)
    for at in missing:
        hcas[at] = replace(hcas[at], **{unread: None})
    assert used(choose(hcas, [])) == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    if not all_but_it:
        hcas[4] = replace(hcas[4], **{unread: None})
        assert used(choose(hcas, [])) == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]


def test_hcas_that_nccl_would_take_without_a_list() -> None:
    hcas = [ib("a"), ib("b", state="DOWN"), ib("c", link_layer="Unknown"), ib("d", state=None)]
    hcas.append(ib("irdma0"))
    found = [hca.usable_by_nccl_ib for hca in choose(hcas, []).hcas]
    assert found == [True, False, False, None, True]


def near(hca: str, kind: AffinityClass) -> Affinity:
    return Affinity(gpu="0000:01:00.0", gpu_index=0, hca=hca, distance=kind, hops=2)


def test_ports_far_from_the_gpus_go_where_others_are_near() -> None:
    hcas = [ib(f"mlx5_{n}") for n in range(4)]
    pairs = [near("mlx5_0", AffinityClass.PIX), near("mlx5_1", AffinityClass.NODE)]
    pairs += [near("mlx5_2", AffinityClass.PXB), near("mlx5_3", AffinityClass.UNKNOWN)]
    choice = choose(hcas, pairs)
    assert used(choice) == ["mlx5_0", "mlx5_2", "mlx5_3"]
    assert choice.fabric.expected == 3
    assert used(choose(hcas[1:2], pairs)) == ["mlx5_1"]


def test_a_near_class_wins_over_more_bandwidth() -> None:
    fast = [eth(f"mlx5_{n}", hca_type="MT41692") for n in range(4)]
    pairs = [near(f"mlx5_{n}", AffinityClass.SYS) for n in range(4)]
    choice = choose(
        [*fast, ib("mlx5_9", rate_gbps=200.0)], [*pairs, near("mlx5_9", AffinityClass.PXB)]
    )
    assert used(choice) == ["mlx5_9"]


def test_a_port_that_is_down_far_away_is_not_missed() -> None:
    hcas = [ib("mlx5_0"), ib("mlx5_1", state="DOWN")]
    pairs = [near("mlx5_0", AffinityClass.PIX), near("mlx5_1", AffinityClass.SYS)]
    assert choose(hcas, pairs).fabric.expected == 1


def dark(name: str, /, **fields: object) -> Hca:
    return ib(name, **{"state": "DOWN", "phys_state": "Polling", "rate_gbps": 40.0, **fields})


def test_a_class_that_is_down_wins_only_where_it_is_clear() -> None:
    lit = ib("mlx5_0", hca_type="MT4123", rate_gbps=200.0)
    for model in ("MT4117", "MT4126", "X", None):
        small = [dark(f"mlx5_{n}", hca_type=model, link_layer="Ethernet") for n in (1, 2)]
        choice = choose([lit, *small], [])
        assert (used(choice), choice.fabric.expected) == (["mlx5_0"], 1)
    lit = replace(lit, pci_id="15b3:101b")
    choice = choose([lit, dark("mlx5_1", hca_type=None, pci_id="15b3:1021")], [])
    assert (used(choice), choice.fabric.name) == ([], "InfiniBand 15b3:1021")


def test_an_ethernet_without_addresses_takes_nothing_from_infiniband() -> None:
    spare = [eth(f"mlx5_{n}", None, hca_type="MT4125", rate_gbps=200.0) for n in (1, 2)]
    assert used(choose([ib("mlx5_0", rate_gbps=100.0), *spare], [])) == ["mlx5_0"]


def test_ends_that_no_card_has_in_use_make_no_class_larger() -> None:
    compute = [ib(f"mlx5_{n}", rate_gbps=200.0, pci=f"0000:0{n}:00.0") for n in range(2)]
    storage = [
        end(f"mlx5_{2 * n + at}", hca_type="MT4125", rate_gbps=150.0, pci=f"0000:1{n}:00.{at}")
        for n in (1, 2)
        for at, end in enumerate((ib, dark))
    ]
    assert used(choose([*compute, *storage], [])) == ["mlx5_0", "mlx5_1"]


def test_ports_next_to_gpus_count_when_they_are_down() -> None:
    cards = [dark(f"mlx5_{n}") for n in range(4)]
    far = [ib(f"mlx5_{n}") for n in range(4, 8)]
    pairs = [near(hca.name, AffinityClass.PIX) for hca in cards]
    pairs += [near(hca.name, AffinityClass.SYS) for hca in far]
    choice = choose([*cards, *far], pairs)
    assert (used(choice), choice.fabric.expected) == ([], 4)
    assert "far from all GPUs" in reason(choice, "mlx5_4")
    # A small thing that is down there says nothing.
    choice = choose([dark("mlx5_0", hca_type="MT4117"), *far], pairs)
    assert len(used(choice)) == 4


def test_a_virtual_function_goes_where_its_owner_is_used() -> None:
    owner = ib("mlx5_0", pci="0000:1a:00.0")
    virtual = ib("mlx5_2", pci="0000:1a:00.3", physical_function="0000:1a:00.0")
    choice = choose([owner, virtual], [])
    assert used(choice) == ["mlx5_0"]
    assert "virtual function of mlx5_0" in reason(choice, "mlx5_2")
    assert used(choose([virtual], [])) == ["mlx5_2"]
    assert used(choose([replace(owner, state="DOWN"), virtual], [])) == ["mlx5_2"]


def test_a_virtual_function_that_is_included_with_its_owner_is_used_and_said() -> None:
    owner = ib("mlx5_0", pci="0000:1a:00.0")
    virtual = ib("mlx5_2", pci="0000:1a:00.3", physical_function="0000:1a:00.0")
    both = choose([owner, virtual], [], Rules(include=("mlx5_0", "mlx5_2")))
    assert used(both) == ["mlx5_0", "mlx5_2"]
    assert "although" not in reason(both, "mlx5_0")
    assert "although: virtual function of mlx5_0: NCCL fails" in reason(both, "mlx5_2")
    alone = choose([owner, virtual], [], Rules(include=("mlx5_2",)))
    assert "although" not in reason(alone, "mlx5_2")


def test_virtual_functions_share_one_link() -> None:
    virtual = [
        ib(f"mlx5_{n}", hca_type="MT4126", pci=f"0000:1a:01.{n}", physical_function="0000:1a:00.0")
        for n in range(2, 8)
    ]
    bonds = [eth(f"mlx5_bond_{n}", f"10.0.{n}.1", pci=f"0000:4{n}:00.0") for n in range(4)]
    choice = choose([*virtual, *bonds], [])
    assert used(choice) == [f"mlx5_bond_{n}" for n in range(4)]


def test_a_single_address_family_for_all() -> None:
    sixth = Gid(0, "fd93:16d3:59b6:010d:0690:81ff:fe39:0001", "RoCE v2")
    hcas = [eth("a", None, gids=(sixth,)), eth("b", None, gids=(sixth,)), eth("c")]
    choice = choose(hcas, [])
    assert choice.family == "AF_INET6"
    assert used(choice) == ["a", "b"]
    assert "no IPv6 GID" in reason(choice, "c")


def test_rails_follow_pci_addresses() -> None:
    order = ["0000:9c:00.0", "0000:1a:00.1", "0000:1a:00.0", "0001:01:00.0"]
    choice = choose([ib(f"mlx5_{n}", pci=pci) for n, pci in enumerate(order)], [])
    assert [hca.rail for hca in choice.hcas] == [2, 1, 0, 3]
    assert choose([ib("mlx5_0")], []).hcas[0].rail is None


def test_an_old_kernel_has_no_name_for_a_speed() -> None:
    assert speed_of(ib("mlx5_0", rate_gbps=10.0)) is None
    assert speed_of(ib("mlx4_0", rate_gbps=10.0, hca_type="MT4099")) == 10


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("mlx5_1", ["mlx5_1"]),
        ("mlx5_1:1", ["mlx5_1"]),
        ("mlx5_1:2", []),
        ("0000:1b:00.0", ["mlx5_1"]),
        ("1B:00.0", ["mlx5_1"]),
        ("eth1", ["mlx5_1"]),
        ("10.0.1.0/24", ["mlx5_1"]),
        ("10.0.1.1", ["mlx5_1"]),
        ("10.0.0.0/16", ["mlx5_1", "mlx5_10"]),
        ("fd00::/8", []),
        ("mlx5_", []),
        ("mlx5_*", []),
    ],
)
def test_an_operator_names_hcas(entry: str, named: list[str]) -> None:
    hcas = [
        eth("mlx5_1", "10.0.1.1", pci="0000:1b:00.0", netdevs=("eth1",)),
        eth("mlx5_10", "10.0.2.1", pci="0000:2b:00.0", netdevs=("eth10",)),
    ]
    included = choose(hcas, [], Rules(include=(entry,)))
    assert used(included) == named
    assert included.unmatched == (() if named else (entry,))
    left = [hca.name for hca in hcas if hca.name not in named]
    assert used(choose(hcas, [], Rules(exclude=(entry,)))) == left


@pytest.mark.parametrize(
    ("include", "version", "values", "index"),
    [
        (("10.0.0.0/8",), None, {}, 1),
        (("192.168.0.0/16",), None, {"NCCL_IB_ADDR_RANGE": "192.168.0.0/16"}, 3),
        (("192.168.0.0/16",), (2, 20), {"NCCL_IB_GID_INDEX": "3"}, 3),
        # A port that is named by one of its addresses is meant with all of them.
        (("192.168.1.5",), None, {}, 1),
        (("192.168.0.0/16", "mlx5_9"), None, {}, 1),
    ],
)
def test_a_network_that_is_included_is_the_one_that_is_used(
    include: tuple[str, ...],
    version: tuple[int, int] | None,
    values: dict[str, str],
    index: int,
) -> None:
    first = eth("mlx5_0", "10.0.0.1")
    second = Gid(3, "0000:0000:0000:0000:0000:ffff:c0a8:0105", "RoCE v2", "eth0")
    both = replace(first, gids=(*first.gids, second), addresses=("10.0.0.1", "192.168.1.5"))
    choice = choose([both, ib("mlx5_9")], [], Rules(include=include))
    assert choice.hcas[0].gid_index == index
    made = environment(choice, (), version).values
    assert {name: text for name, text in made.items() if "ADDR" in name or "GID" in name} == values


@pytest.mark.parametrize("version", [None, (2, 20), (2, 22), (2, 27)])
def test_each_port_uses_its_own_network_of_several(
    version: tuple[int, int] | None,
) -> None:
    hcas = []
    for at in range(2):
        first = eth(f"mlx5_{at}", f"192.168.{at}.5")
        second = Gid(3, f"0000:0000:0000:0000:0000:ffff:0a0{at}:0005", "RoCE v2", "eth0")
        both = first.addresses[0], f"10.{at}.0.5"
        hcas.append(replace(first, gids=(*first.gids, second), addresses=both))
    rules = Rules(include=("10.0.0.0/16", "10.1.0.0/16"))
    choice = choose(hcas, [], rules)
    assert [hca.gid_index for hca in choice.hcas] == [3, 3]
    made = environment(choice, (), version).values
    assert made["NCCL_IB_GID_INDEX"] == "3"
    assert "NCCL_IB_ADDR_RANGE" not in made
    # If NCCL chooses them by itself, no index is set.
    kept = choose(hcas, [], Rules(include=("192.168.0.0/24", "192.168.1.0/24")))
    assert [hca.gid_index for hca in kept.hcas] == [1, 1]
    assert "NCCL_IB_GID_INDEX" not in environment(kept, (), (2, 27)).values
    # An entry that both have, but outside of what is included, will not do.
    odd = replace(hcas[1], gids=tuple(replace(gid, index=4 - gid.index) for gid in hcas[1].gids))
    apart = environment(choose([hcas[0], odd], [], rules), (), version)
    assert "mlx5_0:1 needs 3, mlx5_1:1 needs 1" in (apart.apart or "")


def test_exclusion_wins_and_inclusion_beats_the_rule() -> None:
    hcas = [ib("mlx5_0"), ib("irdma0"), eth("mlx5_1", None), ib("mlx5_2", state="DOWN")]
    choice = choose(hcas, [], Rules(include=("irdma0", "mlx5_1", "mlx5_2")))
    assert used(choice) == ["irdma0", "mlx5_1"]
    assert "although" in reason(choice, "irdma0")
    assert "but port DOWN" in reason(choice, "mlx5_2")
    assert used(choose(hcas, [], Rules(include=("mlx5_0",), exclude=("mlx5_0",)))) == []


def test_sockets_have_the_form_that_each_library_wants() -> None:
    made = environment(choose([ib("mlx5_10"), ib("mlx5_2")], []), ("eth0",)).values
    assert made == {
        "NCCL_IB_HCA": "=mlx5_2:1,mlx5_10:1",
        "UCX_NET_DEVICES": "mlx5_2:1,mlx5_10:1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
    }


@given(
    st.lists(
        st.builds(
            Hca,
            name=st.sampled_from(["mlx5_0", "mlx5_1", "mlx5_10", "rxe0", "irdma1", "hfi1_0"]),
            port=st.integers(1, 2),
            link_layer=st.sampled_from([None, "InfiniBand", "Ethernet", "Unknown"]),
            state=st.sampled_from([None, "ACTIVE", "DOWN", "INIT"]),
            rate_gbps=st.sampled_from([None, 10.0, 100.0, 400.0]),
            hca_type=st.sampled_from([None, "MT4129", "MT4125"]),
            gid_slots=st.sampled_from([None, 4]),
            node_type=st.sampled_from([None, 1, 4, 7]),
            pci=st.sampled_from([None, "0000:1a:00.0", "0000:1a:00.1"]),
            physical_function=st.sampled_from([None, "0000:1a:00.0"]),
        ),
        unique_by=lambda hca: hca.key,
    ),
    st.sampled_from([None, (2, 18), (2, 21), (2, 27)]),
)
def test_every_port_is_decided_and_nothing_is_set_that_is_to_be_left(
    hcas: list[Hca], version: tuple[int, int] | None
) -> None:
    choice = choose(hcas, [])
    assert [hca.key for hca in choice.hcas] == [hca.key for hca in hcas]
    assert all(hca.reason and hca.group for hca in choice.hcas)
    assert all(hca.state in (None, "ACTIVE") for hca in choice.used)
    assert len({hca.group for hca in choice.used}) <= 1
    made = environment(choice, ("eth0",), version).values
    assert ("NCCL_IB_HCA" in made) == bool(choice.used)
    assert not LEFT_ALONE & set(made)
