"""The coordinator serves in what its unit leaves it; what only systemd can do is not tried here."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.process import DEADLINE_S, TREE, token_file

# MemoryDenyWriteExecute. Older kernels than 6.3 cannot, and systemd has another way there.
START = """
import ctypes, runpy
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)
runpy.run_module("orchestrator", run_name="__main__", alter_sys=True)
"""
# ProtectProc, ProcSubset, CapabilityBoundingSet, NoNewPrivileges.
SANDBOX = """
mount -t proc -o subset=pid,hidepid=2 proc /proc &&
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


@pytest.mark.root
def test_the_coordinator_serves_in_its_sandbox(tmp_path: Path) -> None:
    token_file(tmp_path / "tokens")
    config = {
        "listen": {"port": 0},
        "state_dir": str(tmp_path / "state"),
        "tokens_file": str(tmp_path / "tokens"),
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    notify = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(notify))
        manager.settimeout(DEADLINE_S)
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SANDBOX, "sh"]
        argv += [sys.executable, "-c", START, "--config", str(tmp_path / "c.yaml")]
        with subprocess.Popen(
            argv, cwd=TREE, env={"NOTIFY_SOCKET": str(notify)}, stderr=subprocess.PIPE
        ) as process:
            try:
                ready = manager.recv(1000)
                assert ready.startswith(b"READY=1")
                port = int(ready.rpartition(b":")[2])
                with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as peer:
                    peer.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert peer.recv(1000).startswith(b"HTTP/1.1 200")
            finally:
                process.kill()
