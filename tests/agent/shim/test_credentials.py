"""Change of a process to the user of a job: keys of the agent and of other jobs stay behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# An agent with a session keyring, as systemd gives it one, and jobs that are its children.
JOBS = """
import ctypes, os, sys
from agent.shim.system.credentials import Credentials, take_on
libc = ctypes.CDLL(None, use_errno=True)
ADD, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
JOIN, SEARCH, SESSION = 1, 10, -3

def add(name):
    return libc.syscall(ADD, b"user", name, b"secret", ctypes.c_size_t(6), SESSION) > 0

def found():
    names = b"of-agent", b"of-first"
    return [it for it in names if libc.syscall(KEYCTL, SEARCH, SESSION, b"user", it, 0) > 0]

def job(uid):
    pid = os.fork()
    if pid == 0:
        take_on(Credentials("job", uid, uid, [uid], "/", "/bin/sh", become=True), False)
        before = found()
        os.write(1, f"{before} {add(b'of-first')} {len(found())}\\n".encode())
        os._exit(0)
    os.waitpid(pid, 0)

if libc.syscall(KEYCTL, JOIN, None) < 0 or not add(b"of-agent"):
    sys.exit("no keys")
job(47111)
job(47112)
os.write(1, f"{found()}\\n".encode())
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_job_has_keys_of_its_own() -> None:
    argv = [sys.executable, "-c", JOBS]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "no keys" in done.stderr:
        pytest.skip("a container may not use keys")
    assert done.stdout.splitlines() == ["[] True 1", "[] True 1", "[b'of-agent']"], done.stderr


# A kernel, or a filter of system calls, that says yes and does nothing.
IGNORED = """
import os, sys
from agent.shim.system.credentials import Credentials, take_on
setattr(os, sys.argv[1], lambda *_: None)
try:
    take_on(Credentials("job", 47111, 47111, [47111], "/", "/bin/sh", become=True), False)
except PermissionError as error:
    print(error.strerror)
else:
    print("not noticed")
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("setresuid", "the process did not become job"),
        ("setresgid", "the process did not become job"),
        ("setgroups", "the process did not get the groups of job"),
        ("setuid", "the process could go back to root after becoming job"),
    ],
)
def test_a_change_that_did_not_take_hold_ends_the_start(call: str, said: str) -> None:
    argv = (sys.executable, "-c", IGNORED, call)
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == said
