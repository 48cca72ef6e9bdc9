"""The findings of `doctor`, and the findings it must not report."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from agent.probe.fabric.fs_root import FsRoot
from agent.probe.fabric.host_problems import local_name, of_python
from agent.probe.fabric.limits import limits_of
from agent.probe.fabric.probe import ProbeOptions, probe
from agent.probe.fabric.report import exit_code, summary
from agent.probe.fabric.software import software_of
from agent.probe.fabric.user_access import JobUser
from agent.shims.apart import FENCE
from agent.shims.limits import LIMITED
from muster.fabric.model import UNLIMITED, Severity
from tests.agent.probe.fabric.trees import (
    LINK_LOCAL,
    V1,
    V2,
    GidRow,
    Node,
    classical,
    mapped,
    problems_of,
    used,
    words,
)

ERROR, WARNING = Severity.ERROR, Severity.WARNING
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            {nofile}                 {nofile}              files
Max locked memory         {memlock}            {memlock}            bytes
"""


def compute(node: Node, number: int = 2, port: dict[str, str] | None = None) -> None:
    """Make healthy InfiniBand ports; the last one as `port` describes."""
    for at in range(number):
        node.hca(f"mlx5_{at}", hca_type="MT4129")
        own = port if port is not None and at == number - 1 else {}
        values = {"lid": "0x3a4", "sm_lid": "0x1", "link": "InfiniBand", **own}
        node.port(f"mlx5_{at}", **values)  # type: ignore[arg-type]


def test_a_healthy_node_has_none(node: Node) -> None:
    compute(node)
    found = node.probe()
    assert found.problems == ()
    assert exit_code(found) == 0
    assert summary(found) == "0 problems, RDMA over 2 ports (InfiniBand MT4129)"


@pytest.mark.parametrize(
    ("port", "severity", "what", "fix"),
    [
        ({"state": "1: DOWN", "phys": "2: Polling"}, ERROR, "no signal", "cable"),
        ({"state": "1: DOWN", "phys": "3: Disabled"}, ERROR, "switched off on this host", "up"),
        ({"state": "2: INIT"}, ERROR, "no subnet manager", "opensm"),
        ({"state": "3: ARMED"}, ERROR, "on its way up", "again"),
        ({"sm_lid": "0x0"}, ERROR, "no subnet manager", "opensm"),
        ({"lid": "0x0"}, WARNING, "no LID", "subnet manager"),
        ({"phys": "6: LinkErrorRecovery"}, WARNING, "LinkErrorRecovery", "cable"),
        ({"rate": "200 Gb/sec (4X HDR)"}, WARNING, "runs at 200 Gb/s", "mlxlink"),
    ],
)
def test_a_single_port_of_the_compute_fabric(
    node: Node, port: dict[str, str], severity: Severity, what: str, fix: str
) -> None:
    compute(node, port=port)
    found = node.probe()
    (problem,) = problems_of(found)
    assert problem.severity is severity
    assert what in problem.what
    assert fix in problem.fix
    assert "mlx5_1:1" in problem.what
    assert exit_code(found) == (2 if severity is ERROR else 1)


def test_ports_of_one_kind_are_reported_together(node: Node) -> None:
    compute(node, 1)
    for at in range(1, 12):
        node.hca(f"mlx5_{at}", hca_type="MT4129")
        node.port(f"mlx5_{at}", link="InfiniBand", state="1: DOWN", phys="2: Polling")
    (problem,) = problems_of(node.probe())
    assert "and 4 more are DOWN" in problem.what
    assert "1 of 12" in problem.what


