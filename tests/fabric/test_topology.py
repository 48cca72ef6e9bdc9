"""Distance between two PCI functions."""

from __future__ import annotations

import pytest

from muster.fabric.model import AffinityClass, Gpu
from muster.fabric.topology import distance, is_flat, is_function, nearest, pairs, path_of, way

PIX, PXB, PHB = AffinityClass.PIX, AffinityClass.PXB, AffinityClass.PHB
NODE, SYS, UNKNOWN = AffinityClass.NODE, AffinityClass.SYS, AffinityClass.UNKNOWN

ROOT = "pci0000:00/0000:00:01.0"


@pytest.mark.parametrize(
    ("gpu", "hca", "numas", "meant"),
    [
        # One switch between them.
        (f"{ROOT}/01:00.0/02:00.0/03:00.0", f"{ROOT}/01:00.0/02:01.0/04:00.0", (0, 0), (PIX, 2)),
        # Two functions of a card, and two cards below one port.
        (f"{ROOT}/01:00.0", f"{ROOT}/01:00.1", (0, 0), (PIX, 0)),
        # Three switches.
        (
            f"{ROOT}/01:00.0/02:00.0/03:00.0/04:00.0/05:00.0",
            f"{ROOT}/01:00.0/02:01.0/06:00.0/07:00.0/08:00.0",
            (0, 0),
            (PXB, 6),
        ),
        (f"{ROOT}/01:00.0", "pci0000:00/0000:00:02.0/02:00.0", (0, 0), (PHB, 2)),
        (f"{ROOT}/01:00.0", "pci0000:80/0000:80:01.0/81:00.0", (0, 0), (NODE, 4)),
        (f"{ROOT}/01:00.0", "pci0000:80/0000:80:01.0/81:00.0", (0, 1), (SYS, 4)),
        (f"{ROOT}/01:00.0", "pci0000:80/0000:80:01.0/81:00.0", (-1, -1), (UNKNOWN, None)),
        (f"{ROOT}/01:00.0", "pci0000:80/0000:80:01.0/81:00.0", (None, 1), (UNKNOWN, None)),
        # Directly at the host bridge, as in many virtual machines.
        ("pci0000:00/00:05.0", "pci0000:00/00:06.0", (-1, -1), (PHB, 0)),
        # Another domain with the same bus numbers.
        (f"{ROOT}/01:00.0", "pci0001:00/0001:00:01.0/0001:01:00.0", (0, 0), (NODE, 4)),
        (f"{ROOT}/01:00.0", "pci10000:00/10000:00:01.0/10000:01:00.0", (0, 1), (SYS, 4)),
    ],
)
def test_distance(
    gpu: str,
    hca: str,
    numas: tuple[int | None, int | None],
    meant: tuple[AffinityClass, int | None],
) -> None:
    one, other = (path_of(f"sys/devices/{whole(text)}") for text in (gpu, hca))
    assert distance(one, other, *numas) == meant
    assert distance(other, one, *reversed(numas)) == meant


def whole(text: str) -> str:
    """The short form of the table above, with its domains."""
    return "/".join(
        part if part.count(":") > 1 or "pci" in part else f"0000:{part}" for part in text.split("/")
    )


def test_a_path_that_is_hidden_is_unknown() -> None:
    assert distance((), ("pci0000:00", "0000:00:01.0"), 0, 0) == (UNKNOWN, None)


def test_paths() -> None:
    assert path_of("sys/devices/pci0000:80/0000:80:02.2/0000:82:00.0/infiniband/mlx4_0") == (
        "pci0000:80",
        "0000:80:02.2",
        "0000:82:00.0",
    )
    assert path_of("sys/devices/pci10000:e0/10000:e0:01.0/10000:e1:00.0")[-1] == "10000:e1:00.0"
    # Behind another bus than PCI.
    assert path_of("sys/devices/LNXSYSTM:00/PNP0A08:00/pci0000:00/0000:00:1f.0")[0] == "pci0000:00"
    assert path_of("sys/devices/virtual/infiniband/rxe0") == ()
    assert is_function("0000:1a:00.0")
    assert not is_function("0000:1a:00.8")
    assert not is_function("1a:00.0")


