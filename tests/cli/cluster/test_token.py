"""`muster user` and `muster token`, at a real coordinator."""

import asyncio
import json
import os
import pty
import re
from subprocess import CompletedProcess

import pytest

from tests.cli.conftest import Muster
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import user_of


def as_user(muster: Muster, coordinator: CoordinatorProcess, name: str) -> str:
    """Add a user, and return the text of a token of theirs."""
    added = muster("user", "add", name, "--team", "lab")
    assert added.returncode == 0, added.stderr
    made = muster("token", "create", "--user", name)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_a_new_token_is_good_and_its_secret_is_nowhere(
    muster: Muster, coordinator: CoordinatorProcess
) -> None:
    assert muster("user", "add", "bob").returncode == 0
    done = muster("token", "create", "--user", "bob", "--expires", "30d", "--label", "laptop")
    token = done.stdout.strip()
    assert re.fullmatch(r"muster_user_[0-9a-f]{8}_[0-9a-f]{64}", token)
    name, secret = token.split("_")[2:]
    assert f"muster token revoke {name}" in done.stderr
    assert f"muster login {coordinator.url}" in done.stderr
    listed = json.loads(muster("token", "list", "--user", "bob", "--json").stdout)["tokens"]
    (line,) = listed
    assert (line["role"], line["label"], line["jobs"], line["used"]) == ("user", "laptop", 0, None)
    assert "sha256" not in line
    who = muster("whoami", env={"MUSTER_TOKEN": token})
    assert who.stdout == "bob\n"
    assert "laptop" in muster("token", "list").stdout
    for file in (coordinator.state_dir / "journal.sqlite-wal", coordinator.folder / "tokens"):
        assert secret.encode() not in file.read_bytes()
    assert secret not in json.dumps(coordinator.log)


def test_tokens_are_revoked_all_or_none(muster: Muster) -> None:
    made = json.loads(muster("token", "create", "--role", "join", "--json").stdout)
    name = made["token"]["id"]
    refused = muster("token", "revoke", name, "nobody")
    assert refused.returncode == 125
    assert "there is no token nobody that you may revoke; nothing was revoked" in refused.stderr
    assert name in muster("token", "list").stdout
    gone = muster("token", "revoke", name, "--json")
    assert json.loads(gone.stdout)["tokens"][0]["id"] == name
    assert "no agent is connected with it" in gone.stderr
    assert name not in muster("token", "list").stdout


def test_a_whole_token_stands_for_its_id(muster: Muster, coordinator: CoordinatorProcess) -> None:
    leaked = as_user(muster, coordinator, "heidi")
    done = muster("token", "revoke", leaked)
    assert done.returncode == 0, done.stderr
    assert leaked.rpartition("_")[2] not in done.stdout + done.stderr
    assert "revoked" in muster("whoami", env={"MUSTER_TOKEN": leaked}).stderr
    again = muster("token", "revoke", leaked)
    assert again.returncode == 125
    assert leaked.rpartition("_")[2] not in again.stdout + again.stderr


