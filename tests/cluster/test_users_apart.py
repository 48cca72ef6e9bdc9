"""Jobs of two users on one node, and a gang behind its fence, on machines of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.shims.apart import NFT
from examples.rig.machine import Machine
from examples.rig.rig import missing
from muster.protocol.states import ENDED_STATES
from tests.cluster import neighbour
from tests.cluster.apart import (
    HOMES,
    PATIENCE_S,
    PLACES,
    UIDS,
    find_nothing,
    inside,
    leave_nothing,
    ranks,
    write_training,
)
from tests.cluster.cards import GpuMachines
from tests.cluster.jobs import until

REPOSITORY = Path(__file__).parents[2]
# Folders that the jobs need of this machine.
NEEDED = (Path(sys.base_prefix).resolve(), REPOSITORY)
STATE = "/run/agent"

pytestmark = [
    pytest.mark.root,
    pytest.mark.torch,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which(NFT) is None, reason="nft writes the fence"),
    pytest.mark.skipif(
        any(str(path).startswith(tuple(f"{it}/" for it in PLACES)) for path in NEEDED),
        reason="jobs with a /tmp of their own see neither code nor interpreter below /tmp",
    ),
]


@dataclass
class Team(GpuMachines):
    """Nodes with accounts of two users, as whom their jobs run."""

    tokens: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        for machine in self.machines.values():
            machine.exec("chmod", "755", "/run")
            let_pass(machine, (*NEEDED, self.root))
            for file, line in (
                ("passwd", "{0}:x:{1}:{1}::{2}/{0}:/bin/sh"),
                ("group", "{0}:x:{1}:"),
            ):
                lines = "".join(f"{line.format(*it, HOMES)}\n" for it in UIDS.items())
                machine.write(f"/etc/{file}", machine.read(f"/etc/{file}") + lines)
            for name, uid in UIDS.items():
                owner = ("-o", str(uid), "-g", str(uid))
                machine.exec("install", "-d", "-m", "755", HOMES)
                machine.exec("install", "-d", "-m", "700", *owner, f"{HOMES}/{name}")
        super().start()
        for name in UIDS:
            self.muster("user", "add", name, "--role", "user")
            self.tokens[name] = self.muster("token", "create", "--user", name).stdout.strip()

    def _agent_config(self, number: int, name: str) -> Path:
        path = super()._agent_config(number, name)
        settings = yaml.safe_load(path.read_text())
        settings |= {"state_dir": STATE, "allow_root_jobs": False, "fence": True}
        settings |= {"single_team": False}
        path.write_text(yaml.safe_dump(settings))
        return path

    def train(self, user: str, folder: Path, **job: Any) -> str:
        """Submit a training of a user with its code; return its number once it has a checkpoint of
        each rank on the first node."""
        home = inside(self.machines["node-1"], f"{HOMES}/{user}")
        for old in ("over", "targets.json", "report.json"):
            (home / old).unlink(missing_ok=True)
        shutil.rmtree(home / "checkpoints", ignore_errors=True)
        write_training(folder, user, **job)
        done = subprocess.run(
            self.command("submit", "-f", str(folder / "job.yaml")),
            env={**self.base_env(), "MUSTER_TOKEN": self.tokens[user]},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def await_checkpoints(self, user: str, job: str, *of: tuple[str, int]) -> None:
        """Wait for a checkpoint of each rank, given with its node."""
        files = [
            inside(self.machines[node], f"{HOMES}/{user}/checkpoints/of-{rank}.pt")
            for node, rank in of
        ]

        def trains() -> bool:
            state = self.client().job(int(job)).state
            assert state not in ENDED_STATES, self.muster("show", job).stdout
            return all(file.exists() for file in files)

        until(trains, f"job {job} of {user} trains", PATIENCE_S)

    def end(self, user: str, job: str) -> int:
        """Let a training end, and return its exit code."""
        (inside(self.machines["node-1"], f"{HOMES}/{user}") / "over").touch()
        return self.muster("wait", "--timeout", "240s", job, check=False).returncode


def let_pass(machine: Machine, needed: tuple[Path, ...]) -> None:
    """Let all users of a machine reach these folders, also below one that lets only root pass."""
    script, behind = [], []
    for number, path in enumerate(needed):
        shut = [it for it in reversed(path.parents) if not it.stat().st_mode & 0o001]
        if shut:
            aside = f"/run/aside/{number}"
            script += [f"mkdir -p {aside}", f"mount --bind '{path}' {aside}"]
            behind += [(shut[0], path, aside)]
    script += [f"mount -t tmpfs -o mode=755 none '{top}'" for top in {it[0] for it in behind}]
    for _, path, aside in behind:
        script += [f"mkdir -p '{path}'", f"mount --bind {aside} '{path}'"]
    machine.exec("sh", "-ec", "\n".join(script))


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    if why := missing():
        pytest.skip(why)
    with Team(tmp_path_factory.mktemp("team"), agents=2) as made:
        yield made
    until(lambda: made.leftovers() == [], "no process of the cluster is left")


def test_two_users_train_at_once_on_one_node_and_find_nothing_of_each_other(
    team: Team, tmp_path: Path
) -> None:
    machine = team.machines["node-1"]
    part = {"nodes": 1, "placement": {"include": ["node-1"]}, "resources": {"gpu": 2}}
    jobs = {user: team.train(user, tmp_path / user, **part) for user in UIDS}
    for user, job in jobs.items():
        team.await_checkpoints(user, job, ("node-1", 0), ("node-1", 1))
    for user, job in jobs.items():
        store = (machine.address, int(ranks(machine, job)[0].environ["MASTER_PORT"]))
        assert connects(machine, UIDS[user], store)
        assert not connects(team.machines["node-2"], 0, store)
    tool = sys.executable, neighbour.__file__
    find_nothing(machine, STATE, jobs, tool, (machine.address, "127.0.0.1"))
    for user, job in jobs.items():
        assert team.end(user, job) == 0
    leave_nothing(machine)


CONNECTS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("in")
except OSError:
    print("out")
"""


