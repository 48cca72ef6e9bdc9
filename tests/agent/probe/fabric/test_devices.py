"""GPUs as jobs may be given them: by NVML, by the driver's files, and those that none is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.probe.fabric import gpus as read
from agent.probe.fabric.fs_root import FsRoot
from agent.probe.fabric.pci import functions
from muster.protocol.observations.gpus import GpuDevice
from tests.agent.probe.fabric.trees import Node

H100 = "NVIDIA H100 80GB HBM3"
BRIDGE = "pci0000:00/0000:00:01.0"


def uuid(number: int) -> str:
    return f"GPU-0000000{number}-0000-0000-0000-000000000000"


def address(number: int) -> str:
    return f"0000:0{number}:00.0"


def driver(node: Node, number: int, **more: str) -> None:
    fields = {"Model": H100, "GPU UUID": uuid(number), "Device Minor": str(number), **more}
    text = "".join(f"{name}: \t\t {value}\n" for name, value in fields.items())
    node.file(f"proc/driver/nvidia/gpus/{address(number)}/information", text)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Four cards in the PCI tree."""
    made = Node(tmp_path)
    for number in range(1, 5):
        made.gpu(f"{BRIDGE}/{address(number)}", numa=number // 3)
    return made


def test_usable_gpus_are_assigned_and_the_others_named(node: Node) -> None:
    driver(node, 1)
    driver(node, 2, **{"GPU Excluded": "Yes"})
    driver(node, 3)
    node.file("proc/driver/nvidia/capabilities/gpu3/mig/gi1/access", "")
    found = read.devices_of(FsRoot(node.root))
    assert [it.fault for it in found] == ["", read.EXCLUDED, read.MIG, read.NO_DRIVER]
    assert found[0] == GpuDevice(
        pci=address(1),
        uuid=uuid(1),
        model=H100,
        numa_node=0,
        path=("pci0000:00", "0000:00:01.0", address(1)),
    )
    assert [it.numa_node for it in found] == [0, 0, 1, 1]


def test_a_gpu_that_the_driver_has_not_woken_has_no_uuid(node: Node) -> None:
    driver(node, 1, **{"GPU UUID": "GPU-????????-????-????-????-????????????"})
    (found, *_) = read.devices_of(FsRoot(node.root))
    assert (found.uuid, found.fault) == ("", "")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"Model\n", b"GPU UUID: a,b\n" * 9])
def test_any_output_of_the_driver_is_accepted(node: Node, content: bytes) -> None:
    node.file(f"proc/driver/nvidia/gpus/{address(1)}/information", content)
    (found, *_) = read.devices_of(FsRoot(node.root))
    assert (found.pci, found.uuid) == (address(1), "")


def test_a_node_without_gpus_has_none(tmp_path: Path) -> None:
    assert read.devices_of(FsRoot(tmp_path)) == ()


def test_an_accelerator_of_another_maker_is_not_given(tmp_path: Path) -> None:
    made = Node(tmp_path)
    made.pci(f"{BRIDGE}/{address(1)}", "0x030200", "1002", "740f")
    assert read.devices_of(FsRoot(made.root)) == ()


class NVMLError(Exception):
    pass


@dataclass
class Card:
    """NVML's answers on one GPU; an exception stands for a call that fails."""

    number: int
    mig: int | Exception = field(default_factory=lambda: NVMLError("Not Supported"))
    uuid: str | Exception = ""
    handle: Exception | None = None
    users: tuple[int, ...] = ()


def answered(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def fake_nvml(cards: list[Card]) -> Any:
    def handle(index: int) -> Card:
        card = cards[index]
        return answered(card.handle or card)  # type: ignore[no-any-return]

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetPciInfo=lambda card: SimpleNamespace(busId=f"0000{address(card.number)}"),
        nvmlDeviceGetName=lambda _: H100.encode(),
        nvmlDeviceGetUUID=lambda card: answered(card.uuid or uuid(card.number)),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=80 << 30),
        nvmlDeviceGetMigMode=lambda card: (answered(card.mig), 0),
        nvmlDeviceGetComputeRunningProcesses=lambda card: [
            SimpleNamespace(pid=pid) for pid in card.users
        ],
    )


