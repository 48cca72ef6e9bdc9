"""Two users of one cluster of real daemons, and an operator who is no admin."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.local_cluster import MUSTER, LocalCluster
from tests.cluster.jobs import await_file, until

SECRET = "canary-3391"


@dataclass
class Person:
    """A user with a token of their own, who runs `muster` with it."""

    cluster: LocalCluster
    env: dict[str, str]

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [MUSTER, *words],
            env=self.env,
            cwd=self.cluster.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture
def person(cluster: LocalCluster) -> Callable[..., Person]:
    """Make a user with a token."""

    def make(name: str, role: str = "user") -> Person:
        cluster.muster("user", "add", name, "--role", role)
        made = cluster.muster("token", "create", "--user", name)
        env = {"MUSTER_TOKEN": made.stdout.strip(), "MUSTER_URL": cluster.client().url}
        return Person(cluster, cluster.base_env() | env)

    return make


def test_bob_learns_and_changes_nothing_of_anns(
    cluster: LocalCluster, person: Callable[..., Person], tmp_path: Path
) -> None:
    ann, bob, olga = person("ann"), person("bob"), person("olga", "operator")
    file = tmp_path / "job.yaml"
    file.write_text(
        f"run: echo {SECRET}; echo yes > ready; while [ ! -e go ]; do sleep 0.02; done\n"
        f"name: anns\nlauncher: none\nnodes: 1\nworkdir: {tmp_path}\n"
        f"env: {{WANDB_API_KEY: {SECRET}, PLAIN: {SECRET}}}\n"
    )
    submitted = ann("submit", "-f", str(file))
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    await_file(tmp_path / "ready")
    until(lambda: SECRET in ann("logs", job).stdout, "ann reads her own log")
    for words in (
        ("show", job),
        ("show", job, "--json"),
        ("logs", job),
        ("logs", "-f", job),
        ("attach", job),
        ("events", job),
        ("explain", job),
        ("stacks", job),
        ("evidence", job, "-o", str(tmp_path / "evidence")),
        ("diff", job, job),
        ("rerun", job, "--set", "run=env"),
        ("cancel", job),
        ("signal", job, "USR1"),
        ("set", job, "name=bobs"),
        ("hold", job),
        ("node", "drain", "node-1", "--reason", "mine"),
        ("audit",),
        ("user", "list"),
        ("user", "set", "bob", "--role", "admin"),
        ("user", "disable", "ann", "--end-jobs"),
        ("token", "create", "--user", "ann"),
    ):
        done = bob(*words)
        assert done.returncode != 0, (words, done.stdout)
        assert SECRET not in done.stdout + done.stderr, words
        assert "role" in done.stderr, (words, done.stderr)
    line = next(each for each in bob("ps").stdout.splitlines() if f" {job} " in f" {each} ")
    assert " ann " in line
    assert SECRET not in bob("ps", "--json").stdout
    assert f"{job}, which is another user's" in bob("node", "show", "node-1").stdout
    # A name is looked for among one's own jobs.
    assert bob("cancel", "anns").returncode != 0
    assert '"state":"RUNNING"' in ann("show", job, "--json").stdout.replace(" ", "")

    assert SECRET in olga("logs", job).stdout
    assert olga("node", "drain", "node-1", "--reason", "a bad DIMM").returncode == 0
    assert olga("node", "resume", "node-1", "--no-check").returncode == 0
    assert olga("rerun", job, "--set", "run=env").returncode != 0
    assert olga("cancel", "--wait", job).returncode == 0
    audit = cluster.muster("audit").stdout
    assert [each.split()[-1] for each in audit.splitlines() if " olga " in each][-1] == "202"
    assert SECRET not in audit
    assert "node.operate" in audit
    assert "POST /v1/nodes/{id}/drain" in audit


def test_a_user_who_leaves_is_cut_off_at_once(
    cluster: LocalCluster, person: Callable[..., Person], tmp_path: Path
) -> None:
    dan, olga = person("dan"), person("olga2", "operator")
    script = f"echo yes > {tmp_path}/ready; while :; do sleep 0.02; done"
    fields = f"launcher: none\nnodes: 1\nworkdir: {tmp_path}\n"
    file = tmp_path / "job.yaml"
    file.write_text(f"run: {script}\nname: dans\n{fields}")
    job = dan("submit", "-f", str(file)).stdout.strip()
    await_file(tmp_path / "ready")
    with subprocess.Popen(
        [MUSTER, "logs", "-f", job],
        env=dan.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        assert olga("user", "disable", "dan", "--end-jobs").returncode == 125
        cluster.muster("user", "disable", "dan", "--keep-jobs")
        _, said = reader.communicate(timeout=300)
    assert reader.returncode == 125
    assert "the user dan is disabled" in said
    assert dan("cancel", job).returncode == 125
    assert '"RUNNING"' in olga("show", job, "--json").stdout
    ended = cluster.muster("user", "disable", "dan", "--end-jobs")
    assert "cancelled 1 job of dan" in ended.stderr
    assert olga("wait", job).returncode == 121
    (token,) = (
        line for line in cluster.muster("token", "list").stdout.splitlines() if " dan " in line
    )
    assert "the user dan is disabled" in token
