"""Why a node's part of a gang is refused: the words that both daemons and their users speak."""

from __future__ import annotations

import enum
from typing import Final


class RefusalCode(enum.StrEnum):
    """Codes of refusals. The words are stable: journals keep them, and scripts compare them.

    Nobody may rely on the list being whole: an agent of a later version may say another word, so
    that what comes from one is text (`Refusal.code`), and is compared with these.
    """

    # By a shim, which writes the words itself (agent/shim/status.py).
    NO_FOLDER = "no_folder"
    NO_PYTHON = "no_python"
    NO_TORCH = "no_torch"
    SETUP_FAILED = "setup_failed"
    USER_UNKNOWN = "user_unknown"
    ROOT_REFUSED = "root_refused"
    BOOTSTRAP_FAILED = "bootstrap_failed"
    # By a shim, or by an agent that cannot make one. NO_SPACE: a disk of the node is full.
    SPAWN_FAILED = "spawn_failed"
    NO_SPACE = "no_space"
    # By an agent, before there is a shim. GPU_BUSY: another task on the node has a GPU of this
    # one's.
    GPU_BUSY = "gpu_busy"
    GPU_GONE = "gpu_gone"
    GPU_DIRTY = "gpu_dirty"
    PREFLIGHT_FAILED = "preflight_failed"
    NO_PORTS = "no_ports"
    NO_DESCRIPTORS = "no_descriptors"
    # As the gang is arranged. PORT_TAKEN: the rendezvous port is somebody else's by now, and
    # another one will do. UNREACHABLE: a node does not reach its gang's launcher, and either of the
    # two is to blame.
    PORT_TAKEN = "port_taken"
    UNREACHABLE = "launcher_unreachable"
    # HOSTS_ELSEWHERE: the name of a node is another machine's already.
    HOSTS_BAD_TABLE = "hosts_bad_table"
    HOSTS_CONFLICT = "hosts_conflict"
    HOSTS_ELSEWHERE = "hosts_elsewhere"
    HOSTS_UNRESOLVED = "hosts_unresolved"
    HOSTS_UNWRITABLE = "hosts_unwritable"
    # By the coordinator, in the name of a node. TOO_LARGE: no frame can hold what the task has to
    # be told. FABRIC_DIFFERS: a node is not as the others of a gang that needs RDMA.
    TOO_LARGE = "command_too_large"
    FABRIC_DIFFERS = "fabric_differs"
    PREFLIGHT = "preflight"


_LAST_LINES: Final = "; its last lines:"


def headline(text: str) -> str:
    """The sentence of a refusal, without the last lines of a program that follow it."""
    return text.partition("\n")[0].removesuffix(_LAST_LINES)