async def test_a_join_token_says_how_many_agents_use_it(
    muster: Muster, coordinator: CoordinatorProcess
) -> None:
    def asked(*words: str) -> str:
        done = muster("token", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    made = (await asyncio.to_thread(asked, "create", "--role", "join")).splitlines()[0]
    name = made.split("_")[2]
    coordinator.join, first = made, coordinator.join
    async with connect(coordinator, "j1") as one, connect(coordinator, "j2") as two:
        await one.hello()
        await two.hello()
        coordinator.join = first
        async with user_of(coordinator) as admin:
            await admin.submit(nodes=2)
        (view,) = json.loads(await asyncio.to_thread(asked, "list", "--json"))["tokens"][-1:]
        assert (view["id"], view["agents"], view["jobs"]) == (name, 2, 1)
        said = await asyncio.to_thread(asked, "revoke", name)
    assert "2 agents are connected with it, with 1 job on their nodes" in said


def test_users_see_and_revoke_their_own(muster: Muster, coordinator: CoordinatorProcess) -> None:
    carol, dave = (as_user(muster, coordinator, name) for name in ("carol", "dave"))
    own = {"MUSTER_TOKEN": carol}
    lines = json.loads(muster("token", "list", "--json", env=own).stdout)["tokens"]
    assert [line["user"] for line in lines] == ["carol"]
    daves = dave.split("_")[2]
    assert muster("token", "revoke", daves, env=own).returncode == 125
    for words in (("user", "list"), ("user", "add", "eve"), ("token", "create")):
        refused = muster(*words, env=own)
        assert refused.returncode == 125
        assert "needs the role admin" in refused.stderr, words
    assert muster("token", "revoke", carol.split("_")[2], env=own).returncode == 0
    assert "revoked" in muster("whoami", env=own).stderr
    assert muster("whoami", env={"MUSTER_TOKEN": dave}).stdout == "dave\n"


def test_a_user_is_changed_disabled_and_enabled(
    muster: Muster, coordinator: CoordinatorProcess
) -> None:
    own = {"MUSTER_TOKEN": as_user(muster, coordinator, "frank")}
    changed = muster("user", "set", "frank", "--role", "operator", "--no-teams", "--json")
    assert json.loads(changed.stdout)["user"]["role"] == "operator"
    assert json.loads(changed.stdout)["user"]["teams"] == []
    job = muster("submit", "--", "true", env=own)
    assert job.returncode == 0, job.stderr
    asks = muster("user", "disable", "frank")
    assert asks.returncode == 2
    assert "1 job that has not ended: give --end-jobs or --keep-jobs" in asks.stderr
    assert muster("whoami", env=own).returncode == 0
    kept = muster("user", "disable", "frank", "--keep-jobs")
    assert (kept.returncode, "1 job of frank may run on" in kept.stderr) == (0, True), kept.stderr
    refused = muster("whoami", env=own)
    assert refused.returncode == 125
    assert "the user frank is disabled" in refused.stderr
    (line,) = (each for each in muster("user", "list").stdout.splitlines() if "frank" in each)
    assert line.split()[-3:] == ["1", "1", "disabled"]
    ended = muster("user", "disable", "frank", "--end-jobs")
    assert "cancelled 1 job of frank" in ended.stderr
    assert "CANCELLED" in muster("show", job.stdout.strip()).stdout
    assert muster("user", "set", "frank", "--enable").returncode == 0
    assert muster("whoami", env=own).stdout == "frank\n"


def test_at_a_terminal_revoke_and_disable_ask(
    muster: Muster, coordinator: CoordinatorProcess
) -> None:
    token = as_user(muster, coordinator, "gina")
    own = {"MUSTER_TOKEN": token}
    job = muster("submit", "--", "true", env=own).stdout.strip()

    def asked(*words: str) -> CompletedProcess[str]:
        ours, theirs = pty.openpty()
        try:
            os.write(ours, b"n\n")
            return muster(*words, stdin=theirs)
        finally:
            os.close(ours)
            os.close(theirs)

    kept = asked("token", "revoke", token.split("_")[2])
    assert (kept.returncode, "nothing was revoked" in kept.stderr) == (125, True), kept.stderr
    assert muster("whoami", env=own).stdout == "gina\n"
    disabled = asked("user", "disable", "gina")
    assert "1 job that has not ended; cancel it?" in disabled.stderr
    assert "the user gina is disabled" in muster("whoami", env=own).stderr
    assert json.loads(muster("show", job, "--json").stdout)["ended_at"] is None
    assert muster("cancel", job).returncode == 0


def test_whoami_has_the_teams_and_the_address(
    muster: Muster, coordinator: CoordinatorProcess
) -> None:
    own = {"MUSTER_TOKEN": as_user(muster, coordinator, "hana")}
    found = json.loads(muster("whoami", "--json", env=own).stdout)
    assert (found["role"], found["teams"], found["address"]) == ("user", ["lab"], "127.0.0.1")


def test_there_is_always_an_admin(muster: Muster, coordinator: CoordinatorProcess) -> None:
    for words in (
        ("user", "disable", "admin-user", "--keep-jobs"),
        ("user", "set", "admin-user", "--role", "user"),
        ("token", "revoke", "admin1"),
    ):
        refused = muster(*words)
        assert refused.returncode == 125, words
        assert "the last admin" in refused.stderr
    assert muster("whoami").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("user", "add", "admin-user"), 125, "already"),
        (("user", "add", "a b"), 2, "not a valid user name"),
        (("user", "set", "nobody", "--role", "user"), 125, "there is no user nobody"),
        (("user", "set", "admin-user"), 2, "nothing to change"),
        (("user", "disable", "x", "--end-jobs", "--keep-jobs"), 2, "exclude each other"),
        (("token", "create", "--user", "nobody"), 125, "muster user add nobody"),
        (("token", "create", "--user", "bob", "--role", "join"), 2, "no user"),
    ],
)
def test_a_request_that_cannot_be_met_says_why(
    muster: Muster, words: tuple[str, ...], code: int, said: str
) -> None:
    done = muster(*words)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
