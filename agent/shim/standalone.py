"""A shim for one task that is started without a fork server, as the main process of its own unit.

Run as `python -I -S -c "...; from agent.shim.standalone import main; main(sys.argv[1])" REQUEST`.
The request is that of the fork server (agent/shim/fork_server.py) in hexadecimal JSON. When the
shim's socket accepts connections, it notifies the process behind NOTIFY_SOCKET.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from agent.shim.fork_server import bootstrap_text, open_folder
from agent.shim.main import run_shim
from agent.shim.options import Options
from agent.shim.system import syscalls
from agent.shim.system.cgroup import own_cgroup
from agent.shim.system.credentials import own_identity

LEAF = "shim"


def main(request: str) -> int:
    """Be the shim of one task. Returns the exit code when nothing of the task is left."""
    wish: dict[str, object] = json.loads(bytes.fromhex(request))
    syscalls.prctl(syscalls.PR_SET_NAME, b"muster-shim")
    os.chdir("/")
    os.umask(0o077)
    own = own_identity()
    bootstrap = bootstrap_text()
    folder = str(wish["task_dir"])
    try:
        folder_fd, lock, listener = open_folder(folder)
    except BlockingIOError:
        sys.stderr.write(f"{folder} belongs to a shim that is still alive\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{folder} cannot become a task directory: {error.strerror}\n")
        return 1
    _notify(b"READY=1")
    if wish.get("cgroup", True) and "cgroup_parent" not in wish:
        wish["cgroup_parent"] = _clear_own_cgroup()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, listener:
        socket.send_fds(ours, [json.dumps(wish).encode()], (folder_fd, lock, listener.fileno()))
    for fd in (folder_fd, lock):
        os.close(fd)
    # The channel is closed after this one task.
    return run_shim(theirs, Options.of(wish), own, bootstrap, ahead=False)


def _notify(state: bytes) -> None:
    """Send `state` by the protocol of sd_notify(3)."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        manager.sendto(state, address)


def _clear_own_cgroup() -> str | None:
    """Move this process into a leaf cgroup, so that its cgroup can delegate controllers to the
    task's.

    The kernel refuses that for a cgroup that holds processes itself. Returns the cgroup's path, or
    None if nothing changed.
    """
    base = own_cgroup()
    if base is None:
        return None
    leaf = os.path.join(base, LEAF)
    try:
        os.mkdir(leaf, 0o755)
        with open(os.path.join(leaf, "cgroup.procs"), "w") as file:
            file.write("0")
    except OSError:
        return None
    return base
