"""A node with one GPU, of which a driver of ours says what a test wants."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from examples.local_cluster import LocalCluster

# A stand-in for `pynvml`. It reads its answers from files; each query of used memory leaves a mark.
DRIVER = """
from pathlib import Path
from types import SimpleNamespace

class NVMLError(Exception):
    pass

def _refused(*_):
    raise NVMLError("Not Supported")

nvmlMemory_v2 = 2
here = Path(__file__).parent

def nvmlDeviceGetMemoryInfo(_, version=1):
    if version == 1:
        return SimpleNamespace(total=80 << 30, used=1 << 30)
    used = int((here / "memory").read_text())
    if used:
        (here / "looked").touch()
    return SimpleNamespace(total=80 << 30, used=used)

def nvmlDeviceGetUtilizationRates(_):
    said = (here / "use").read_text()
    return SimpleNamespace(gpu=int(said)) if said else _refused()

nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetPciInfo = lambda _: SimpleNamespace(busId="00000000:F0:00.0")
nvmlDeviceGetName = lambda _: "NVIDIA H100 80GB HBM3"
nvmlDeviceGetUUID = lambda _: "GPU-00000000-0000-0000-0000-000000000001"
nvmlDeviceGetMigMode = _refused
nvmlDeviceGetComputeRunningProcesses = lambda _: []
"""


class PlantedGpu:
    """The driver's answers for a planted GPU. At first its memory is free, and its utilisation
    cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.driver = folder
        folder.mkdir(parents=True)
        (folder / "pynvml.py").write_text(DRIVER)
        self.memory_in_use(0)
        self._say("use", "")

    def memory_in_use(self, size: int) -> None:
        """In bytes."""
        self._say("memory", str(size))

    def computes(self, percent: int) -> None:
        """In so much of the time."""
        self._say("use", str(percent))

    def looked(self) -> bool:
        """True if somebody has seen memory in use."""
        return (self.driver / "looked").exists()

    def _say(self, what: str, text: str) -> None:
        """At once, so that nobody reads half of it."""
        new = self.driver / f"{what}.new"
        new.write_text(text)
        new.rename(self.driver / what)


@dataclass
class OneGpu(LocalCluster):
    """A single node, whose agent asks this machine's driver, which is the planted one."""

    agents: int = 1
    gpu: PlantedGpu = field(init=False)

    def __post_init__(self) -> None:
        self.gpu = PlantedGpu(self.root / "driver")
        super().__post_init__()

    def base_env(self) -> dict[str, str]:
        return {**super().base_env(), "PYTHONPATH": str(self.gpu.driver)}

    def _place(self, number: int) -> dict[str, object]:
        return {**super()._place(number), "gpus": "auto"}
