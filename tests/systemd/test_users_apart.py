"""Two users whose jobs train at once as units of a real systemd, and are kept apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.apart import (
    HOMES,
    PATIENCE_S,
    UIDS,
    find_nothing,
    inside,
    leave_nothing,
    write_training,
)
from tests.cluster.cards import plant
from tests.systemd.container import WHOLE, Container, booted, wait_long
from tests.systemd.test_booted import USER, Machine, documented

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.torch,
    # Less than test_booted.py and test_booted_cluster.py have: one container runs at a time, and
    # files with more begin earlier.
    pytest.mark.timeout(500, func_only=True),
]
MUSTER = "/opt/muster/bin/muster"
TOOL = ("/opt/muster/bin/python3", "/opt/tree/tests/cluster/neighbour.py")
GPUS = Path("/run/gpus")
MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
)


class Place:
    """A container, as tests.cluster.apart knows machines."""

    def __init__(self, container: Container) -> None:
        self.pid, self.exec = container.leader, container.run


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with booted(tmp_path, WHOLE) as container:
        plant(inside(Place(container), str(GPUS)), 1)
        container.run("useradd", "--create-home", USER)
        container.run("mkdir", HOMES)
        for name, uid in UIDS.items():
            place = ("--create-home", "--key=HOME_MODE=0700", f"--home-dir={HOMES}/{name}")
            container.run("useradd", f"--uid={uid}", *place, name)
        for command in documented(rf"gpus: auto\nfence: true\nfabric: {{root: {GPUS}}}\n"):
            container.run("sh", "-ec", f"cd /opt/tree && {command}")
        made = Machine(container)
        made.serving()
        try:
            yield made
        finally:
            units = ("--unit=muster-agent", "--unit=muster-task-*")
            print(container.run("journalctl", "--no-pager", *units, check=False).stdout)


def test_two_users_train_at_once_and_find_nothing_of_each_other(machine: Machine) -> None:
    place, jobs = Place(machine.container), {}
    for user in UIDS:
        machine.muster("user", "add", user, "--role", "user")
        token = machine.muster("token", "create", "--user", user).stdout.strip()
        folder = f"/run/code/{user}"
        write_training(inside(place, folder), user, resources={"gpu": 2})
        submit = (MUSTER, "submit", "-f", f"{folder}/job.yaml")
        jobs[user] = machine.said("env", f"MUSTER_TOKEN={token}", *submit)
    for user, job in jobs.items():
        files = [inside(place, f"{HOMES}/{user}/checkpoints/of-{rank}.pt") for rank in (0, 1)]

        def trains(files: list[Path] = files, job: str = job) -> bool:
            shown = json.loads(machine.muster("show", "--json", job).stdout)
            assert shown["ended_at"] is None, shown
            return all(file.exists() for file in files)

        wait_long(trains, f"job {job} of {user} trains", PATIENCE_S)
    units = {user: f"muster-task-{job}-1-0.service" for user, job in jobs.items()}
    assert sorted(machine.units()) == sorted(units.values())
    properties = machine.said("systemctl", "show", "--all", *units.values())
    for words in ("train.py", HOMES, *UIDS, "MUSTER_", "OMP_NUM_THREADS"):
        assert words not in properties
    # systemd answers everybody; only the jobs' own view of the machine lacks its bus.
    processes = ("busctl", "call", *MANAGER, "GetUnitProcesses", "s", units["ann"])
    of_bob = (f"--reuid={UIDS['bob']}", "--clear-groups", "--")
    assert "of-ann-" in machine.said("setpriv", *of_bob, *processes)
    addresses = ("127.0.0.1",)
    find_nothing(place, "/var/lib/muster/agent", jobs, TOOL, addresses, units)
    for user, job in jobs.items():
        (inside(place, f"{HOMES}/{user}") / "over").touch()
        assert machine.wait(job) == 0
    leave_nothing(place)
    wait_long(lambda: machine.units() == [], "the units of tasks are gone")
