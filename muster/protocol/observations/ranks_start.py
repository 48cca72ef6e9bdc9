"""The start of a node's ranks by torchrun: the method, the reason, and the time of each part."""

from __future__ import annotations

import msgspec


class RanksStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The start of torchrun's ranks on a node: `method` is fork or exec, `why` is the reason
    for exec.

    Seconds: the import of torch, the import of the job's modules, the proof that forks are safe,
    and the fork of the first rank.
    """

    method: str
    why: str = ""
    import_s: float = 0.0
    preload_s: float = 0.0
    check_s: float = 0.0
    fork_s: float = 0.0
