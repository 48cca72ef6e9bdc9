"""Reasons why a node does not keep jobs apart, besides by their users."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from typing import Final

from agent.config import AgentConfig
from agent.shim.system import syscalls
from agent.taskdirs.task_accounts import why_users_are_together
from muster.daemon.errors import FileError

NFT: Final = "nft"
USERS: Final = "users"
FENCE: Final = "fence"
PLACES: Final = "private /tmp"
HIDDEN: Final = "hidden processes"
KEYRINGS: Final = "keyrings"
OFF: Final = "it is switched off (`{}`)"
_WAIT_S: Final = 10.0
_HIDING: Final = frozenset({"2", "invisible", "4", "ptraceable"})

_LIKE_A_FENCE: Final = """\
table inet muster_check {
chain input {
type filter hook input priority -5; policy accept;
iifname != "lo" tcp dport { 20000 } tcp flags & (syn | ack) == syn ip saddr != { 10.0.0.1 } drop
}
chain forward {
type filter hook forward priority -5; policy accept;
ip6 daddr { fd00::1 } tcp dport 20000 reject with tcp reset
}
chain output {
type filter hook output priority -5; policy accept;
tcp sport { 20000 } tcp flags & (syn | ack) == (syn | ack) meta skuid { 0 } accept comment "task"
}
}
"""


def not_apart(config: AgentConfig) -> dict[str, str]:
    """Return what does not keep jobs apart on this node, with the reasons. Blocks.

    An agent of another user than root can keep nothing apart: it runs all jobs as that user.
    """
    # The probe warns about a user named by `run_as`.
    known = config.single_team or config.run_as not in {None, "root"}
    users = "" if known else why_users_are_together(config)
    if os.geteuid() != 0:
        return {USERS: users} if users else {}
    off = OFF.format
    found = {
        USERS: users,
        FENCE: why_no_fence() if config.fences else off("fence"),
        HIDDEN: why_nothing_hides() if config.hides_processes else off("hide_processes"),
        PLACES: "" if config.has_private_tmp else off("private_tmp"),
        KEYRINGS: why_keyrings_are_shared(os.uname().machine),
    }
    return {what: why for what, why in found.items() if why}


def check_hiding(config: AgentConfig) -> None:
    """Raise FileError if the configuration demands what this kernel does not do."""
    if config.hide_processes and (why := why_nothing_hides()):
        raise FileError(f"hide_processes: {why}; upgrade to Linux 5.8, or set it to false")


def why_refused_without(fence: str) -> str:
    """Return why a node whose site demands a fence takes no jobs; `fence` is why there is none, or
    ""."""
    end = "and the agent's `fence` is true: repair nftables, or take `fence` out"
    return fence and f"{fence}, {end}"


def why_no_fence() -> str:
    """Return why this process could not write the rules of a fence, or "". Writes nothing: the
    kernel looks at rules of all kinds that a fence has.
    """
    return run_nft("--check", "-f", "-", text=_LIKE_A_FENCE)


def why_nothing_hides() -> str:
    """Return why a new /proc would not hide the processes of other users, or "".

    Before Linux 5.8, all mounts of /proc of a PID namespace share their options: the kernel accepts
    the option and ignores it.
    """
    found: list[str] = []

    def look() -> None:
        try:
            # This thread ends with its namespace.
            syscalls.own_mounts()
            syscalls.mount_new("proc", "/proc", syscalls.HIDDEN, runs_programs=False)
            with open("/proc/thread-self/mountinfo") as file:
                text = file.read()
        except OSError as error:
            found.append(f"/proc cannot be mounted: {error.strerror}")
            return
        if not hides(text):
            found.append("the kernel accepts hidepid and ignores it, as before Linux 5.8")

    thread = threading.Thread(target=look, name="hidepid")
    thread.start()
    thread.join()
    return "".join(found)


def hides(mountinfo: str, place: str = "/proc") -> bool:
    """True if, by a mountinfo file, the topmost mount at `place` hides processes of others."""
    options: list[str] = []
    for line in mountinfo.splitlines():
        mount, _, system = line.partition(" - ")
        if mount.split()[4:5] == [place]:
            options = system.split()[2:3]
    said = dict(it.partition("=")[::2] for text in options for it in text.split(","))
    return said.get("hidepid") in _HIDING


def why_keyrings_are_shared(machine: str) -> str:
    """Return why jobs on such a machine have no session keyrings of their own, or ""."""
    if machine in syscalls.SYS_KEYCTL:
        return ""
    return f"the number of the system call keyctl is not known for {machine}"


def run_nft(*arguments: str, text: str = "") -> str:
    """Run nft with this input. Returns why that is impossible, or "". Blocks."""
    return ask_nft(*arguments, text=text)[1]


def ask_nft(*arguments: str, text: str = "") -> tuple[str, str]:
    """Run nft with this input. Returns its output, and why that is impossible, or "". Blocks."""
    program = shutil.which(NFT, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return "", f"there is no {NFT} on this node"
    try:
        done = subprocess.run(
            [program, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=_WAIT_S,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", f"{program} does not answer"
    if done.returncode == 0:
        return done.stdout, ""
    return "", " ".join(done.stderr.split())[:300] or f"{program} ends with {done.returncode}"
