"""Storms of output: every byte arrives, and no daemon and no command grows with it."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.local_cluster import LocalCluster
from muster.client import load_settings
from tests.cluster.jobs import await_running, submit, until, wait

MIB = 1 << 20
GROWTH_MAX = 64 * MIB

pytestmark = pytest.mark.long

PROGRAMS = {
    # 100 MB as fast as a program writes, 50 MB without an end of line, and bytes that are no text.
    "burst": "import os\nfor i in range(1600): os.write(1, b'%07d %s\\n' % (i, b'x' * 65527))",
    "line": "import os\nfor i in range(800): os.write(1, b'%07d' % i + b'y' * 65529)",
    "binary": "import os, random\nr = random.Random(1)\n"
    "for i in range(400): os.write(1, r.randbytes(65536))",
    "lines": "import sys\nfor i in range(1_000_000): sys.stdout.write(f'step {i} loss 0.123\\n')",
}


def memory(pid: int, field: str) -> int:
    """VmRSS or VmHWM (its peak) of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def no_growth(cluster: LocalCluster) -> Iterator[None]:
    """None of the daemons grows by more than it may meanwhile."""
    daemons = {"coordinator": cluster.coordinator, **cluster.nodes}
    before = {name: memory(daemon.pid, "VmRSS") for name, daemon in daemons.items()}
    yield
    grown = {n: memory(d.pid, "VmHWM") - before[n] for n, d in daemons.items()}
    print({name: f"{size / MIB:.1f} MiB" for name, size in grown.items()})
    assert max(grown.values()) < GROWTH_MAX, grown


def shims(cluster: LocalCluster) -> dict[int, int]:
    """The peak of every process of ours that a job has on its node."""
    found = {}
    for line in cluster.leftovers():
        pid = int(line.partition(":")[0])
        with contextlib.suppress(OSError):  # others come and go
            if Path(f"/proc/{pid}/comm").read_text().startswith("muster-"):
                found[pid] = memory(pid, "VmHWM")
    return found


def digest_of(argv: list[str], environ: dict[str, str]) -> tuple[str, int, int]:
    """SHA-256 and size of what a command prints, and its own peak of memory in bytes."""
    digest, size, peak = hashlib.sha256(), 0, 0
    process = subprocess.Popen(
        argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    assert process.stdout is not None
    with process.stdout as out:
        while data := out.read(MIB):
            digest.update(data)
            size += len(data)
            # Its last bytes are in the pipe when it has them no more.
            peak = max(peak, memory(process.pid, "VmHWM"))
    assert process.wait() == 0
    return digest.hexdigest(), size, peak


def expected(program: str, folder: Path) -> tuple[str, int]:
    file = folder / "expected"
    with file.open("wb") as out:
        subprocess.run(["python3", "-c", PROGRAMS[program]], stdout=out, check=True)
    return hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size


@pytest.mark.parametrize("program", list(PROGRAMS))
def test_a_storm_of_one_rank_arrives_whole(
    own_cluster: LocalCluster, tmp_path: Path, program: str
) -> None:
    wanted = expected(program, tmp_path)
    (tmp_path / "program.py").write_text(PROGRAMS[program])
    small = submit(own_cluster, tmp_path, run="echo small")
    assert wait(own_cluster, small) == 0
    environ = own_cluster.base_env()
    *_, cli_at_rest = digest_of(own_cluster.command("logs", small), environ)
    with no_growth(own_cluster):
        script = "until [ -e go ]; do sleep 0.05; done; python3 program.py; touch done\n"
        job = submit(own_cluster, tmp_path, run=f"{script}until [ -e end ]; do sleep 0.05; done")
        follow = own_cluster.command("logs", "-f", "--tail", "all", "--stdout", job)
        results: list[tuple[str, int, int]] = []
        follower = threading.Thread(target=lambda: results.append(digest_of(follow, environ)))
        follower.start()
        (tmp_path / "go").touch()
        until((tmp_path / "done").exists, "it has written everything")
        assert max(shims(own_cluster).values()) < GROWTH_MAX
        (tmp_path / "end").touch()
        assert wait(own_cluster, job) == 0
        follower.join(300)
        assert results
        assert results[0][:2] == wanted
        again = digest_of(own_cluster.command("logs", job), environ)
        assert again[:2] == wanted
        prefixed = digest_of(own_cluster.command("logs", "--node", "node-1", job), environ)
        folder = tmp_path / "download"
        fetch = own_cluster.command("logs", job, "--download", str(folder))
        loaded = digest_of(fetch, environ)
        (file,) = folder.glob("*.stdout")
        assert hashlib.sha256(file.read_bytes()).hexdigest() == wanted[0]
    peaks = [found[2] - cli_at_rest for found in (*results, again, prefixed, loaded)]
    print([f"{peak / MIB:.1f} MiB" for peak in peaks])
    assert max(peaks) < GROWTH_MAX


def slow_reader(
    cluster: LocalCluster, job: str
) -> tuple[http.client.HTTPConnection, socket.socket]:
    settings = load_settings(cluster.base_env())
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=300)
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    headers = {"Authorization": f"Bearer {settings.token}"}
    connection.request("GET", f"/v1/jobs/{job}/logs?follow=1", headers=headers)
    return connection, connection.sock


def test_slow_readers_slow_nobody_and_cost_nothing(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    wanted = expected("burst", tmp_path)
    (tmp_path / "program.py").write_text(PROGRAMS["burst"])
    script = "until [ -e go ]; do sleep 0.05; done; python3 program.py"
    job = submit(own_cluster, tmp_path, run=script)
    await_running(own_cluster, job)
    stop = threading.Event()
    read = [0] * 50

    def drip(number: int) -> None:
        connection, sock = slow_reader(own_cluster, job)
        while not stop.wait(1.0):
            read[number] += len(sock.recv(1024))
        connection.close()

    with no_growth(own_cluster):
        readers = [threading.Thread(target=drip, args=(number,)) for number in range(50)]
        for reader in readers:
            reader.start()
        argv = own_cluster.command("logs", "-f", "--tail", "all", "--stdout", job)
        results: list[tuple[str, int, int]] = []
        environ = own_cluster.base_env()
        fast = threading.Thread(target=lambda: results.append(digest_of(argv, environ)))
        fast.start()
        (tmp_path / "go").touch()
        fast.join(300)
        assert results
        assert results[0][:2] == wanted, "the fast one has it all"
        assert max(read) < 500_000, "while the slow ones have not"
        for _ in range(3):
            began = time.monotonic()
            assert wait(own_cluster, submit(own_cluster, tmp_path, run="true")) == 0
            print(f"a job beside them: {time.monotonic() - began:.2f} s")
        until(lambda: min(read) > 3000, "each of them is served")
    stop.set()
    for reader in readers:
        reader.join(300)
