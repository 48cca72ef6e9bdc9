"""Codes for the refusal of a node's part in a gang, shared by both daemons and their users."""

from __future__ import annotations

import enum


class RefusalCode(enum.StrEnum):
    """Codes of refusals. The words are stable: journals keep them, and scripts compare them.

    The list is open: an agent of a later version may send another code. So received codes are text
    (`Refusal.code`), and are compared with these.
    """

    # Sent by a shim, which imports this module: it must stay quick to import.
    NO_FOLDER = "no_folder"
    NO_PYTHON = "no_python"
    NO_TORCH = "no_torch"
    # FETCH_FAILED: git could not fetch the job's code.
    SETUP_FAILED = "setup_failed"
    FETCH_FAILED = "fetch_failed"
    USER_UNKNOWN = "user_unknown"
    ROOT_REFUSED = "root_refused"
    BOOTSTRAP_FAILED = "bootstrap_failed"
    # Sent by a shim, or by an agent that cannot create one. NO_SPACE: a disk of the node is full.
    SPAWN_FAILED = "spawn_failed"
    NO_SPACE = "no_space"
    # Sent by an agent before there is a shim. GPU_BUSY: another task on the node has one of the
    # GPUs. NO_CODE: the code that travels with the job did not arrive. USER_REFUSED: the node runs
    # no jobs as the user who submitted this one. PROLOG_FAILED: the site's own program. NOT_FENCED:
    # the fence around the rendezvous cannot be written and the site demands it; also sent while the
    # gang is arranged.
    GPU_BUSY = "gpu_busy"
    GPU_GONE = "gpu_gone"
    GPU_DIRTY = "gpu_dirty"
    PREFLIGHT_FAILED = "preflight_failed"
    PROLOG_FAILED = "prolog_failed"
    NO_PORTS = "no_ports"
    NO_DESCRIPTORS = "no_descriptors"
    NO_CODE = "no_code"
    USER_REFUSED = "user_refused"
    NOT_FENCED = "not_fenced"
    # Sent while the gang is arranged. PORT_TAKEN: the rendezvous port is in use by now, and another
    # one may work. UNREACHABLE: a node does not reach its gang's launcher; either may be to blame.
    PORT_TAKEN = "port_taken"
    UNREACHABLE = "launcher_unreachable"
    # HOSTS_ELSEWHERE: the name of a node already belongs to another machine.
    HOSTS_BAD_TABLE = "hosts_bad_table"
    HOSTS_CONFLICT = "hosts_conflict"
    HOSTS_ELSEWHERE = "hosts_elsewhere"
    HOSTS_UNRESOLVED = "hosts_unresolved"
    HOSTS_UNWRITABLE = "hosts_unwritable"
    # Set by the coordinator on behalf of a node. TOO_LARGE: the task's command exceeds the frame
    # size. FABRIC_DIFFERS: a node differs from the others of a gang that requires RDMA.
    TOO_LARGE = "command_too_large"
    FABRIC_DIFFERS = "fabric_differs"
    PREFLIGHT = "preflight"


_LAST_LINES = "; its last lines:"


def headline(text: str) -> str:
    """Return the sentence of a refusal, without the output that follows it."""
    return text.partition("\n")[0].removesuffix(_LAST_LINES)
