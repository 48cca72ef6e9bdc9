"""What may differ from one shim to the next, with the values that a node uses."""

from __future__ import annotations

from collections.abc import Mapping


class Options:
    """`cgroup` false: the sub-reaper alone. Times in seconds."""

    __slots__ = (
        "cgroup",
        "cgroup_parent",
        "linger_s",
        "orphan_s",
        "processes_max",
        "sigterm",
        "unkillable_s",
    )

    def __init__(
        self,
        cgroup: bool = True,
        cgroup_parent: str | None = None,
        orphan_s: float = 30.0,
        linger_s: float = 30.0,
        unkillable_s: float = 60.0,
        sigterm: bool = False,
        processes_max: int | None = None,
    ) -> None:
        self.cgroup = cgroup
        self.cgroup_parent = cgroup_parent
        # Without an agent and without a program for so long: it was forgotten.
        self.orphan_s = orphan_s
        # Ended, recorded, and nobody connected for so long: the record says all.
        self.linger_s = linger_s
        # After so many seconds of SIGKILL a process is held by the kernel.
        self.unkillable_s = unkillable_s
        # SIGTERM ends the task, as the service manager means it, instead of nothing.
        self.sigterm = sigterm
        # So many processes and threads may a task have; None: as many as the machine.
        self.processes_max = processes_max

    @classmethod
    def of(cls, wish: Mapping[str, object]) -> Options:
        """What a request says of them."""
        return cls(**{name: wish[name] for name in cls.__slots__ if name in wish})  # type: ignore[arg-type]
