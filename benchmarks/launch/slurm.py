"""Slurm on this machine for comparison: separate daemons and munge in a separate directory.

Several `slurmd -N` play the nodes. Needs an installed Slurm and root; otherwise its lines are left
out, and `how_to_install` explains. A running Slurm of the machine is not affected.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.launch.report import output_of
from examples.local_cluster import free_port

# CPUs of a node in Slurm's configuration: so many one-CPU jobs may run on it at a time.
CPUS = 16
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "squeue")
_START_S = 30.0
_STOP_S = 5.0


def installed() -> bool:
    """True if Slurm can be measured here."""
    return os.geteuid() == 0 and all(_path_of(name) for name in _PROGRAMS)


def how_to_install() -> str:
    """Return a sentence about how to get the peer's line."""
    if os.geteuid() != 0:
        return "Slurm was left out: it can only be started by root"
    return (
        "Slurm was left out, as it is not installed; on Debian or Ubuntu: "
        "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
    )


def version() -> str:
    """Return the version, like `slurm 22.05.8`."""
    return output_of(_path_of("slurmctld") or "slurmctld", "-V")


class Slurm:
    """A running Slurm; `srun` and `sbatch_many` measure."""

    def __init__(self, folder: Path, env: dict[str, str], nodes: int) -> None:
        self._folder = folder
        self._env = env
        self._nodes = nodes
        self.controller: subprocess.Popen[bytes] | None = None

    def srun(self, nodes: int) -> float:
        """Milliseconds of the whole command on free nodes."""
        # A completing node would make the next job wait for the scheduler's next cycle.
        self.settle()
        began = time.perf_counter()
        self.run("srun", f"-N{nodes}", "true")
        return (time.perf_counter() - began) * 1e3

    def sbatch_many(self, jobs: int, loops: int) -> float:
        """Seconds until `jobs` batch jobs of `true`, submitted by `loops` loops, have ended."""
        each = jobs // loops
        script = (
            f"for _ in $(seq {each}); do sbatch -Q -N1 -o /dev/null --wrap true || exit 1; done"
        )
        began = time.perf_counter()
        shells = [
            subprocess.Popen(
                ["/bin/sh", "-c", script],
                env=self._env,
                cwd=self._folder,
                stdout=subprocess.DEVNULL,
            )
            for _ in range(loops)
        ]
        try:
            codes = [shell.wait() for shell in shells]
            if any(codes):
                raise RuntimeError("an sbatch failed")
            while self.run("squeue", "-h").strip():
                time.sleep(0.02)
        finally:
            for shell in shells:
                shell.kill()
                shell.wait()
        return (time.perf_counter() - began) * jobs / (each * loops)

    def kill_controller(self) -> None:
        """Kill slurmctld."""
        assert self.controller is not None
        self.controller.kill()
        self.controller.wait()

    def start_controller(self) -> None:
        """Start it again, and wait until it answers."""
        with (self._folder / "slurmctld-again.out").open("ab") as out:
            self.controller = subprocess.Popen(
                ["slurmctld", "-D", "-f", self._env["SLURM_CONF"]],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        _until(self._answers, "answer of slurmctld", self._folder)

    def knows_running(self, job: str) -> bool:
        """True if the controller answers, and knows that this job runs."""
        done = subprocess.run(
            ["squeue", "-h", "-t", "R", "-o", "%i"],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_S,
        )
        return done.returncode == 0 and job in done.stdout.split()

    def end(self) -> None:
        """End the last started controller, if any."""
        if self.controller is not None:
            _end(self.controller)

    def _answers(self) -> bool:
        done = subprocess.run(
            ["squeue", "-h"], env=self._env, capture_output=True, check=False, timeout=_START_S
        )
        return done.returncode == 0

    def settle(self) -> None:
        """Wait until no node has work left."""
        _until(lambda: self.idle_nodes() == self._nodes, f"{self._nodes} idle nodes", self._folder)

    def idle_nodes(self) -> int:
        """Return the number of nodes that could take a job."""
        found = subprocess.run(
            ["sinfo", "-h", "-t", "idle", "-o", "%D"],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        return sum(int(count) for count in found)

    def run(self, *argv: str) -> str:
        """Return the output of a command. Raises RuntimeError."""
        done = subprocess.run(
            argv, env=self._env, cwd=self._folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout


@contextlib.contextmanager
def running(nodes: int, settings: Iterable[str] = ()) -> Iterator[Slurm]:
    """Yield a running munged, slurmctld and `nodes` slurmd. All end afterwards.

    `settings` are more lines of slurm.conf.
    """
    with contextlib.ExitStack() as stack:
        # Not only under /tmp's private name: munged requires a socket directory that others may
        # enter.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-slurm-")))
        folder.chmod(0o755)
        env = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "SLURM_TIME_FORMAT": "%s",
            "PATH": _search_path(),
        }
        _write_config(folder, nodes, settings)
        daemons = [
            ["munged", "-F", "-f", *_munge_options(folder)],
            ["slurmctld", "-D", "-f", env["SLURM_CONF"]],
            *(["slurmd", "-D", "-N", f"n{n}", "-f", env["SLURM_CONF"]] for n in _numbers(nodes)),
        ]
        slurm = Slurm(folder, env, nodes)
        stack.callback(slurm.end)
        for number, argv in enumerate(daemons):
            log = folder / f"{argv[0]}-{number}.out"
            process = stack.enter_context(_daemon(argv, env, log))
            if argv[0] == "munged":
                _until((folder / "munge.socket").exists, "munged", folder)
            if argv[0] == "slurmctld":
                slurm.controller = process
        slurm.settle()
        yield slurm


@contextlib.contextmanager
def _daemon(argv: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _munge_options(folder: Path) -> list[str]:
    return [
        f"--key-file={folder / 'munge.key'}",
        f"--socket={folder / 'munge.socket'}",
        f"--log-file={folder / 'munge.log'}",
        f"--pid-file={folder / 'munge.pid'}",
        f"--seed-file={folder / 'munge.seed'}",
    ]


def _write_config(folder: Path, nodes: int, settings: Iterable[str]) -> None:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    ports = _free_ports(nodes + 1)
    host = socket.gethostname().partition(".")[0]
    lines = [
        "ClusterName=bench",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder / 'munge.socket'}",
        "CredType=cred/munge",
        f"StateSaveLocation={folder / 'state'}",
        f"SlurmdSpoolDir={folder / 'spool'}-%n",
        f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
        f"SlurmdPidFile={folder / 'slurmd'}-%n.pid",
        # The plain plugins: neither cgroups nor accounting, which would make it slower.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "MpiDefault=none",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        *settings,
        *(
            f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 "
            f"Port={ports[number]} CPUs={CPUS}"
            for number in _numbers(nodes)
        ),
        f"PartitionName=all Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP",
    ]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    (folder / "state").mkdir()
    for number in _numbers(nodes):
        (folder / f"spool-n{number}").mkdir()


def _numbers(nodes: int) -> range:
    return range(1, nodes + 1)


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


def _until(reached: Callable[[], bool], what: str, folder: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not reached():
        if time.monotonic() > deadline:
            said = "".join(
                f"\n{path.name}: {path.read_text(errors='replace')[-600:]}"
                for path in sorted(folder.glob("*.out"))[:3]
            )
            raise RuntimeError(f"Slurm: no {what} after {_START_S:g} s{said}")
        time.sleep(0.05)


def _search_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


def _path_of(name: str) -> str | None:
    return shutil.which(name, path=_search_path())
