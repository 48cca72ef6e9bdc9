"""Trees made from the kernel's rules, each with its answer worked out by hand: rates, virtual
machines, containers, copies without links, and cards that are not for NCCL."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent.probe.fabric.fs_root import FsRoot, Unread
from agent.probe.fabric.report import exit_code, summary
from muster.fabric.model import AffinityClass, Hca, Severity
from muster.fabric.port_classes import speed_of
from tests.agent.probe.fabric.trees import (
    LINK_LOCAL,
    V1,
    V2,
    GidRow,
    Node,
    by_key,
    classical,
    problems_of,
    used,
    words,
)

CARD = "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0"
VIRTUAL = "processor\t: 0\nflags\t\t: fpu vme hypervisor avx2\n"


def event(function: str, pci_id: str = "15B3:1021", driver: str = "mlx5_core") -> str:
    return f"DRIVER={driver}\nPCI_ID={pci_id}\nPCI_SLOT_NAME={function}\n"


@pytest.mark.parametrize(
    ("model", "rate", "speed"),
    [
        # An interface of 10 GbE: one lane of QDR, on whatever card.
        ("MT4125", "10 Gb/sec (1X QDR)", 10),
        ("MT4129", "10 Gb/sec (1X QDR)", 10),
        ("MT4117", "25 Gb/sec (1X EDR)", 25),
        # The kernel's word for a speed that it has no name for.
        ("MT4129", "10 Gb/sec (4X SDR)", None),
        ("MT4129", "10 Gb/sec (4X)", None),
        ("MT4129", "5 Gb/sec (2X SDR)", None),
        ("MT4129", "2.5 Gb/sec (1X SDR)", None),
        ("MT4115", "10 Gb/sec (4X SDR)", None),
        ("MT4133", "10 Gb/sec (4X SDR)", None),
        ("MT4129", "30 Gb/sec (12X SDR)", None),
        # Cards of its time.
        ("MT25208", "10 Gb/sec (4X SDR)", 10),
        ("MT4099", "10 Gb/sec (4X SDR)", 10),
        ("MT4099", "40 Gb/sec (4X FDR10)", 40),
        ("MT4129", "400 Gb/sec (2X XDR)", 400),
    ],
)
def test_speeds_that_are_believed(node: Node, model: str, rate: str, speed: float | None) -> None:
    node.hca("mlx5_0", hca_type=model, pci_id="15b3:0000")
    node.port("mlx5_0", link="Ethernet", rate=rate)
    (hca,) = node.probe().hcas
    assert speed_of(hca) == speed


def test_slow_ethernet_on_fast_cards_takes_nothing_from_them(node: Node) -> None:
    # Two of six ports of one model run at 10 GbE for management, in a class of another card.
    for number in range(4):
        node.hca(f"mlx5_{number}", hca_type="MT4123")
        node.port(f"mlx5_{number}", rate="100 Gb/sec (2X HDR)")
    for number in range(4, 12):
        node.hca(f"mlx5_{number}", hca_type="MT4125")
        node.port(f"mlx5_{number}", rate="10 Gb/sec (1X QDR)")
    found = node.probe()
    # 4 x 100 against 8 x 10, whatever the cards could do.
    assert used(found) == [f"mlx5_{number}:1" for number in range(4)]
    assert not problems_of(found)


def test_a_port_that_fell_to_10_gbe_among_fast_ones_is_reported(node: Node) -> None:
    for number in range(4):
        node.hca(f"mlx5_{number}", hca_type="MT4125")
        slow = "10 Gb/sec (1X QDR)" if number == 3 else "100 Gb/sec (4X EDR)"
        node.port(f"mlx5_{number}", rate=slow)
    (problem,) = problems_of(node.probe())
    assert problem.severity is Severity.WARNING
    assert problem.what.startswith("mlx5_3:1 runs at 10 Gb/s, others of its class at 100")


@pytest.mark.parametrize("numa", [0, -1])
@pytest.mark.parametrize("cpuinfo", [VIRTUAL, None])
def test_a_virtual_machine_of_one_numa_node(node: Node, numa: int, cpuinfo: str | None) -> None:
    for number in range(4):
        node.gpu(f"pci0000:00/0000:00:01.{number}/0000:{5 + number:02x}:00.0", numa=numa)
        path = f"pci0000:00/0000:00:02.{number}/0000:{13 + number:02x}:00.0"
        node.hca(f"mlx5_{number}", path=path, numa=numa)
        node.port(f"mlx5_{number}")
    if cpuinfo:
        node.file("proc/cpuinfo", cpuinfo)
    found = node.probe()
    assert {pair.distance for pair in found.affinity} == {AffinityClass.UNKNOWN}
    assert "virtual PCI topology" in words(problems_of(found))
    node.file("proc/cpuinfo", "flags\t\t: fpu vme avx2\n")
    assert {pair.distance for pair in node.probe().affinity} == {AffinityClass.PHB}


def test_a_virtual_machine_of_one_numa_node_with_a_bridge_for_each_card(node: Node) -> None:
    for number in range(2):
        node.gpu(f"pci000{number + 1}:00/000{number + 1}:00:00.0", numa=0)
        node.hca(f"mlx5_{number}", path=f"pci010{number}:00/010{number}:00:00.0", numa=0)
        node.port(f"mlx5_{number}", link="InfiniBand")
    node.file("proc/cpuinfo", VIRTUAL)
    found = node.probe()
    assert {pair.distance for pair in found.affinity} == {AffinityClass.UNKNOWN}
    assert "NCCL_TOPO_FILE" in words(problems_of(found))


def test_a_virtual_machine_that_was_given_numa_nodes_reports_them(node: Node) -> None:
    for number in range(2):
        node.gpu(f"pci000{number + 1}:00/000{number + 1}:00:00.0", numa=number)
        node.hca(f"mlx5_{number}", path=f"pci010{number}:00/010{number}:00:00.0", numa=number)
        node.port(f"mlx5_{number}", link="InfiniBand")
    node.file("proc/cpuinfo", VIRTUAL)
    found = node.probe()
    assert [pair.distance for pair in found.affinity] == [
        AffinityClass.NODE,
        AffinityClass.SYS,
    ] * 2
    assert not problems_of(found)


def test_a_device_node_of_a_copied_tree_is_not_opened(node: Node) -> None:
    # A copy made with `cp -a` has device nodes: they would be this machine's own.
    pipe = node.file("sys/class/infiniband/mlx5_0/fw_ver", "")
    pipe.unlink()
    os.mkfifo(pipe)
    node.hca("mlx5_0")
    node.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
    node.port("mlx5_0", link="InfiniBand")
    (hca,) = node.probe().hcas
    assert hca.unknown["fw_ver"] == "not a plain file"
    assert FsRoot(node.root).window("sys/class/infiniband/mlx5_0/fw_ver", 0, 4) == b""
    special = node.root / "dev/infiniband/uverbs0"
    special.parent.mkdir(parents=True)
    try:
        os.mknod(special, stat.S_IFCHR | 0o600, os.makedev(1, 11))
    except PermissionError:
        os.mkfifo(special)
    with_device = node.probe()
    assert with_device.hcas[0].uverbs_error is None
    assert used(with_device) == ["mlx5_0:1"]
    text = FsRoot(node.root).text("dev/infiniband/uverbs0")
    assert isinstance(text, Unread)
    assert text.why == "not a plain file"


def test_a_class_folder_that_cannot_be_read_is_reported(node: Node) -> None:
    # A circle of links stands for a folder that this process may not open.
    node.link("sys/class/infiniband", "infiniband")
    found = node.probe()
    assert found.hcas == ()
    (problem,) = problems_of(found)
    assert problem.severity is Severity.WARNING
    assert problem.what.startswith("/sys/class/infiniband cannot be read (circular links)")
    assert exit_code(found) == 1
    assert summary(found) == "1 problem, RDMA unknown"


def test_an_interface_folder_that_cannot_be_read_ends_nothing(node: Node) -> None:
    node.link("sys/class/net", "net")
    node.link("sys/bus/pci/devices", "devices")
    node.hca("mlx5_0")
    node.port("mlx5_0", link="InfiniBand")
    assert used(node.probe()) == ["mlx5_0:1"]


@pytest.mark.parametrize(
    "text",
    [
        "PCI_ID=15b3:zzzz\nPCI_SLOT_NAME=0000:1a:00.0\nDRIVER=mlx5_core\n",
        "PCI_ID=15b3:\nDRIVER=\n",
        "PCI_ID=15b3:1021:1\nPCI_SLOT_NAME=1a\n",
        "PCI_ID=" + "9" * 5000,
        "=\n==\nPCI_ID\n",
        "PCI_SLOT_NAME=0000:1A:1f.9\n",
    ],
)
@pytest.mark.parametrize("state", ["4: ACTIVE", "1: DOWN"])
def test_a_malformed_event_ends_nothing(node: Node, text: str, state: str) -> None:
    node.file("sys/class/infiniband/mlx5_0/device/uevent", text)
    node.port("mlx5_0", link="InfiniBand", state=state)
    node.hca("mlx5_1")
    node.port("mlx5_1", link="InfiniBand")
    found = node.probe()
    assert "mlx5_1:1" in used(found)
    assert by_key(found)["mlx5_0:1"].pci_id is None
    assert by_key(found)["mlx5_0:1"].pci in (None, "0000:1a:00.0")


def hidden(node: Node, number: int) -> None:
    """RDMA devices as some containers show them: a folder that leads nowhere, though the PCI bus
    can be seen."""
    for at in range(number):
        node.pci(
            f"pci0000:17/0000:17:0{at}.0/0000:{0x1A + at:02x}:00.0", "0x020700", "15b3", "1021"
        )
        (node.root / f"sys/class/infiniband/mlx5_{at}/device").mkdir(parents=True)
        node.hca(f"mlx5_{at}", hca_type="MT4129")
        node.port(f"mlx5_{at}", link="InfiniBand")


def test_functions_that_a_container_hides_are_no_missing_driver(node: Node) -> None:
    hidden(node, 2)
    found = node.probe()
    assert used(found) == ["mlx5_0:1", "mlx5_1:1"]
    assert not problems_of(found)
    assert "without an RDMA device" not in words(found.problems)


def test_functions_that_no_hidden_device_can_be_are_reported(node: Node) -> None:
    hidden(node, 1)
    for bus in ("3a", "3b"):
        node.pci(f"pci0000:39/0000:39:01.0/0000:{bus}:00.0", "0x020700", "15b3", "1021")
    # Three functions, one device: two of them have none.
    assert "2 of 3 InfiniBand PCI functions (15b3:1021)" in words(problems_of(node.probe()))


def test_a_function_that_names_its_device_is_its_own(node: Node) -> None:
    place = node.pci(CARD, "0x020700", "15b3", "1021", numa=1)
    node.file(f"{place}/infiniband/mlx5_0/node_type", "1: CA\n")
    node.hca("mlx5_0")
    node.port("mlx5_0", link="InfiniBand")
    (hca,) = node.probe().hcas
    assert (hca.pci, hca.pci_id, hca.numa_node) == ("0000:1a:00.0", "15b3:1021", 1)
    assert hca.pci_path[-1] == "0000:1a:00.0"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("ibp12s0", "0000:0c:00.0"),
        ("rocep193s0f1", "0000:c1:00.1"),
        ("rocep26s31f7", "0000:1a:1f.7"),
        ("ibP10p26s0", "000a:1a:00.0"),
        ("rdmap16s27", "0000:10:1b.0"),
        ("mlx5_0", None),
        ("ibp300s0", None),
        ("ibs3", None),
    ],
)
def test_a_name_of_udev_has_the_function(node: Node, name: str, function: str | None) -> None:
    node.hca(name)
    node.port(name, link="InfiniBand")
    assert node.probe().hcas[0].pci == function


@pytest.mark.parametrize(
    ("name", "fields", "group"),
    [
        ("opap1s0", {}, "OPA"),
        ("hfi1_0", {}, "OPA"),
        ("card", {"pci_id": "8086:24f1", "kind": "0x020800"}, "OPA"),
        ("card", {"pci_id": "8086:24f0", "kind": ""}, "OPA"),
        ("iwp26s0f0", {}, "iWARP"),
        ("cxgb4_0", {}, "iWARP"),
        ("card", {"node_type": "4: RNIC"}, "iWARP"),
        ("irdma0", {}, "iWARP"),
        ("card", {"hca_type": "I40IW"}, "iWARP"),
        ("card", {"node_type": "5: usNIC"}, "usNIC"),
        ("card", {"node_type": "6: usNIC UDP"}, "usNIC"),
        ("rdmap16s27", {"node_type": "7: unspecified"}, "EFA"),
        ("efa_0", {}, "EFA"),
        ("rxe0", {}, "software RDMA"),
        ("siw_eth0", {}, "software RDMA"),
    ],
)
def test_kinds_that_are_not_for_nccl(
    node: Node, name: str, fields: dict[str, str], group: str
) -> None:
    given = dict(fields)
    if "pci_id" in given:
        node.hca(name, path=CARD, pci_id=given.pop("pci_id"), kind=given.pop("kind"))
    else:
        node.hca(name, **given)  # type: ignore[arg-type]
    node.port(name, link="InfiniBand" if group == "OPA" else "Ethernet")
    node.hca("mlx5_0", hca_type="MT4129")
    node.port("mlx5_0", link="InfiniBand", rate="100 Gb/sec (4X EDR)")
    found = node.probe()
    assert used(found) == ["mlx5_0:1"]
    odd = by_key(found)[f"{name}:1"]
    assert (odd.group, odd.use, odd.expected) == (group, False, False)


@pytest.mark.parametrize(
    ("name", "said"), [("hfi1_0", "Omni-Path"), ("irdma0", "iWARP"), ("usnic_0", "usNIC")]
)
def test_a_node_with_nothing_for_nccl_hears_what_it_costs(node: Node, name: str, said: str) -> None:
    node.gpu("pci0000:00/0000:00:01.0/0000:01:00.0")
    node.hca(name)
    node.port(name, link="InfiniBand")
    found = node.probe()
    assert used(found) == []
    (problem,) = problems_of(found)
    assert problem.severity is Severity.WARNING
    assert said in problem.what
    assert "NCCL uses TCP" in problem.what
    assert exit_code(found) == 1


@pytest.mark.parametrize("prefix", ["fec0:0000:0000:0001", "fe80:0000:0000:0001"])
def test_a_subnet_prefix_that_is_not_the_default(node: Node, prefix: str) -> None:
    empty = f"{prefix}:0000:0000:0000:0000"
    gids: dict[int, GidRow] = dict.fromkeys(range(1, 128), (empty, None, None))
    gids[0] = (f"{prefix}:0002:c903:00f9:bfa1", None, None)
    node.hca("mlx5_0")
    node.port("mlx5_0", link="InfiniBand", gids=gids)
    (hca,) = node.probe().hcas
    # An entry with only the prefix is unused and not an address.
    assert [gid.index for gid in hca.gids] == [0]
    assert (hca.gid_slots, hca.gid_index, hca.addresses) == (128, 0, ())


def test_roce_has_no_empty_entry_but_zero_and_the_link_local_prefix(node: Node) -> None:
    gids: dict[int, GidRow] = {
        0: (LINK_LOCAL, V1, "eth0"),
        1: ("2001:0db8:0000:0001:0000:0000:0000:0000", V2, "eth0"),
    }
    node.hca("mlx5_0")
    node.port("mlx5_0", gids=gids)
    assert [gid.index for gid in node.probe().hcas[0].gids] == [0, 1]


def copied(root: Path, to: Path) -> Path:
    """Copy like `cp -rL`: each link is what it leads to; one that leads to a folder above is left
    out, and so is one that leads nowhere."""

    def copy(place: Path, target: Path, above: tuple[str, ...]) -> None:
        real = os.path.realpath(place)
        if real in above or not os.path.exists(real):
            return
        if os.path.isdir(real):
            target.mkdir(parents=True, exist_ok=True)
            for name in sorted(os.listdir(real)):
                copy(Path(real) / name, target / name, (*above, real))
        else:
            target.write_bytes(Path(real).read_bytes())

    copy(root, to, ())
    return to


def whole(node: Node) -> None:
    """Two NUMA nodes with a GPU, a card and a virtual function each, and a bond."""
    for at, bus in enumerate(("17", "97")):
        top = f"pci0000:{bus}/0000:{bus}:01.0/0000:{int(bus, 16) + 1:02x}:00.0"
        card = f"{int(bus, 16) + 3:02x}:00"
        node.gpu(f"{top}/0000:{bus[0]}9:00.0/0000:{bus[0]}f:00.0", numa=at)
        for name, function in ((f"mlx5_{2 * at}", 0), (f"mlx5_{2 * at + 1}", 2)):
            path = f"{top}/0000:{bus[0]}9:01.0/0000:{card}.{function}"
            place = node.hca(name, path=path, numa=at, hca_type="MT4129")
            node.file(f"sys/devices/{path}/uevent", event(f"0000:{card}.{function}"))
            node.link(f"sys/devices/{path}/driver", f"{'../' * path.count('/')}../../bus/mlx5_core")
            if function:
                node.link(f"{place}/../../physfn", f"../0000:{card}.0")
            node.port(name, gids=classical(f"10.{at}.{function}.5", f"eth{2 * at + function // 2}"))
    node.file("sys/bus/mlx5_core/module", "")
    bonded = "pci0000:17/0000:17:02.0/0000:2a:00.0"
    node.hca("mlx5_bond_0", path=bonded, pci_id="15b3:a2dc", hca_type="MT41692")
    node.port("mlx5_bond_0", rate="25 Gb/sec (1X EDR)")
    node.file("sys/devices/virtual/net/bond0/ifindex", "9\n")
    node.file("sys/devices/virtual/net/bond0/uevent", "INTERFACE=bond0\nIFINDEX=9\n")
    node.file("sys/devices/virtual/net/bond0/bonding/mode", "802.3ad 4\n")
    node.file(f"sys/devices/{bonded}/net/eth9/ifindex", "8\n")
    node.link(f"sys/devices/{bonded}/net/eth9/master", "../../../../../virtual/net/bond0")
    node.file(f"sys/devices/{bonded}/uevent", event("0000:2a:00.0", "15B3:A2DC"))
    folder = "sys/devices/virtual/infiniband/soft0"
    for name, text in {"state": "4: ACTIVE", "link_layer": "Ethernet"}.items():
        node.file(f"{folder}/ports/1/{name}", f"{text}\n")
    node.link("sys/class/infiniband/soft0", "../../devices/virtual/infiniband/soft0")


def judged(hca: Hca) -> tuple[object, ...]:
    own = (hca.key, hca.pci, hca.pci_path, hca.numa_node, hca.driver, hca.physical_function)
    return (*own, hca.virtual, hca.netdevs, hca.group, hca.use, hca.reason, hca.rail)


def test_a_copy_without_links_says_the_same(
    node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole(node)
    found = node.probe()
    assert used(found) == ["mlx5_0:1", "mlx5_2:1"]
    assert by_key(found)["mlx5_1:1"].physical_function == "0000:1a:00.0"
    assert by_key(found)["mlx5_bond_0:1"].netdevs == ("bond0",)
    assert by_key(found)["soft0:1"].virtual
    assert {pair.distance for pair in found.affinity[:1]} == {AffinityClass.PIX}
    copy = Node(copied(node.root, tmp_path_factory.mktemp("copy")), node.refused)
    assert not any(place.is_symlink() for place in copy.root.rglob("*"))
    again = copy.probe()
    assert [judged(hca) for hca in again.hcas] == [judged(hca) for hca in found.hcas]
    assert again.affinity == found.affinity
    assert again.gpus == found.gpus
    assert again.env == found.env
    assert again.problems == found.problems