@pytest.mark.parametrize("phys", ["2: Polling", "3: Disabled"])
def test_second_ports_that_no_card_has_in_use_are_not_cabled(node: Node, phys: str) -> None:
    for at in range(4):
        node.hca(f"mlx5_{at}", hca_type="MT4125")
        node.port(f"mlx5_{at}", 1, link="InfiniBand")
        node.port(f"mlx5_{at}", 2, link="InfiniBand", state="1: DOWN", phys=phys)
    (problem,) = problems_of(node.probe())
    assert problem.severity is WARNING
    assert "not cabled?" in problem.what
    assert "fabric.exclude: [mlx5_0:2" in problem.fix
    assert not problems_of(node.probe(exclude=[f"mlx5_{at}:2" for at in range(4)]))
    # A single card that differs is a fault.
    node.hca("mlx5_4", hca_type="MT4125")
    node.port("mlx5_4", 1, link="InfiniBand", state="1: DOWN", phys="2: Polling")
    node.port("mlx5_4", 2, link="InfiniBand", state="1: DOWN", phys="2: Polling")
    assert exit_code(node.probe()) == 2


def test_an_unnamed_speed_is_not_believed(node: Node) -> None:
    node.hca("mlx5_0", hca_type="MT4129")
    node.port("mlx5_0", link="InfiniBand", rate="10 Gb/sec (4X SDR)")
    found = node.probe()
    assert not problems_of(found)
    assert "no name for the port's speed" in words(found.problems)


def test_a_roce_port_without_an_address_beside_others(node: Node) -> None:
    for at in range(3):
        node.hca(f"mlx5_{at}", hca_type="MT4129")
        node.port(f"mlx5_{at}", gids=classical(f"10.{at}.0.5", f"eth{at}"))
    node.hca("mlx5_3", hca_type="MT4129")
    gids = {0: (LINK_LOCAL, V1, "eth3"), 1: (LINK_LOCAL, V2, "eth3")}
    node.port("mlx5_3", gids=gids)
    found = node.probe()
    (problem,) = problems_of(found)
    assert problem.severity is ERROR
    assert "eth3 has no IPv4/IPv6 address" in problem.what
    assert "3 of 4" in problem.what
    assert summary(found) == "1 problem, RDMA over 3 of 4 ports (Ethernet MT4129)"


def own_first(netdev: str, *addresses: str) -> dict[int, GidRow]:
    """A table in which 169.254.7.9 stands before these."""
    rows: list[GidRow] = [(LINK_LOCAL, V1, netdev), (LINK_LOCAL, V2, netdev)]
    for address in ("169.254.7.9", *addresses):
        rows += [(mapped(address), kind, netdev) for kind in (V1, V2)]
    return dict(enumerate(rows))


def test_a_roce_port_that_no_dhcp_server_answered(node: Node) -> None:
    node.hca("mlx5_0", hca_type="MT4129")
    node.port("mlx5_0", gids=own_first("eth0"))
    node.hca("mlx5_1", hca_type="MT4129")
    node.port("mlx5_1", gids=classical("10.1.0.5", "eth1"))
    found = node.probe()
    (problem,) = problems_of(found)
    assert problem.severity is ERROR
    assert "eth0 has no IPv4/IPv6 address but 169.254.7.9" in problem.what
    assert "1 of 2" in problem.what
    assert used(found) == ["mlx5_1:1"]
    assert found.env["NCCL_SOCKET_IFNAME"] == "=eth1"
    # Two machines on one cable may be meant so.
    alone = node.probe(include=["mlx5_0"])
    assert used(alone) == ["mlx5_0:1"]
    (problem,) = problems_of(alone)
    assert problem.severity is WARNING
    assert "only peers on the same segment" in problem.what


def test_an_address_that_leads_nowhere_before_one_that_does(node: Node) -> None:
    for at in range(2):
        node.hca(f"mlx5_{at}", hca_type="MT4129")
        node.port(f"mlx5_{at}", gids=own_first(f"eth{at}", f"10.{at}.0.5"))
    found = node.probe(nccl="2.27.3")
    problems = problems_of(found)
    assert [problem.severity for problem in problems] == [WARNING, WARNING]
    assert "mlx5_0:1" in problems[0].what
    assert "169.254.7.9" in problems[0].what
    assert found.env["NCCL_IB_GID_INDEX"] == "5"
    assert [hca.gid_index for hca in found.hcas] == [5, 5]
    assert [network.addresses for network in found.networks] == [("10.0.0.5",), ("10.1.0.5",)]


