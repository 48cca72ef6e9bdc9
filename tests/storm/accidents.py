"""Accidents to the coordinator's state folder by an operator or a bad disk, each once: done while
it is down after a crash, tried, and taken back.

The promise: it starts with every job that it has acknowledged, or it refuses with a reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from examples.local_cluster import Daemon
from examples.rig.machine import pid_inside
from muster.client import ApiError, Client, ClientError
from tests.storm.cluster import COORDINATOR, StormCluster
from tests.storm.lies import interpreter

AHEAD = Path(__file__).with_name("ahead")
DAY_S = 86400.0
PATIENCE_S = 180.0
EVERY_S = 0.05
_NO_SUCH_JOB = 404
_SQUATTER = Path(__file__).with_name("squatter.py")
_JOURNAL = "journal"


def lose_database(folder: Path) -> None:
    """Somebody removes the database, and leaves the log of a crash beside it."""
    (folder / "journal.sqlite").unlink()


def empty_database(folder: Path) -> None:
    """Empty the database, which a repair of the file system may do."""
    (folder / "journal.sqlite").write_bytes(b"")


def flip_bit(folder: Path) -> None:
    """Flip a bit of the write-ahead log, at a third of it."""
    path = folder / "journal.sqlite-wal"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def cut_log(folder: Path) -> None:
    """Half of the write-ahead log is gone."""
    path = folder / "journal.sqlite-wal"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


DAMAGES: tuple[Callable[[Path], None], ...] = (lose_database, empty_database, flip_bit, cut_log)


def damaged(
    cluster: StormCluster, damage: Callable[[Path], None], jobs: Sequence[int]
) -> list[str]:
    """Kill the coordinator, do that, and start it: what of `jobs` is lost without a word. If it
    refuses to start, it runs with what it had before when this returns. If it serves, it goes on
    with what it has, because users and agents have used it meanwhile."""
    coordinator, folder = cluster.coordinator, cluster.disk(COORDINATOR)
    coordinator.kill()
    kept = folder.with_name(f"{folder.name}.kept")
    _copy(folder, kept)
    try:
        said_before = _size(coordinator.log)
        damage(folder)
        coordinator.start()
        lost = _lost(cluster, jobs)
        if lost is not None:
            return [f"I1: after {damage.__name__} jobs {lost} are gone"] if lost else []
        with coordinator.log.open("rb") as file:
            file.seek(said_before)
            said = file.read().decode(errors="replace")
        _replace(folder, kept)
    finally:
        shutil.rmtree(kept)
    coordinator.start()
    await_answer(cluster)
    return [] if _JOURNAL in said else [f"I1: after {damage.__name__} it said {said!r}"]


@contextmanager
def ahead(cluster: StormCluster, days: float) -> Iterator[None]:
    """The coordinator lives with a wall clock that is so many days ahead, from start to end."""
    coordinator = cluster.coordinator
    coordinator.stop()
    with _env(coordinator, PYTHONPATH=str(AHEAD), MUSTER_TEST_AHEAD_S=f"{days * DAY_S:g}"):
        coordinator.start()
    try:
        await_answer(cluster)
        yield
    finally:
        coordinator.stop()
        coordinator.start()
        await_answer(cluster)


@contextmanager
def squatted(cluster: StormCluster, node: str) -> Iterator[str]:
    """The agent of the node dies, and somebody without rights takes what it will ask for; what that
    is. Afterwards he goes."""
    cluster.nodes[node].kill()
    machine = cluster.machines[node]
    # Read here: the folder of the tests may be closed to others.
    text = _SQUATTER.read_text()
    folders = [str(cluster.disk(node)), str(cluster.disk(node) / "tasks")]
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", interpreter()]
    process = subprocess.Popen(
        machine.enter(*argv, "-I", "-c", text, *folders),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        with process.stdout as said:
            yield said.readline().decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid_inside(process), signal.SIGKILL)
        process.wait()


def await_answer(cluster: StormCluster) -> None:
    """Until the coordinator serves."""
    assert _lost(cluster, ()) == [], f"it does not serve: {cluster.coordinator.tail()}"


def _lost(cluster: StormCluster, jobs: Sequence[int]) -> list[int] | None:
    """Return those of these jobs that a started coordinator does not know; None if it ends."""
    client = cluster.client()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        process = cluster.coordinator.process
        if process is not None and process.poll() is not None:
            return None
        with contextlib.suppress(ClientError):
            client.version()
            return [job for job in jobs if not _is_known(client, job)]
        time.sleep(EVERY_S)
    raise AssertionError(f"it neither serves nor ends: {cluster.coordinator.tail()}")


def _is_known(client: Client, job: int) -> bool:
    try:
        client.job(job)
    except ApiError as error:
        if error.problem.status == _NO_SUCH_JOB:
            return False
        raise
    return True


def _replace(folder: Path, kept: Path) -> None:
    """Replace the content of the folder by the kept copy."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    _copy(kept, folder)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with the holes of its files, for which a disk may have no room."""
    target.mkdir(exist_ok=True)
    argv = ["cp", "-a", "--sparse=always", f"{source}/.", str(target)]
    subprocess.run(argv, check=True, capture_output=True)


@contextmanager
def _env(daemon: Daemon, **more: str) -> Iterator[None]:
    """Set variables for the next start of a daemon."""
    before, daemon.env = daemon.env, {**daemon.env, **more}
    try:
        yield
    finally:
        daemon.env = before


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
