"""The program of a storm's jobs: it counts, and leaves locks and notes for the judge.

`program.py FOLDER SECONDS [torch]`. A lock is the kernel's, over all machines of the rig, and goes
with its process however that ends: a process that finds another attempt's lock, or another job's on
its node, has seen two run that must not.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

EVERY_S = 0.02


def main() -> int:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    job, attempt = os.environ["MUSTER_JOB_ID"], os.environ["MUSTER_ATTEMPT"]
    rank = os.environ.get("RANK", os.environ["MUSTER_NODE_RANK"])
    node = os.uname().nodename
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def note(text: str) -> None:
        out = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(out, f"{text}\n".encode())
        os.close(out)

    held = [
        _hold(folder / f"attempt.{attempt}.{rank}.{node}.{os.getpid()}"),
        _hold(folder.parent / "nodes" / f"{node}.{job}.{attempt}.{rank}.{os.getpid()}"),
    ]
    note(f"start {attempt} {rank} {node}")
    for file in folder.glob("attempt.*"):
        if file.name.split(".")[1] != attempt and _is_held(file):
            note(f"violation I3: attempt {attempt} runs beside {file.name}")
    for file in (folder.parent / "nodes").glob(f"{node}.*"):
        if file.name.split(".")[1] != job and _is_held(file):
            note(f"violation I5: job {job} runs on {node} beside {file.name}")
    if "torch" in sys.argv:
        _meet()
    lines, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        lines += 1
        print(f"line {attempt} {rank} {lines}", flush=True)
        time.sleep(EVERY_S)
    note(f"end {attempt} {rank} {lines}")
    del held
    return 0


def _meet() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size()
    dist.destroy_process_group()


def _hold(file: Path) -> int:
    made = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    fcntl.flock(made, fcntl.LOCK_EX)
    return made


def _is_held(file: Path) -> bool:
    try:
        seen = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(seen, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(seen)
    return False


if __name__ == "__main__":
    sys.exit(main())