def test_an_address_outside_of_the_networks_that_are_included(node: Node) -> None:
    for at in range(2):
        node.hca(f"mlx5_{at}", hca_type="MT4129")
        table = classical(f"192.168.{at}.5", f"eth{at}")
        table |= {4: (mapped(f"10.{at}.0.5"), V2, f"eth{at}")}
        node.port(f"mlx5_{at}", gids=table)
    found = node.probe(include=["10.0.0.0/16", "10.1.0.0/16"], nccl="2.27.3")
    assert not problems_of(found)
    said = words(found.problems)
    assert "mlx5_0:1: NCCL would take 192.168.0.5 (GID index 3)" in said
    assert "in none of the networks" in said
    assert found.env["NCCL_IB_GID_INDEX"] == "4"


def test_interfaces_of_different_mtu(node: Node) -> None:
    for at, mtu in enumerate((9000, 1500)):
        folder = f"sys/class/net/eth{at}"
        for name, text in {"ifindex": str(at + 1), "type": "1", "mtu": str(mtu)}.items():
            node.file(f"{folder}/{name}", f"{text}\n")
        node.hca(f"mlx5_{at}")
        node.port(f"mlx5_{at}", gids=classical(f"10.{at}.0.5", f"eth{at}"))
    assert "different MTUs (1500, 9000)" in words(problems_of(node.probe()))


def test_a_close_choice_is_a_warning_and_a_clear_one_is_not(node: Node) -> None:
    for at, (model, rate) in enumerate((("MT4129", 200), ("MT4123", 200))):
        node.hca(f"mlx5_{at}", hca_type=model)
        node.port(f"mlx5_{at}", link="InfiniBand", rate=f"{rate} Gb/sec (4X HDR)")
    (problem,) = problems_of(node.probe())
    assert "not used: InfiniBand MT4129: 1 port of 200 Gb/s" in problem.what
    assert "fabric.include" in problem.fix
    assert not problems_of(node.probe(exclude=["mlx5_1"]))


def test_rules_that_name_nothing(node: Node) -> None:
    compute(node)
    (problem,) = problems_of(node.probe(exclude=["mlx5_9"]))
    assert "mlx5_9, which is not an HCA" in problem.what


def test_more_ports_than_nccl_takes(node: Node) -> None:
    compute(node, 33)
    assert "at most 32" in words(problems_of(node.probe()))
    assert "at most 16" in words(problems_of(node.probe(nccl="2.14.3")))
    assert not problems_of(node.probe(exclude=["mlx5_0"]))


@pytest.mark.parametrize(
    ("os_id", "fix"),
    [
        ("ubuntu", "apt install libibverbs1 ibverbs-providers"),
        ("rocky", "dnf install libibverbs"),
        ("sles", "zypper install libibverbs1"),
        ("nixos", "apt install libibverbs1"),
    ],
)
def test_libraries_that_are_missing(node: Node, os_id: str, fix: str) -> None:
    compute(node)
    # Without any folder of libraries nothing is known of them.
    assert not problems_of(node.probe())
    node.file("etc/os-release", f'NAME=x\nID="{os_id}"\n')
    node.file("usr/lib/x86_64-linux-gnu/libc.so.6", "")
    found = problems_of(node.probe(), ERROR)
    assert [problem.what.split()[0] for problem in found] == ["libibverbs.so.1", "libmlx5.so.1"]
    assert fix in found[0].fix
    for name in ("libibverbs.so.1", "libmlx5.so.1"):
        node.file(f"usr/lib/x86_64-linux-gnu/{name}", "")
    assert not problems_of(node.probe())
    assert "librdmacm" in words(node.probe().problems)


def test_a_folder_that_the_administrator_gave_to_the_linker(node: Node) -> None:
    node.file("usr/lib/libc.so.6", "")
    node.file("etc/ld.so.conf.d/ofed.conf", "# OFED\n/opt/ofed/lib64\n")
    node.file("opt/ofed/lib64/libibverbs.so.1", "")
    found = software_of(FsRoot(node.root)).libraries
    assert found["libibverbs.so.1"] == "/opt/ofed/lib64/libibverbs.so.1"


