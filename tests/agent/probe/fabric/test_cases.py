"""The trees of real nodes; cases/README.md says where they are from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.probe.fabric.probe import ProbeOptions, probe
from agent.probe.fabric.report import exit_code, summary
from muster.fabric.model import AffinityClass, Probe, Severity
from tests.agent.probe.fabric.trees import by_key, problems_of, refused_of, refusing, used, words

Case = Callable[[str], Path]


def probed(case: Case, name: str, nccl: str | None = None) -> Probe:
    root = case(name)
    return probe(root, ProbeOptions(nccl=nccl), refusing(root, refused_of(name)))


def ports(*numbers: int) -> list[str]:
    return [f"mlx5_{number}:1" for number in numbers]


EIGHT = ports(0, 3, 4, 5, 6, 9, 10, 11)


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("azure-ndv4-ibstatus", ports(*range(8))),
        ("gpud-h100-bond", ports(0, 1, 4, 5, 6, 7, 8, 9)),
        ("h100-12hca-roce", EIGHT),
        ("h100-12hca-roce-2down", ports(0, 3, 4, 6, 9, 10)),
        ("hwloc-mlx4-ib", ["mlx4_0:1"]),
        ("hwloc-plx-8ve-2ib", []),
        ("node-exporter-infiniband", ["mlx4_0:1", "mlx4_0:2"]),
        ("procfs-infiniband", ["mlx4_0:1", "mlx4_0:2"]),
        ("topo-oci-h100", ports(0, 1, *range(3, 11), *range(12, 18))),
    ],
)
def test_the_compute_hcas_and_no_other(case: Case, name: str, chosen: list[str]) -> None:
    found = probed(case, name)
    assert used(found) == chosen
    assert found.env.get("NCCL_IB_HCA") == (f"={','.join(chosen)}" if chosen else None)
    assert found.env.get("UCX_NET_DEVICES") == (",".join(chosen) or None)
    assert "NCCL_IB_GID_INDEX" not in found.env
    assert all(hca.reason and hca.group for hca in found.hcas)


def test_a_gid_that_cannot_be_read_ends_nothing(case: Case) -> None:
    odd = by_key(probed(case, "azure-ndv4-ibstatus"))["mlx5_8:1"]
    assert (odd.link_layer, odd.rate_gbps, odd.gids, odd.gid_index) == ("Ethernet", 40, (), None)
    assert odd.unknown["gids"]
    assert "another class" in odd.reason
    first = by_key(probed(case, "azure-ndv4-ibstatus"))["mlx5_0:1"]
    assert (first.lid, first.sm_lid, first.gid_index) == (0x33BF, 1, 0)


def test_a_bond_for_storage_is_left_out(case: Case) -> None:
    bond = by_key(probed(case, "gpud-h100-bond"))["mlx5_bond_0:1"]
    assert (bond.hca_type, bond.fw_ver, bond.rate_gbps) == ("MT41692", "32.38.3056", 200)
    assert not bond.use
    assert "another class" in bond.reason


def test_two_of_eight_down_for_two_reasons(case: Case) -> None:
    found = probed(case, "h100-12hca-roce-2down")
    assert (found.fabric.used, found.fabric.expected) == (6, 8)
    down = by_key(found)
    assert (down["mlx5_11:1"].state, down["mlx5_11:1"].phys_state) == ("DOWN", "Polling")
    assert (down["mlx5_5:1"].state, down["mlx5_5:1"].phys_state) == ("DOWN", "Disabled")
    assert all(down[key].group == "Ethernet MT4129" for key in ("mlx5_5:1", "mlx5_11:1"))
    polling, disabled = (
        next(p for p in problems_of(found, Severity.ERROR) if word in p.what)
        for word in ("Polling", "Disabled")
    )
    assert "cable" in polling.fix
    assert "switched off on this host" in disabled.what
    assert "6 of 8" in polling.what


def test_an_old_card_in_a_whole_tree(case: Case) -> None:
    found = probed(case, "hwloc-mlx4-ib")
    (hca,) = found.hcas
    assert hca.pci == "0000:82:00.0"
    assert hca.pci_path == ("pci0000:80", "0000:80:02.2", "0000:82:00.0")
    assert (hca.numa_node, hca.hca_type, hca.fw_ver) == (1, "MT4099", "2.11.500")
    assert (hca.board_id, hca.driver, hca.node_type) == ("DEL0A30000019", "mlx4_core", 1)
    assert (hca.node_guid, hca.sys_image_guid) == ("0002:c903:00f9:bfa0", "0002:c903:00f9:bfa3")
    assert (hca.rate_gbps, hca.lid, hca.sm_lid) == (56, 0x3A4, 1)
    assert hca.netdevs == ("ib0",)
    # One GID of 128: an entry with nothing but the prefix is empty.
    assert [gid.gid for gid in hca.gids] == ["fe80:0000:0000:0000:0002:c903:00f9:bfa1"]
    assert (hca.gid_slots, hca.gid_index, hca.addresses) == (128, 0, ())
    assert [(p.gpu, p.hca, p.distance) for p in found.affinity] == [
        ("0000:83:00.0", "mlx4_0", AffinityClass.PHB)
    ]
    assert {network.name for network in found.networks} == {"eth0", "eth1", "ib0"}
    assert found.env["NCCL_SOCKET_IFNAME"] in ("=ib0", "=eth0")
    assert not problems_of(found)
    assert "scif0" in words(found.problems)


def test_cards_without_their_driver(case: Case) -> None:
    found = probed(case, "hwloc-plx-8ve-2ib")
    assert found.hcas == ()
    (problem,) = problems_of(found)
    assert problem.severity is Severity.WARNING
    assert problem.what.startswith(
        "2 InfiniBand PCI functions (15b3:1013) without an RDMA device: "
        "driver mlx5_ib/ib_uverbs not loaded?"
    )
    near = {"1b": "1a", "1c": "1a", "1d": "1a", "1e": "1a"}
    near |= {"3d": "3e", "3f": "3e", "40": "3e", "41": "3e"}
    classes = {(pair.gpu, pair.hca): pair.distance for pair in found.affinity}
    assert classes == {
        (f"0000:{gpu}:00.0", f"0000:{hca}:00.0"): (
            AffinityClass.PIX if hca == near[gpu] else AffinityClass.NODE
        )
        for gpu in near
        for hca in ("1a", "3e")
    }


def test_counters_are_bytes_or_unknown(case: Case) -> None:
    found = by_key(probed(case, "procfs-infiniband"))
    numbers = {key: (hca.counters.rcv_bytes, hca.counters.xmit_bytes) for key, hca in found.items()}
    assert numbers == {
        "hfi1_0:1": (1380366808104, 1094233306172),
        "mlx4_0:1": (8884894436, 106036453180),
        "mlx4_0:2": (9841747136, 106161427560),
        "mlx5_0:1": (72505381512, 11523046035392),
    }
    none = by_key(probed(case, "node-exporter-infiniband"))["i40iw0:1"]
    assert none.counters.xmit_bytes is None
    assert none.counters.link_downed is None


def test_unusual_values_are_kept_as_they_are(case: Case) -> None:
    found = by_key(probed(case, "procfs-infiniband"))
    assert found["mlx5_0:1"].phys_state == "ACTIVE"
    assert found["mlx4_0:2"].link_layer == "InfiniBand"
    assert found["mlx5_0:1"].node_guid == "0a7f:bc12:45ef:d23b"
    assert found["mlx5_0:1"].unknown["gids"] == "no such file"
    assert found["mlx5_0:1"].pci is None


def test_omni_path_and_iwarp_are_not_for_nccl(case: Case) -> None:
    opa = by_key(probed(case, "procfs-infiniband"))["hfi1_0:1"]
    assert (opa.group, opa.use) == ("OPA", False)
    iwarp = by_key(probed(case, "node-exporter-infiniband"))["i40iw0:1"]
    assert (iwarp.group, iwarp.rate_gbps, iwarp.use) == ("iWARP", 10, False)


def test_sixteen_ports_of_oracle_each_by_its_gpu(case: Case) -> None:
    found = probed(case, "topo-oci-h100")
    nearest = {0: (0, 1), 1: (3, 4), 2: (5, 6), 3: (7, 8)}
    nearest |= {4: (9, 10), 5: (12, 13), 6: (14, 15), 7: (16, 17)}
    for gpu in found.gpus:
        pairs = [pair for pair in found.affinity if pair.gpu == gpu.pci]
        own = [f"mlx5_{number}" for number in nearest[gpu.index]]
        assert [pair.hca for pair in pairs[:2]] == own
        assert {(pair.distance, pair.hops) for pair in pairs[:2]} == {(AffinityClass.PXB, 6)}
        same_half = AffinityClass.NODE, AffinityClass.SYS
        numa = {hca.name: hca.numa_node for hca in found.hcas}
        for pair in pairs[2:]:
            assert pair.distance is same_half[numa[pair.hca] != gpu.numa_node]
    assert [hca.rail for hca in found.hcas] == list(range(16))
    assert not problems_of(found)


def darkened(case: Case, name: str, tmp_path: Path, dark: Sequence[str]) -> Probe:
    """The real node with these ports down, as their switch would leave them."""
    root = tmp_path / "dark"
    shutil.copytree(case(name), root, symlinks=True)
    for key in dark:
        folder = root / "sys/class/infiniband" / key.replace(":", "/ports/")
        (folder / "state").write_text("1: DOWN\n")
        (folder / "phys_state").write_text("2: Polling\n")
        (folder / "rate").write_text("40 Gb/sec (4X QDR)\n")
    return probe(root, ProbeOptions(), refusing(root, refused_of(name)))


@pytest.mark.parametrize("lit", [0, 1, 2])
def test_the_compute_class_stays_the_one_when_its_ports_are_down(
    case: Case, tmp_path: Path, lit: int
) -> None:
    found = darkened(case, "h100-12hca-roce", tmp_path, EIGHT[lit:])
    assert used(found) == EIGHT[:lit]
    assert (found.fabric.used, found.fabric.expected) == (lit, 8)
    assert found.fabric.name == "Ethernet MT4129"
    (problem,) = problems_of(found)
    assert problem.severity is Severity.ERROR
    assert f"{lit} of 8 compute ports are left" in problem.what
    assert exit_code(found) == 2
    assert f"{lit} of 8" in summary(found)
    storage = by_key(found)["mlx5_1:1"]
    assert (storage.use, storage.expected) == (False, False)
    assert "another class than the compute HCAs (Ethernet MT4129: 8 ports" in storage.reason


def test_storage_that_is_down_is_no_error(case: Case, tmp_path: Path) -> None:
    found = darkened(case, "h100-12hca-roce", tmp_path, ports(1, 2, 7, 8))
    assert used(found) == EIGHT
    assert not problems_of(found)