class Live(FsRoot):
    """A tree that is taken for this machine's, where NVML is asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.live = True


def test_nvml_says_more_and_what_it_does_not_show_is_not_given(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(node, 4)
    lost = NVMLError("GPU is lost")
    cards = [Card(1), Card(2, mig=1), Card(3, uuid=lost), Card(4, handle=lost)]
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(cards))
    found = read.devices_of(Live(node.root))
    assert [it.fault for it in found] == ["", read.MIG, "does not answer: GPU is lost", read.UNSEEN]
    assert found[0].memory_bytes == 80 << 30
    assert [it.uuid for it in found] == [uuid(1), uuid(2), "", ""]
    assert {it.model for it in found[:3]} == {H100}


def test_a_gpu_that_a_process_of_no_job_uses_is_busy_and_has_no_fault(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process belongs to a job only if it has a shim above it. The test's process has none, and
    another merely uses a shim's name."""
    name = "import ctypes; ctypes.CDLL(None).prctl(15, b'muster-shim')"
    run = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", f"{name}; {run}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shim:
        assert shim.stdout is not None
        of_a_job = int(shim.stdout.readline())
        try:
            users = ((os.getpid(),), (of_a_job, 1 << 30), ())
            cards = [Card(at + 1, users=pids) for at, pids in enumerate(users)]
            monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(cards))
            found = read.devices_of(Live(node.root))
        finally:
            os.kill(of_a_job, signal.SIGKILL)
            shim.kill()
    comm = Path("/proc/self/comm").read_text().strip()
    assert [it.busy for it in found[:3]] == [
        f"is used by process {os.getpid()} ({comm}), outside all jobs",
        "",
        "",
    ]
    assert not any(it.fault for it in found[:3])


def test_the_driver_is_read_if_nvml_fails(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(node, 1)
    broken = fake_nvml([])
    broken.nvmlDeviceGetCount = lambda: answered(NVMLError("Driver/library version mismatch"))
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    found = read.devices_of(Live(node.root))
    assert [bool(it.fault) for it in found] == [False, True, True, True]


@pytest.mark.parametrize(
    ("module", "tree", "cards", "lacks"),
    [
        (None, Live, 1, True),
        (fake_nvml([]), Live, 1, False),
        (None, FsRoot, 1, False),
        (None, Live, 0, False),
    ],
)
def test_gpus_without_the_module_that_asks_their_driver(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    tree: type[FsRoot],
    cards: int,
    lacks: bool,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    found = functions(FsRoot(node.root))[:cards]
    assert read.lacks_nvml(tree(node.root), found) is lacks


def test_a_copied_tree_is_never_asked_of_nvml(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(node, 1)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([Card(2)]))
    assert read.devices_of(FsRoot(node.root))[0].uuid == uuid(1)
    assert read.hold_nvml()


@pytest.mark.parametrize(
    ("says", "fault"),
    [
        ({}, ""),
        ({"rows": (0, 1, True, False)}, ""),
        ({"rows": (0, 1, False, True)}, read.REMAP_FAILED),
        ({"action": 0}, ""),
        (
            {"action": 1},
            "must be recovered, according to its driver: reset it (nvidia-smi --gpu-reset)",
        ),
        ({"action": 3}, ""),
        ({"errors": 0}, ""),
        ({"errors": 2}, "counts 2 uncorrectable ECC errors since its last reset: reset it"),
    ],
)
def test_a_gpu_that_is_not_sound_is_not_given(
    node: Node, monkeypatch: pytest.MonkeyPatch, says: dict[str, Any], fault: str
) -> None:
    nvml = fake_nvml([Card(1)])
    unsupported = NVMLError("Not Supported")
    nvml.nvmlDeviceGetRemappedRows = lambda _: answered(says.get("rows", unsupported))
    nvml.nvmlDeviceGetTotalEccErrors = lambda *_: answered(says.get("errors", unsupported))
    value = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=says.get("action")))
    nvml.nvmlDeviceGetFieldValues = lambda *_: [value]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read.devices_of(Live(node.root))[0].fault == fault
    assert bool(read.counted(fault)) is bool(fault)


def test_the_utilization_of_each_gpu(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml([Card(1), Card(2, uuid=NVMLError("lost")), Card(3, handle=NVMLError("lost"))])
    nvml.nvmlDeviceGetUtilizationRates = lambda card: SimpleNamespace(gpu=7 * card.number)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read.use_of(Live(node.root)) == {uuid(1): 7}
    nvml.nvmlDeviceGetUtilizationRates = lambda _: answered(NVMLError("Not Supported"))
    assert read.use_of(Live(node.root)) == {}
    nvml.nvmlDeviceGetCount = lambda: answered(NVMLError("Driver/library version mismatch"))
    assert read.use_of(Live(node.root)) == {}
    assert read.use_of(FsRoot(node.root)) == {}