@pytest.mark.parametrize(
    ("memlock", "nofile", "severity", "word"),
    [
        ("8388608", "1048576", ERROR, "LimitMEMLOCK=infinity"),
        ("68719476736", "1048576", WARNING, "LimitMEMLOCK=infinity"),
        ("unlimited", "1024", WARNING, "LimitNOFILE"),
    ],
)
def test_limits_as_jobs_have_them(
    node: Node, memlock: str, nofile: str, severity: Severity, word: str
) -> None:
    limits = LIMITS.format(memlock=memlock, nofile=nofile)
    node.file("sys/fs/cgroup/system.slice/muster-agent.service/cgroup.procs", "77\n78\n")
    node.file("proc/77/limits", limits)
    node.file("proc/77/status", "Name:\tmuster\nUid:\t990\t990\t990\t990\n")
    # Nobody needs more where there is neither HCA nor GPU.
    assert not problems_of(node.probe())
    compute(node)
    (problem,) = problems_of(node.probe())
    assert problem.severity is severity
    assert word in problem.fix
    assert "pid 77" in problem.what


def test_an_agent_that_is_root_lifts_the_limit_for_its_jobs(node: Node) -> None:
    node.file("sys/fs/cgroup/system.slice/muster-agent.service/cgroup.procs", "77\n")
    node.file("proc/77/limits", LIMITS.format(memlock="8388608", nofile="524288"))
    node.file("proc/77/status", "Uid:\t0\t0\t0\t0\n")
    assert limits_of(FsRoot(node.root)).memlock == UNLIMITED


def test_a_unit_that_does_not_run_is_judged_by_its_file(node: Node) -> None:
    unit = "etc/systemd/system/muster-agent.service"
    node.file(unit, "[Service]\nLimitNOFILE=64K\n")
    limits = limits_of(FsRoot(node.root))
    assert (limits.memlock, limits.nofile) == (8 << 20, 64 << 10)
    node.file(f"{unit}.d/10-rdma.conf", "[Service]\nLimitMEMLOCK=1G:infinity\n")
    assert limits_of(FsRoot(node.root)).memlock == UNLIMITED
    node.file(f"{unit}.d/20-files.conf", "[Service]\nLimitNOFILE=1024\n")
    compute(node)
    assert "nofile of the unit file /etc/systemd" in words(problems_of(node.probe()))


def gpu_node(node: Node) -> None:
    """A GPU and an HCA below one switch."""
    switch = "pci0000:00/0000:00:01.0/0000:01:00.0"
    node.gpu(f"{switch}/0000:02:00.0/0000:03:00.0")
    path = f"{switch}/0000:02:01.0/0000:04:00.0"
    node.hca("mlx5_0", path=path, kind="0x020700", hca_type="MT4129")
    node.port("mlx5_0", link="InfiniBand")


@pytest.mark.parametrize(
    ("files", "way"),
    [
        ({"sys/module/nvidia_peermem/version": "550.54\n"}, "peermem"),
        ({"sys/kernel/mm/memory_peers/nv_mem/version": "1.3\n"}, "peermem"),
        ({"proc/driver/nvidia/version": "NVRM: UNIX Open Kernel Module 550.54.15 x\n"}, "dmabuf"),
        ({"proc/driver/nvidia/version": "NVRM: NVIDIA UNIX x86_64 Kernel 550.54.15\n"}, "none"),
        ({}, None),
    ],
)
def test_paths_from_hcas_to_gpu_memory(node: Node, files: dict[str, str], way: str | None) -> None:
    gpu_node(node)
    node.file("proc/sys/kernel/osrelease", "6.8.0-40-generic\n")
    for path, text in files.items():
        node.file(path, text)
    found = node.probe()
    assert found.software.gpudirect == way
    assert [problem.severity for problem in problems_of(found)] == (
        [WARNING] if way == "none" else []
    )
    if way == "none":
        assert "nvidia-peermem" in problems_of(found)[0].fix
        assert found.software.nvidia_driver == "550.54.15"


