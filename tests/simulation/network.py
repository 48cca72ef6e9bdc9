"""The control links: connections in order and unreliable, real frames, and every way to lose them.

A direction that is blocked holds what is sent, as TCP does, until it is open again or the
connection is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from muster.protocol.ids import NodeName
from muster.protocol.link.codec import (
    CommandFrame,
    ProtocolError,
    ReportFrame,
    decode_command,
    decode_report,
    encode,
)
from muster.protocol.link.control_channel import Command, Report
from muster.protocol.link.sequencing import Link
from tests.simulation.world import World


@dataclass(slots=True)
class FrameFaults:
    """Probabilities, a frame: lost, sent twice, held up."""

    lost: float = 0.0
    repeated: float = 0.0
    delayed: float = 0.0
    slow: float = 0.0  # a latency of seconds


class Direction:
    """A direction of a connection: numbered frames in order; `None` is the end."""

    def __init__(self, network: Network, node: NodeName, *, up: bool) -> None:
        self.network = network
        self.node = node
        self.up = up
        self.silent = False  # half-open: the receiver gets nothing, and no end either
        self.taker: Callable[[bytes | None], None] | None = None
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._last = 0.0

    def put(self, data: bytes | None) -> None:
        network = self.network
        world = network.world
        faults = network.faults
        copies = 1
        latency = network.latency()
        if data is not None:
            if world.chance(faults.lost):
                world.met["frame_lost"] += 1
                return
            if world.chance(faults.repeated):
                world.met["frame_repeated"] += 1
                copies = 2
            if world.chance(faults.delayed):
                world.met["frame_delayed"] += 1
                latency += world.rng.uniform(0.5, 12.0)
        self._last = max(self._last, world.now + latency)
        for _ in range(copies):
            self._queue.append((self._last, data))
            world.at(self._last - world.now, self.pump)

    def pump(self) -> None:
        """Hand over what is due, unless nothing comes through now."""
        now = self.network.world.now
        queue = self._queue
        while queue and queue[0][0] <= now and not self._blocked():
            _, data = queue.popleft()
            if self.taker is not None:
                self.taker(data)

    def drop(self) -> None:
        """Lose what is on its way."""
        self._queue.clear()

    def _blocked(self) -> bool:
        return self.silent or self.network.blocked(self.node, up=self.up)


class Connection:
    """A websocket, seen from both of its ends."""

    def __init__(self, network: Network, node: NodeName) -> None:
        self.network = network
        self.node = node
        self.up = Direction(network, node, up=True)
        self.down = Direction(network, node, up=False)
        self.agent_link = Link()
        self.coordinator_link = Link()
        self.agent_open = True
        self.coordinator_open = True
        self.up.taker = self._reach_coordinator
        self.down.taker = self._reach_agent
        self.on_report: Callable[[Report], None] = lambda _: None
        self.on_command: Callable[[Command], None] = lambda _: None
        self.on_coordinator_end: Callable[[], None] = lambda: None
        self.on_agent_end: Callable[[], None] = lambda: None

    def send_report(self, report: Report) -> None:
        if self.agent_open:
            self.up.put(encode(ReportFrame(self.agent_link.next_seq(), report)))

    def send_command(self, command: Command) -> None:
        if self.coordinator_open:
            self.down.put(encode(CommandFrame(self.coordinator_link.next_seq(), command)))

    def close_agent(self, *, tell: bool = True) -> None:
        """Close the agent's end; the other end is notified if possible."""
        if self.agent_open:
            self.agent_open = False
            if tell:
                self.up.put(None)
            self._forget()

    def close_coordinator(self, *, tell: bool = True) -> None:
        if self.coordinator_open:
            self.coordinator_open = False
            if tell:
                self.down.put(None)
            self._forget()

    def reset(self) -> None:
        """Broken on the way: what was under way is lost, and both ends learn of it in time."""
        self.up.drop()
        self.down.drop()
        self.up.put(None)
        self.down.put(None)

    def _forget(self) -> None:
        if not self.agent_open and not self.coordinator_open:
            self.network.connections.pop(self, None)

    def _reach_coordinator(self, data: bytes | None) -> None:
        if not self.coordinator_open:
            if self.agent_open and data is not None:
                self.down.put(None)  # nobody listens there any more
            return
        if data is not None:
            try:
                frame = decode_report(data)
                if self.coordinator_link.accept(frame.seq):
                    self.on_report(frame.body)
                return
            except ProtocolError:
                self.network.world.met["gap_noticed"] += 1
        self.close_coordinator()
        self.on_coordinator_end()

    def _reach_agent(self, data: bytes | None) -> None:
        if not self.agent_open:
            if self.coordinator_open and data is not None:
                self.up.put(None)
            return
        if data is not None:
            try:
                frame = decode_command(data)
                if self.agent_link.accept(frame.seq):
                    self.on_command(frame.body)
                return
            except ProtocolError:
                self.network.world.met["gap_noticed"] += 1
        self.close_agent()
        self.on_agent_end()


@dataclass(slots=True)
class Cut:
    """Number of faults that block each direction of a node's network now."""

    up: int = 0
    down: int = 0


@dataclass(slots=True, eq=False)
class Network:
    """All links between the coordinator and the nodes."""

    world: World
    faults: FrameFaults = field(default_factory=FrameFaults)
    cuts: dict[NodeName, Cut] = field(default_factory=dict)
    connections: dict[Connection, None] = field(default_factory=dict)
    connected: Callable[[NodeName], None] = lambda _: None
    # Processes that are stopped read nothing: the kernel keeps it for them.
    coordinator_frozen: bool = False
    frozen: dict[NodeName, bool] = field(default_factory=dict)

    def latency(self) -> float:
        rng = self.world.rng
        if self.faults.slow and rng.random() < self.faults.slow:
            self.world.met["slow_frame"] += 1
            return rng.uniform(0.2, 4.0)
        return 0.0002 + rng.random() * 0.004

    def blocked(self, node: NodeName, *, up: bool) -> bool:
        cut = self.cuts[node]
        if up:
            return cut.up > 0 or self.coordinator_frozen
        return cut.down > 0 or self.frozen.get(node, False)

    def reachable(self, node: NodeName) -> bool:
        """True if a new connection could be made."""
        return not self.blocked(node, up=True) and not self.blocked(node, up=False)

    def connect(self, node: NodeName) -> Connection:
        connection = Connection(self, node)
        self.connections[connection] = None
        self.connected(node)
        return connection

    def cut(self, node: NodeName, for_s: float, *, up: bool, down: bool) -> None:
        """Let nothing through in the directions given, for so long."""
        self.cuts[node].up += up
        self.cuts[node].down += down
        self.world.at(for_s, partial(self._mend, node, up=up, down=down))

    def _mend(self, node: NodeName, *, up: bool, down: bool) -> None:
        cut = self.cuts[node]
        cut.up = max(0, cut.up - up)
        cut.down = max(0, cut.down - down)
        self.flow(node)

    def flow(self, node: NodeName | None = None) -> None:
        """Deliver what could not be delivered, where it now can be."""
        for connection in list(self.connections):
            if node is None or connection.node == node:
                connection.up.pump()
                connection.down.pump()

    def heal(self) -> None:
        """Nothing is blocked any more; what is half-open stays so, and has to be noticed."""
        self.faults = FrameFaults()
        for cut in self.cuts.values():
            cut.up = cut.down = 0
        self.flow()