def connects(machine: Machine, uid: int, at: tuple[str, int], patience_s: float = 30.0) -> bool:
    user = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    script = (sys.executable, "-c", CONNECTS, at[0], str(at[1]), str(patience_s))
    return machine.exec(*user, *script).stdout.strip() == "in"


def test_a_gang_trains_behind_its_fence(team: Team, tmp_path: Path) -> None:
    first, second = team.machines.values()
    job = team.train("ann", tmp_path / "ann", nodes=2, resources={"gpu": 1})
    team.await_checkpoints("ann", job, ("node-1", 0), ("node-2", 1))
    port = int(ranks(first, job)[0].environ["MASTER_PORT"])
    store = (first.address, port)
    for machine in (first, second):
        assert connects(machine, 0, store)
        assert connects(machine, UIDS["ann"], store)
        assert not connects(machine, UIDS["bob"], store)
    assert not connects(first, UIDS["bob"], ("127.0.0.1", port))
    third = team.rig.add("third")
    # Dropped without an answer. Without the table it is let in: nothing else kept it out.
    assert not connects(third, 0, store, patience_s=3.0)
    table = first.exec(NFT, "list", "tables").stdout.split()
    assert table[:2] == ["table", "inet"]
    first.exec(NFT, "delete", *table)
    assert connects(third, 0, store)
    assert team.end("ann", job) == 0
    for machine in (first, second):
        until(partial(no_table, machine), "no table is left")


def test_a_node_joins_an_elastic_gang_behind_its_fence(team: Team, tmp_path: Path) -> None:
    first, second = team.machines.values()
    holder = team.train("bob", tmp_path / "bob", nodes=1, placement={"include": ["node-2"]})
    until(lambda: bool(ranks(second, holder)), "node-2 is taken", PATIENCE_S)
    job = team.train("ann", tmp_path / "ann", nodes="1..2", resources={"gpu": 1})
    until(lambda: bool(ranks(first, job)), "the first node begins alone", PATIENCE_S)
    assert not ranks(second, job)
    # Neither the node that may join nor a third machine comes in. The launcher's node does.
    third = team.rig.add("other")
    # torchrun gives its ranks another port, which it chooses itself.
    store = (first.address, int(ranks(first, job)[0].environ["MUSTER_MASTER_PORT"]))
    assert connects(first, UIDS["ann"], store)
    for machine in (second, third):
        assert not connects(machine, 0, store, patience_s=3.0)
    (inside(second, f"{HOMES}/bob") / "over").touch()
    assert team.muster("wait", "--timeout", "240s", holder, check=False).returncode == 0
    # Its torchrun has ranks only once it has met the other in the store.
    until(lambda: bool(ranks(second, job)), "the second node has joined", PATIENCE_S)
    table = first.exec(NFT, "list", "ruleset").stdout
    assert f"ip saddr != {{ {first.address}, {second.address} }}" in table, table
    assert connects(second, UIDS["ann"], store)
    assert not connects(third, 0, store, patience_s=3.0)
    # Either may be rank 0, which looks for this file.
    (inside(second, f"{HOMES}/ann") / "over").touch()
    assert team.end("ann", job) == 0


def no_table(machine: Machine) -> bool:
    return machine.exec(NFT, "list", "tables").stdout == ""