@pytest.mark.parametrize(("control", "redirects"), [(0x1D, True), (0x00, False), (0x01, False)])
def test_bridges_that_send_traffic_to_the_cpu(node: Node, control: int, redirects: bool) -> None:
    gpu_node(node)
    config = bytearray(4096)
    # A capability before it: its next one is at 0x140.
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x140 << 20).to_bytes(4, "little")
    config[0x140:0x144] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x146:0x148] = control.to_bytes(2, "little")
    node.file("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/config", bytes(config))
    found = problems_of(node.probe())
    assert [("ACS" in problem.what, "0000:02:00.0" in problem.what) for problem in found] == (
        [(True, True)] if redirects else []
    )


@pytest.mark.parametrize("size", [None, 64, 256])
def test_bridges_of_which_it_is_not_known(node: Node, size: int | None) -> None:
    """A process that is not root reads 64 bytes of a configuration space, of an old bridge's 256
    there are no more."""
    gpu_node(node)
    folder = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    for bridge in ("/..", "", "/0000:02:00.0", "/0000:02:01.0"):
        node.file(f"{folder}{bridge}/config", bytes(4096))
    assert "ACS" not in words(node.probe().problems)
    config = node.root / f"{folder}/0000:02:00.0/config"
    config.unlink()
    if size is not None:
        config.write_bytes(bytes(size))
    found = node.probe()
    said = [problem for problem in found.problems if "ACS" in problem.what]
    assert [problem.severity for problem in said] == ([] if size == 256 else [Severity.INFO])
    assert all("0000:02:00.0" in it.what and "as root" in it.fix for it in said)
    assert exit_code(found) == 0


@pytest.mark.parametrize(
    ("text", "severity", "word"),
    [
        ("NCCL_IB_HCA=mlx5\n", WARNING, "NCCL_IB_HCA=mlx5"),
        ("NCCL_IB_DISABLE=1\n", ERROR, "NCCL uses TCP"),
        ("NCCL_NET = Socket\n", ERROR, "NCCL uses TCP"),
        ("NCCL_IB_GID_INDEX=0\n", WARNING, "would choose 3"),
        ("# NCCL_IB_DISABLE=1\nNCCL_IB_DISABLE=0\nNCCL_IB_GID_INDEX=3\nnonsense\n", None, ""),
        ("NCCL_IB_TIMEOUT=22 # fabric\nNCCL_IB_GID_INDEX=-1\n", None, ""),
    ],
)
@pytest.mark.parametrize("file", ["etc/nccl.conf", "home/ada/.nccl.conf"])
def test_nccl_s_own_files(
    node: Node, file: str, text: str, severity: Severity | None, word: str
) -> None:
    node.hca("mlx5_0")
    node.port("mlx5_0", gids=classical("10.0.0.5", "eth0"))
    node.file(file, text)
    found = problems_of(node.probe(home="/home/ada"))
    assert [problem.severity for problem in found] == ([severity] if severity else [])
    assert all(word in problem.what and f"/{file}" in problem.fix for problem in found)


def test_anybody_s_file_where_the_user_is_not_known(node: Node) -> None:
    node.file("home/ada/.nccl.conf", "NCCL_IB_DISABLE=1\n")
    node.file("root/.nccl.conf", "NCCL_NET=Socket\n")
    assert set(software_of(FsRoot(node.root)).nccl_conf) == {"NCCL_IB_DISABLE", "NCCL_NET"}
    assert set(software_of(FsRoot(node.root), home="/root").nccl_conf) == {"NCCL_NET"}


