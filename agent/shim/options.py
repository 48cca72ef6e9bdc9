"""The options of a shim, with the defaults for a node."""

from __future__ import annotations

from collections.abc import Mapping


class Options:
    """Options of one shim; times in seconds. `cgroup` false: only the sub-reaper holds the
    processes.
    """

    __slots__ = (
        "cgroup",
        "cgroup_parent",
        "limits",
        "linger_s",
        "orphan_s",
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
        limits: Mapping[str, str] | None = None,
    ) -> None:
        self.cgroup = cgroup
        self.cgroup_parent = cgroup_parent
        # After so long without an agent and without a program, the task counts as abandoned.
        self.orphan_s = orphan_s
        # After its end and so long without a connection, the shim exits: the exit record has
        # everything.
        self.linger_s = linger_s
        # A process that survives SIGKILL for so long is held by the kernel.
        self.unkillable_s = unkillable_s
        # SIGTERM ends the task, as the service manager intends, instead of being ignored.
        self.sigterm = sigterm
        # Files of the task's cgroup and their content, such as memory.max.
        self.limits = limits or {}

    @classmethod
    def of(cls, wish: Mapping[str, object]) -> Options:
        """The options in a request, and defaults for the rest."""
        return cls(**{name: wish[name] for name in cls.__slots__ if name in wish})  # type: ignore[arg-type]
