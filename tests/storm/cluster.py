"""The cluster of a storm: machines in namespaces, each agent behind a proxy of its own."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from pathlib import Path

from examples.namespace_cluster import PORT, NamespaceCluster
from examples.rig.proxy import Proxy

HEARTBEAT_S, LEASE_S = 1.0, 15.0
PROGRAM = Path(__file__).with_name("program.py")


@dataclass
class StormCluster(NamespaceCluster):
    """`proxies` has each node's way to the coordinator by the node's name."""

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
        super().__post_init__()

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._open.close()

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


def job_of(folder: Path, kind: str, seconds: float) -> dict[str, object]:
    """The spec of a job that runs the program; `folder` is for what it tells the judge."""
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