def test_the_user_s_file_comes_before_the_machine_s(node: Node) -> None:
    node.file("etc/nccl.conf", "NCCL_IB_DISABLE=1\n")
    node.file("home/ada/.nccl.conf", "NCCL_IB_DISABLE=0\n")
    conf = software_of(FsRoot(node.root), home="/home/ada").nccl_conf
    assert conf == {"NCCL_IB_DISABLE": "0 (from /home/ada/.nccl.conf)"}


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("127.0.0.1 localhost\n127.0.1.1 gpu-07.lab gpu-07\n", "127.0.1.1"),
        ("127.0.0.1 localhost gpu-07\n", "127.0.0.1"),
        ("::1 gpu-07\n", "::1"),
        ("10.0.0.7 gpu-07\n127.0.1.1 gpu-07\n", None),
        ("#127.0.1.1 gpu-07\n", None),
        ("127.0.1.1 gpu-070\n", None),
        ("127.0.1.1\n\n", None),
    ],
)
def test_the_own_name(node: Node, hosts: str, found: str | None) -> None:
    node.file("etc/hosts", hosts)
    node.file("etc/hostname", "gpu-07\n")
    assert local_name(FsRoot(node.root), "gpu-07") == found
    assert not problems_of(node.probe())
    compute(node)
    text = words(problems_of(node.probe()))
    assert (f"own name is {found}" in text) if found else not text


def test_an_index_that_this_nccl_cannot_give_to_all(node: Node) -> None:
    for at in range(2):
        gids = classical(f"10.{at}.0.5", f"eth{at}")
        if at:
            gids = {index + 2: row for index, row in gids.items() if index > 1}
            gids |= {0: (LINK_LOCAL, V1, "eth1"), 1: (LINK_LOCAL, V2, "eth1")}
        node.hca(f"mlx5_{at}")
        node.port(f"mlx5_{at}", gids=gids)
    assert not problems_of(node.probe(nccl="2.26.2"))
    (problem,) = problems_of(node.probe(nccl="2.20.5"))
    assert problem.severity is ERROR
    assert "mlx5_0:1 needs 3, mlx5_1:1 needs 5" in problem.what


def test_the_nccl_of_the_jobs_interpreter_is_found_without_it(node: Node, tmp_path: Path) -> None:
    packages = "opt/train/lib/python3.11/site-packages"
    node.file(f"{packages}/nvidia_nccl_cu12-2.20.5.dist-info/METADATA", "")
    node.hca("mlx5_0")
    node.port("mlx5_0", gids=classical("10.0.0.5", "eth0"))
    found = node.probe(python="/opt/train/bin/python")
    assert (found.software.nccl, found.software.nccl_source) == ("2.20.5", f"/{packages}")
    assert found.env["NCCL_IB_GID_INDEX"] == "3"
    # The given version wins; without either a new one is assumed.
    assert "NCCL_IB_GID_INDEX" not in node.probe(python="/opt/train/bin/python", nccl="2.27.3").env
    unknown = node.probe(python="/opt/other/bin/python")
    assert "NCCL_IB_GID_INDEX" not in unknown.env
    assert "not known" in words(unknown.problems)
    node.link("usr/lib/x86_64-linux-gnu/libnccl.so.2", "libnccl.so.2.18.3")
    assert node.probe().software.nccl == "2.18.3"


def test_software_is_reported(node: Node) -> None:
    node.file("sys/module/mlx5_core/version", "24.10-1.1.4\n")
    node.file("sys/module/ib_uverbs/refcnt", "0\n")
    found = software_of(FsRoot(node.root))
    assert found.ofed == "24.10-1.1.4"
    assert found.modules == {"mlx5_core": "24.10-1.1.4", "ib_uverbs": ""}
    node.file("sys/module/mlx5_core/version", "5.0-0\n")
    assert software_of(FsRoot(node.root)).ofed is None


def test_cards_without_a_driver_beside_one_with(node: Node) -> None:
    for bus in (1, 2):
        node.pci(f"pci0000:00/0000:00:0{bus}.0/0000:0{bus}:00.0", "0x020700", "15b3", "1021")
    node.pci("pci0000:00/0000:00:03.0/0000:03:00.0", "0x020000", "15b3", "101d")
    node.pci("pci0000:00/0000:00:04.0/0000:04:00.0", "0x020000", "8086", "1593")
    virtual = node.pci("pci0000:00/0000:00:05.0/0000:05:00.1", "0x020700", "15b3", "101e")
    node.link(f"{virtual}/physfn", "../0000:05:00.0")
    found = node.probe()
    (problem,) = problems_of(found)
    assert "2 InfiniBand PCI functions (15b3:1021)" in problem.what
    assert "mlx5_ib" in problem.fix
    assert "0000:03:00.0" in words(found.problems)
    assert "05:00.1" not in words(found.problems)
    assert used(found) == []


