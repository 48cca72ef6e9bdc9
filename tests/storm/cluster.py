"""The cluster of a storm: machines in namespaces, each agent behind a proxy of its own, and each
daemon with its state on a small disk of its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from examples.local_cluster import ClusterError
from examples.namespace_cluster import PORT, NamespaceCluster
from examples.rig.proxy import Proxy

HEARTBEAT_S, LEASE_S = 1.0, 15.0
PROGRAM = Path(__file__).with_name("program.py")
DISK_BYTES = 96 << 20
COORDINATOR = "coordinator"


@dataclass
class StormCluster(NamespaceCluster):
    """`proxies` has each node's way to the coordinator by the node's name. What is on the disks
    when all is over is kept in `kept`."""

    seed: int = 0
    proxies: dict[str, Proxy] = field(default_factory=dict)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.env = {
            **self.env,
            "MUSTER_COORDINATOR_HEARTBEAT_S": f"{HEARTBEAT_S:g}",
            "MUSTER_COORDINATOR_LEASE_S": f"{LEASE_S:g}",
            "MUSTER_COORDINATOR_PREPARE_TIMEOUT_S": "60",
        }
        # Before any machine boots: it has what is mounted then.
        for name in (COORDINATOR, *(f"node-{n}" for n in range(1, self.agents + 1))):
            self._mount(self.disk(name))
        try:
            super().__post_init__()
        except BaseException:
            self._open.close()
            raise

    def disk(self, name: str) -> Path:
        """Return the state folder of a daemon."""
        return self.root / "state" / name

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._open.close()

    def _mount(self, disk: Path) -> None:
        disk.mkdir(parents=True)
        size = f"size={DISK_BYTES},mode=700"
        argv = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
        done = subprocess.run(argv, capture_output=True, check=False, text=True)
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)}: {done.stderr.strip()}")
        self._open.callback(self._unmount, disk)

    def _unmount(self, disk: Path) -> None:
        kept = self.root / "kept" / disk.name
        shutil.copytree(disk, kept, symlinks=True, ignore=_no_files, dirs_exist_ok=True)
        subprocess.run(["umount", "-l", str(disk)], check=True)

    def _init(self) -> None:
        super()._init()
        path = self.root / "config" / "coordinator.yaml"
        settings = yaml.safe_load(path.read_text())
        settings["state_dir"] = str(self.disk(COORDINATOR))
        settings["job_logs"] = {**settings.get("job_logs", {}), "free_bytes_min": 0}
        path.write_text(yaml.safe_dump(settings, sort_keys=False))

    def _place(self, number: int) -> dict[str, object]:
        address = self.head.address
        proxy = Proxy(
            (address, PORT),
            seed=self.seed * 100 + number,
            listen=(address, PORT + number),
            network=self.head.network,
        )
        self.proxies[f"node-{number}"] = self._open.enter_context(proxy)
        url = f"https://{address}:{proxy.port}"
        return {**super()._place(number), "coordinator": url}


def _no_files(folder: str, names: list[str]) -> set[str]:
    """Sockets, pipes, the room that a journal keeps, and files with holes larger than the disk: a
    copy would write the holes."""
    return {
        name
        for name in names
        if name.endswith(".reserve")
        or not ((path := Path(folder, name)).is_symlink() or path.is_file() or path.is_dir())
        or path.lstat().st_size > DISK_BYTES
    }


def job_of(folder: Path, kind: str, seconds: float) -> dict[str, object]:
    """The spec of a job that runs the program; `folder` is for its notes to the judge."""
    common: dict[str, object] = {
        "name": f"storm-{kind}",
        "workdir": str(folder),
        "retry": {"infra": 50, "backoff": "1s"},
        "stop": {"grace": "2s"},
        "time_limit": "2m",
    }
    argv = [str(PROGRAM), str(folder), f"{seconds:.1f}"]
    match kind:
        case "one":
            return {**common, "launcher": "none", "run": [sys.executable, *argv]}
        case "gang":
            return {**common, "nodes": 2, "launcher": "none", "run": [sys.executable, *argv]}
        case "torchrun":
            more = {"launcher": "torchrun", "nproc_per_node": 1, "run": [*argv, "torch"]}
            return {**common, "nodes": 2, **more}
        case _:
            raise ValueError(kind)
