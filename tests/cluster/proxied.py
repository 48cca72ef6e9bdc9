"""A cluster whose agents each reach their coordinator over a bad network of their own."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from examples.local_cluster import LocalCluster
from examples.rig.proxy import Flow, Proxy, Way

COUNT = """
echo $$ >> "pids.$MUSTER_NODE_RANK"
i=0
until [ -e go ]; do i=$((i+1)); echo "line $i of $MUSTER_NODE_RANK"; sleep 0.01; done
echo "$i" > "count.$MUSTER_NODE_RANK"
"""
"""Writes numbered lines until it may end, then how many; says who it is, so a second run shows."""

SWALLOW = Way(flow=Flow.SWALLOW)


@dataclass
class ProxiedCluster(LocalCluster):
    """A LocalCluster; `proxies` has each node's way to the coordinator by the node's name."""

    heartbeat_s: float = 1.0
    lease_s: float = 120.0
    proxies: dict[str, Proxy] = field(default_factory=dict)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.env = {
            **self.env,
            "MUSTER_COORDINATOR_HEARTBEAT_S": f"{self.heartbeat_s:g}",
            "MUSTER_COORDINATOR_LEASE_S": f"{self.lease_s:g}",
        }
        super().__post_init__()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._open.close()

    def _place(self, number: int) -> dict[str, object]:
        proxy = Proxy(("127.0.0.1", self.port), seed=number)
        self.proxies[f"node-{number}"] = self._open.enter_context(proxy)
        return {**super()._place(number), "coordinator": f"http://127.0.0.1:{proxy.port}"}

    def link(self, node: str) -> str:
        """Return the state of a node's connection, as the coordinator shows it."""
        return self.client().node(node).link

    def said(self, node: str, text: str) -> int:
        """Count the lines with `text` in the log of a node's agent."""
        return self.nodes[node].log.read_text().count(text)


def whole(printed: str, folder: Path, rank: int) -> bool:
    """True if a log has every line that COUNT wrote on a node, once and in order."""
    count = int((folder / f"count.{rank}").read_text())
    return printed == "".join(f"line {n} of {rank}\n" for n in range(1, count + 1))