@pytest.mark.parametrize(
    ("single_team", "severity"), [(False, Severity.WARNING), (True, Severity.INFO)]
)
def test_one_user_for_all_jobs_is_said(
    node: Node, severity: Severity, *, single_team: bool
) -> None:
    compute(node)
    before = probe(node.root, ProbeOptions()).problems
    user = JobUser("trainer", 1001, frozenset({1001}), "/home/trainer")
    asked = ProbeOptions(user=user, single_team=single_team)
    (said,) = [it for it in probe(node.root, asked).problems if it not in before]
    assert said.severity is severity
    assert "all jobs run as trainer" in said.what
    assert "users are not kept apart" in said.what
    agent = ProbeOptions(user=user, single_team=single_team, agent=True)
    agents = probe(node.root, agent).problems
    assert (said in agents) == (not single_team)


def test_an_interpreter_that_the_jobs_user_cannot_reach_is_named() -> None:
    user = JobUser("trainer", 65_001, frozenset({65_001}), "/home/trainer")
    # pytest's own folders let nobody else pass.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o711)
        python = folder / "closed/bin/python"
        python.parent.mkdir(parents=True)
        python.touch()
        for path in (python.parent, python.parents[1]):
            path.chmod(0o755)
        link = folder / "python"
        link.symlink_to(python)
        assert list(of_python(user, str(link))) == []
        python.parents[1].chmod(0o700)
        (said,) = of_python(user, str(link))
        assert f"trainer, whom jobs run as, cannot enter {python.parents[1]}" in said.what
        (gone,) = of_python(user, str(folder / "none"))
        assert "No such file" in gone.what


@pytest.mark.parametrize(
    ("file", "text", "processes_max", "missing", "severity"),
    [
        ("pids/cgroup.procs", "", None, ("memory", "cpu", "pids"), Severity.INFO),
        ("pids/cgroup.procs", "", 20_000, ("pids", "memory", "cpu"), WARNING),
        ("unified/cgroup.controllers", "\n", 20_000, ("pids", "memory", "cpu"), WARNING),
        ("cgroup.controllers", "cpu memory\n", 20_000, ("pids",), WARNING),
        ("cgroup.controllers", "cpu memory pids\n", 20_000, (), WARNING),
        ("unified/cgroup.controllers", "cpu pids\n", 20_000, ("memory",), Severity.INFO),
    ],
)
def test_limits_that_nobody_enforces_are_reported(
    node: Node,
    file: str,
    text: str,
    processes_max: int | None,
    missing: tuple[str, ...],
    severity: Severity,
) -> None:
    """A limit that the operator has set is worth a warning."""
    compute(node)
    node.file(f"sys/fs/cgroup/{file}", text)
    found = probe(node.root, ProbeOptions(processes_max=processes_max)).problems
    said = [f"limits of jobs for {LIMITED[it]}: not enforced here: the {it} c" for it in missing]
    assert all(it.what.startswith(text) for it, text in zip(found, said, strict=True))
    severities = [severity, *[Severity.INFO] * (len(missing) - 1)][: len(missing)]
    assert [problem.severity for problem in found] == severities


def test_devices_that_nobody_closes_are_reported(node: Node) -> None:
    compute(node)
    node.file("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
    (found,) = probe(node.root, ProbeOptions(open_devices="shims are forked")).problems
    assert (found.severity, found.fix.split(",")[0]) == (
        Severity.INFO,
        "run the agent as root under systemd",
    )
    assert "limits of jobs for devices: not enforced here: shims are forked" in found.what


def test_what_does_not_keep_jobs_apart_is_reported(node: Node) -> None:
    compute(node)
    before = probe(node.root, ProbeOptions()).problems
    asked = ProbeOptions(not_apart={FENCE: "there is no nft on this node"})
    (said,) = [it for it in probe(node.root, asked).problems if it not in before]
    assert said.what.startswith("fence: not enforced here: there is no nft on this node, and who")
    assert "nftables" in said.fix
