"""Two users whose jobs run on one node and try all ways to each other, and what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from tests.cluster import neighbour
from tests.cluster.jobs import until

HOMES = "/run/home"
UIDS = {"ann": 47_111, "bob": 47_112}
PLACES = ("/tmp", "/var/tmp", "/dev/shm")
# Two trainings begin at once, maybe beside other tests: each imports torch.
PATIENCE_S = 240.0
KEPT_OUT = {"EACCES", "ECONNREFUSED", "ECONNRESET", "ENOENT", "EPERM", "ESRCH", "ETIMEDOUT"}

TRAINS = """
import ctypes, os, subprocess, sys, time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

home, rank, mark = Path.home(), int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
left = [Path(it, f"{mark}.{rank}") for it in ("/tmp", "/var/tmp", "/dev/shm")]
for path in left:
    path.touch()
libc = ctypes.CDLL(None, use_errno=True)
anew = 0o1000 | 0o666  # IPC_CREAT, for all users
numbers = [libc.shmget(0, 4096, anew), libc.msgget(0, anew), libc.semget(0, 1, anew)]
numbers.append(libc.mq_open(f"/{mark}.{rank}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None))
assert min(numbers) >= 0, os.strerror(ctypes.get_errno())
checkpoint = home / "checkpoints" / f"of-{rank}.pt"
checkpoint.parent.mkdir(exist_ok=True)
adversary, over, steps = None, torch.zeros(1), 0
while not over:
    optimizer.zero_grad()
    model(torch.rand(8, 4)).square().mean().backward()
    optimizer.step()
    steps += 1
    torch.save(model.module.state_dict(), f"{checkpoint}.new")
    os.replace(f"{checkpoint}.new", checkpoint)
    if rank == 0:
        if adversary is None and (home / "targets.json").exists():
            files = home / "targets.json", home / "report.json"
            adversary = subprocess.Popen([sys.executable, "neighbour.py", *files])
        over[0] = (home / "over").exists()
    dist.broadcast(over, 0)
    time.sleep(0.05)
assert all(path.exists() for path in left)
assert adversary is None or adversary.wait() == 0
print(f"rank {rank} trained", flush=True)
dist.destroy_process_group()
"""


class Place(Protocol):
    """A machine with namespaces of its own: its first process, and commands on it."""

    @property
    def pid(self) -> int | None: ...
    def exec(self, *argv: str) -> object: ...


def write_training(folder: Path, user: str, **job: Any) -> None:
    """Write the code of a user's training and its job file into a new folder."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAINS)
    shutil.copy(neighbour.__file__, folder)
    spec = {"launcher": "torchrun", "run": f"train.py of-{user}-{os.getpid()}", **job}
    spec |= {"name": user, "env": {"OMP_NUM_THREADS": "1"}}
    (folder / "job.yaml").write_text(yaml.safe_dump(spec))


def inside(machine: Place, path: str) -> Path:
    """The path, for this process, of a file on a machine."""
    return Path(f"/proc/{machine.pid}/root{path}")


@dataclass
class Process:
    """A process on a machine: its pid there, its user, and its environment."""

    pid: int
    uid: int
    environ: dict[str, str]


def processes(machine: Place) -> list[Process]:
    there, seen = os.readlink(f"/proc/{machine.pid}/ns/pid"), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "ns/pid") != there:
                continue
            lines = (folder / "status").read_text().splitlines()
            status = {key: value.split() for key, _, value in (it.partition(":") for it in lines)}
            text = (folder / "environ").read_bytes().decode(errors="replace")
            environ = dict(it.partition("=")[::2] for it in text.split("\0"))
            seen.append(Process(int(status["NSpid"][-1]), int(status["Uid"][0]), environ))
    return seen


def ranks(machine: Place, job: str) -> list[Process]:
    return [
        it
        for it in processes(machine)
        if it.environ.get("MUSTER_JOB_ID") == job and "RANK" in it.environ
    ]


def paths(machine: Place, top: str, without: str = "") -> list[tuple[int, str]]:
    """Mode and path of all below a folder of a machine, but what belongs to the job `without`."""
    outside = inside(machine, "")
    found = []
    for folder, _, names in os.walk(inside(machine, top)):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            within = path.relative_to(outside)
            if without and any(part.split(".")[0] == without for part in within.parts):
                continue
            with contextlib.suppress(FileNotFoundError):
                found.append((path.lstat().st_mode, f"/{within}"))
    return found


def give(machine: Place, user: str, targets: dict[str, Any]) -> None:
    """Let the job of a user begin with its tries."""
    home = inside(machine, f"{HOMES}/{user}")
    (home / "new").write_text(json.dumps(targets))
    (home / "new").rename(home / "targets.json")


def find_nothing(
    machine: Place,
    state: str,
    jobs: dict[str, str],
    tool: tuple[str, str],
    addresses: tuple[str, ...],
    units: dict[str, str] | None = None,
) -> None:
    """Let the jobs of two users, which run, try all ways to each other. `state` is the agent's
    folder, and `tool` how root runs neighbour.py; at `addresses` are the rendezvous of both jobs,
    if there is a fence. `units` are those of the jobs, if there is a system bus."""
    # All of it before any tries begin, which are processes of the jobs, too.
    tries = {}
    for user, mate in (("ann", "bob"), ("bob", "ann")):
        trains = ranks(machine, jobs[mate])
        assert {it.uid for it in trains} == {UIDS[mate]}
        targets: dict[str, Any] = {
            "pids": [it.pid for it in processes(machine) if it.uid != UIDS[user]],
            "paths": paths(machine, state, jobs[user]) + paths(machine, f"{HOMES}/{mate}"),
            "ports": [(at, int(trains[0].environ["MASTER_PORT"])) for at in addresses],
            "marks": [f"of-{mate}-{os.getpid()}"],
            "units": [units[mate]] if units else [],
        }
        of_root: dict[str, Any] = {
            "pids": [it.pid for it in trains],
            "paths": [
                it
                for it in targets["paths"]
                if it[1].startswith(f"{state}/tasks/{jobs[mate]}.")
                and it[1].endswith(("/logs", "/task.json", "/scratch", ".stdout"))
            ],
            "ports": targets["ports"],
            "marks": [],
            "units": targets["units"],
        }
        assert {it.rpartition("/")[2] for _, it in of_root["paths"]} >= {"logs", "task.json"}
        inside(machine, "/run/targets").write_text(json.dumps(of_root))
        machine.exec(*tool, "/run/targets", "/run/report")
        report = json.loads(inside(machine, "/run/report").read_text())
        failed = {name: how for name, how in report.items() if how != neighbour.IN}
        assert not failed, failed
        tries[user] = targets
    for user, targets in tries.items():
        give(machine, user, targets)
    for user in UIDS:
        file = inside(machine, f"{HOMES}/{user}/report.json")
        until(file.exists, f"the tries of {user} are over", PATIENCE_S)
        report = json.loads(file.read_text())
        assert len(report) > 100
        found = {name: how for name, how in report.items() if how not in KEPT_OUT}
        assert not found, found


def leave_nothing(machine: Place) -> None:
    """Both jobs have ended: their homes are private and have the checkpoints, and nothing else is
    left."""
    for user, uid in UIDS.items():
        home = inside(machine, f"{HOMES}/{user}")
        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / "checkpoints/of-1.pt").stat().st_uid == uid
    for place in PLACES:
        assert not list(inside(machine, place).glob(f"*of-*-{os.getpid()}*"))