def test_sixteen_gpus_in_four_groups_on_two_boards() -> None:
    """The matrix that `nvidia-smi topo -mp` prints on a DGX-2 (NVIDIA's GPUDirect Storage guide):
    pairs below one switch PIX, groups of four PXB, eight of a socket NODE, the rest SYS."""
    gpus = []
    for number in range(16):
        socket, group, pair = number // 8, number // 4, number // 2
        # A root port for each four, a switch for each two below a switch for all four.
        path = (
            f"pci0000:{group * 32:02x}",
            f"0000:{group * 32:02x}:00.0",
            f"0000:{group * 32 + 1:02x}:00.0",
            f"0000:{group * 32 + 2:02x}:{pair:02x}.0",
            f"0000:{group * 32 + 3 + pair % 2 * 8:02x}:00.0",
            f"0000:{group * 32 + 4 + pair % 2 * 8:02x}:{number % 2:02x}.0",
            f"0000:{group * 32 + 5 + number % 2 + pair % 2 * 8:02x}:00.0",
        )
        gpus.append(Gpu(index=number, pci=path[-1], numa_node=socket, pci_path=path))

    def class_of(one: int, other: int) -> AffinityClass:
        if one // 8 != other // 8:
            return SYS
        if one // 4 != other // 4:
            return NODE
        return PIX if one // 2 == other // 2 else PXB

    cells = 0
    for one in gpus:
        for other in gpus[one.index + 1 :]:
            kind, _ = distance(one.pci_path, other.pci_path, one.numa_node, other.numa_node)
            assert kind is class_of(one.index, other.index)
            cells += 1
    assert cells == 120


def test_the_nearest_comes_first() -> None:
    gpu = Gpu(index=0, pci="0000:01:00.0", numa_node=0, pci_path=path(ROOT, "0000:01:00.0"))
    far, near = path("pci0000:80/0000:80:01.0", "0000:81:00.0"), path(ROOT, "0000:01:00.1")
    found = pairs([gpu], [("far", far, 0), ("hidden", (), 0), ("near", near, 0)])
    assert [(pair.hca, pair.distance) for pair in found] == [
        ("near", PIX),
        ("far", NODE),
        ("hidden", UNKNOWN),
    ]


def test_a_flat_tree() -> None:
    gpus = [
        Gpu(index=n, pci=f"0000:0{n}:00.0", numa_node=-1, pci_path=below(n)) for n in range(1, 3)
    ]
    assert is_flat(gpus, [(below(5), -1)])
    # One GPU and one HCA: there is nothing to choose.
    assert not is_flat(gpus[:1], [(below(5), -1)])
    # A NUMA node is known.
    assert not is_flat(gpus, [(below(5), 0)])
    # Two below one root port.
    assert not is_flat(
        gpus, [(below(5), -1), (path("pci0000:00/0000:00:01.0", "0000:09:00.0"), -1)]
    )
    assert not is_flat([], [])


def path(parent: str, leaf: str) -> tuple[str, ...]:
    return path_of(f"sys/devices/{parent}/{leaf}")


def below(number: int) -> tuple[str, ...]:
    return path(f"pci0000:00/0000:00:0{number}.0", f"0000:0{number}:00.0")


@pytest.mark.parametrize(
    ("ways", "meant"),
    [
        # Each GPU has one of its own.
        ([[2, 400, 400, 400]], (0,)),
        ([[2, 400, 400, 400], [400, 400, 2, 400]], (0, 2)),
        # Two GPUs that share one; one GPU with two (dual-port cards).
        ([[2, 104], [2, 104]], (0,)),
        ([[104, 104, 400, 400]], (0, 1)),
        # DGX A100: equal classes, other hops.
        ([[104, 108]], (0,)),
        # Beyond the host bridge hops say nothing.
        ([[302, 306, 400, 402]], (0, 1)),
        ([[202, 206, 304]], (0, 1)),
        # Nothing is known: of one GPU, of one HCA, of all.
        ([[-1, -1], [2, 104]], (0,)),
        ([[-1, 304]], (1,)),
        ([[-1, -1], [-1, -1]], (0, 1)),
        ([[]], ()),
        ([], ()),
    ],
)
def test_the_nearest_hcas_of_some_gpus(ways: list[list[int]], meant: tuple[int, ...]) -> None:
    assert nearest(ways) == meant


def test_a_way_is_its_rank_as_one_number() -> None:
    gpus = [Gpu(index=0, pci="0000:01:00.0", numa_node=0, pci_path=("pci0000:00", "0000:01:00.0"))]
    ends = [
        ("near", gpus[0].pci_path, 0),
        ("far", ("pci0000:80", "0000:80:01.0", "0000:80:02.0", "0000:81:00.0"), 1),
    ]
    found = {pair.hca: way(pair) for pair in pairs(gpus, [*ends, ("hidden", (), None)])}
    assert found == {"near": 0, "far": 404, "hidden": -1}
