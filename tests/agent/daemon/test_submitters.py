"""Jobs that run as the users who submitted them, two at once on one node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from agent.config import SUBMITTER, AgentConfig
from agent.taskdirs.task_accounts import TaskAccounts, UserRefusedError
from muster.daemon.errors import FileError
from muster.protocol.git_code import GitCode
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ForgetTask, StopTask, TaskReport
from muster.protocol.link.log_channel import StreamId, StreamKind
from muster.protocol.states import TaskState
from tests.agent.coordinator import Coordinator, Session
from tests.agent.daemon.test_one_task import TASK, begin, is_in, prepare, until, until_gone
from tests.agent.process_of_agent import AgentProcess, write_config

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]
OTHER = TaskId("8.1.0")
# Users of one primary group, as on many clusters.
ANN, BOB, GROUP, VISION = 47_111, 47_112, 47_100, 47_121
MAP = {"bob@example.org": "bob"}

# The real accounts of this machine stay as they are: the agent sees these files in their place.
WITHIN = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'for it in passwd group login.defs; do mount --bind $it /etc/$it || exit 1; done; exec "$@"',
    "sh",
)

WHO = """\
echo "$(id -u) $(id -g) $(id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' ')"
echo "$HOME $USER $LOGNAME $SHELL $(umask)"
echo "$TMPDIR"; echo secret > "$HOME/private"; cat "$HOME/private"; touch "$TMPDIR/x" "$1/x"
"""

# Files in folders that all users share.
LEAVE = "touch /tmp/$2 /var/tmp/$2 /dev/shm/$2"

# All that a job might try with another's; prints what worked.
ATTEMPTS = """\
pid=$2 home=$3 folder=$4 output=$5 name=$6
try() { if "$@" > /dev/null 2>&1; then echo "could $*"; fi; }
try cat $home/private; try ls $home; try touch $home/x
try cat /proc/$pid/environ; try ls /proc/$pid/fd/; try ls /proc/$pid/cwd/; try cat /proc/$pid/maps
try sh -c "echo forged >> /proc/$pid/fd/1"
try ls $folder; try cat $folder/task.json; try touch $folder/x; try ls $folder/scratch
try ls $folder/nccl; try ls $folder/logs; try cat $folder/logs/rank-0.stdout
try test -r $folder/shim.sock; try test -w $folder/shim.sock
try ls ${output%/*}; try ls $output; try cat $output/x; try touch $output/y
try ls -d /proc/$pid; try cat /proc/$pid/cmdline; try sh -c "exec 3< /proc/$pid/mem"
try ls /tmp/$name; try ls /var/tmp/$name; try ls /dev/shm/$name
try kill -0 $pid; try kill -TERM $pid
echo done
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all users may pass, with the accounts and the homes of two of them."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o711)
        accounts = [("ann", ANN), ("bob", BOB), ("system", 501)]
        (path / "login.defs").write_text("# UMASK 000\nUMASK\t027\nUSERGROUPS_ENAB yes\n")
        gecos = {"bob": "Bob,,,umask=077"}
        lines = [
            f"{name}:x:{uid}:{GROUP}:{gecos.get(name, '')}:{path}/{name}:/bin/sh\n"
            for name, uid in accounts
        ]
        for file, more in (
            ("passwd", "".join(lines)),
            ("group", f"users47:x:{GROUP}:\nvision:x:{VISION}:ann\n"),
        ):
            shutil.copy(f"/etc/{file}", path / file)
            with (path / file).open("a") as text:
                text.write(more)
        for user, uid in accounts[:2]:
            (path / user).mkdir(mode=0o700)
            os.chown(path / user, uid, GROUP)
        yield path
        found_of(path)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, run_as: str = SUBMITTER, **more: object
) -> AsyncIterator[tuple[Coordinator, Session]]:
    async with Coordinator() as coordinator:
        config = write_config(
            folder, coordinator.url, run_as=run_as, user_map=MAP, allow_root_jobs=False, **more
        )
        async with AgentProcess(config, within=WITHIN):
            session = await coordinator.session()
            await session.welcome()
            yield coordinator, session


def cleaned(task: TaskId) -> Callable[[TaskReport], bool]:
    return lambda report: report.task == task and report.state is TaskState.CLEANED


def _name(folder: Path) -> str:
    return f"left-by-{folder.name}"


def found_of(folder: Path) -> list[Path]:
    """The files of LEAVE on the machine; they are removed."""
    places = [Path(place) / _name(folder) for place in ("/tmp", "/var/tmp", "/dev/shm")]
    left = [path for path in places if path.exists()]
    for path in left:
        path.unlink()
    return left


async def said_by(coordinator: Coordinator, task: TaskId) -> list[str]:
    """The lines of a task that has ended."""
    await coordinator.logs.until(lambda store: task in store.tasks)
    return bytes(coordinator.logs.data[StreamId(task, StreamKind.STDOUT, 0)]).decode().splitlines()


async def two_jobs(
    folder: Path, run_as: str = SUBMITTER, **more: object
) -> tuple[list[str], list[str], str]:
    """Run Ann's job, and Bob's against it; what both said, and what ended hers."""
    async with serving(folder, run_as, **more) as (coordinator, session):
        output = folder / "state/output/7/1"
        script = f"{LEAVE}; {WHO} exec sleep 600"
        argv = "/bin/sh", "-c", script, "sh", str(output), _name(folder)
        await begin(session, *argv, user="ann")
        ann = await session.expect(TaskReport, lambda it: bool(it.ranks and it.ranks[0].pid))
        # Its last file; the shell becomes `sleep` then.
        await until((output / "x").exists)
        own = str(folder / "state/tasks" / TASK)
        await begin(
            session,
            *("/bin/sh", "-c", f"{WHO} {ATTEMPTS}", "sh", str(folder / "state/output/8/1")),
            *(str(ann.ranks[0].pid), str(folder / "ann"), own, str(output), _name(folder)),
            task=OTHER,
            user="bob@example.org",
        )
        await session.expect(TaskReport, cleaned(OTHER))
        await session.send(StopTask(TASK, grace_s=5.0))
        end = await session.expect(TaskReport, cleaned(TASK))
        hers, his = await said_by(coordinator, TASK), await said_by(coordinator, OTHER)
        for task in (TASK, OTHER):
            await session.send(ForgetTask(task))
            await until_gone(folder / "state/tasks" / task)
        return hers, his, end.stopped_by


def test_two_users_at_once_are_kept_apart(folder: Path) -> None:
    hers, his, ended = asyncio.run(two_jobs(folder, SUBMITTER))
    for said, name, ids, task, umask in (
        (hers, "ann", f"{ANN} {GROUP} {GROUP} {VISION} ", TASK, 0o027),
        (his, "bob", f"{BOB} {GROUP} {GROUP} ", OTHER, 0o077),
    ):
        scratch = folder / "state/tasks" / task / "scratch"
        home = f"{folder}/{name} {name} {name} /bin/sh {umask:04o}"
        assert said[:4] == [ids, home, str(scratch), "secret"]
        assert (folder / name / "private").stat().st_mode & 0o777 == 0o666 & ~umask
    assert hers[4:] == []
    assert his[4:] == ["done"], "the job of another user has reached what it must not"
    assert ended == "stop"
    assert not found_of(folder), "a job has left something behind"
    assert (folder / "state/output/7/1/x").stat().st_uid == ANN
    assert (folder / "state/output/8/1/x").stat().st_uid == BOB


def test_what_a_site_may_switch_off(folder: Path) -> None:
    off = two_jobs(folder, SUBMITTER, private_tmp=False, hide_processes=False)
    _, his, _ = asyncio.run(off)
    could = {" ".join(line.split()[1:-1]) for line in his if line.startswith("could")}
    assert could == {"ls", "ls -d", "cat"}
    found = [line.split()[-1] for line in his if line.startswith("could")]
    assert [path.endswith(("/cmdline", _name(folder))) for path in found[1:]] == [True] * 4
    assert len(found_of(folder)) == 3


def test_with_one_user_for_all_jobs_they_are_not(folder: Path) -> None:
    """So the test above tries what does work."""
    hers, his, _ = asyncio.run(two_jobs(folder, "ann"))
    could = {line.split()[1]: line for line in his if line.startswith("could")}
    assert {"cat", "ls", "touch", "kill", "sh"} <= could.keys()
    assert "forged" in hers
    assert not [line for line in his if "task.json" in line or line.endswith("/logs")]


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("carol", "User carol, who submitted the job, does not exist on this node"),
        ("system", "has uid 501 on this node, and jobs run as users from uid 1000 only"),
        ("root", "has uid 0 on this node"),
        ("../bob", "'../bob', which is not the name of an account; map it in `user_map`"),
        ("", "upgrade the coordinator"),
    ],
)
def test_a_user_without_an_account_for_jobs_is_refused(folder: Path, user: str, words: str) -> None:
    async def story() -> None:
        async with serving(folder) as (_, session):
            await session.send(prepare(setup=("touch", str(folder / "made")), user=user))
            report = await session.expect(TaskReport, is_in(TaskState.CLEANED))
            assert report.refusal is not None
            assert (report.refusal.code, report.refusal.node_fault) == ("user_refused", False)
            assert words in report.refusal.text
            await session.send(ForgetTask(TASK))
            await session.send(prepare(OTHER, user="ann"))
            await session.expect(TaskReport, is_in(TaskState.PREPARED))
            assert os.listdir(folder / "state/tasks") == [OTHER]
            assert os.listdir(folder / "state/output") == ["8"]

    asyncio.run(story())
    assert not (folder / "made").exists()


@pytest.mark.parametrize("name", ["a:b", "-ann", "1000", "Ann", "ann\n", "a" * 33, "ann smith"])
def test_no_odd_name_is_looked_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwnam", lambda _: pytest.fail("it was looked up"))
    owners = TaskAccounts(AgentConfig(run_as=SUBMITTER))
    with pytest.raises(UserRefusedError, match="not the name of an account"):
        asyncio.run(owners.of(prepare(user=name)))


@pytest.mark.parametrize("single_team", [False, True])
@pytest.mark.parametrize(("run_as", "uid"), [("nobody", 0), (None, 0), (None, 1000)])
def test_one_user_for_all_jobs_shares_a_secret_only_in_a_single_team(
    monkeypatch: pytest.MonkeyPatch, run_as: str | None, uid: int, *, single_team: bool
) -> None:
    """The user of `run_as`, root with `allow_root_jobs`, or the agent's own."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    root = uid == 0 and run_as is None
    config = AgentConfig(run_as=run_as, allow_root_jobs=root, single_team=single_team)
    owners = TaskAccounts(config)
    plain = prepare(git=GitCode("https://host/code.git", "c" * 40))
    assert asyncio.run(owners.of(plain)) == owners.fixed
    private = prepare(git=GitCode("https://host/code.git", "c" * 40, secret="deploy"))
    if single_team:
        assert asyncio.run(owners.of(private)) == owners.fixed
        return
    with pytest.raises(UserRefusedError, match=r"secret deploy.*`single_team: true` if all users"):
        asyncio.run(owners.of(private))


def test_users_who_are_mapped_to_one_account_share_no_secret() -> None:
    mapped = {"ann@example.org": "nobody", "bob@example.org": "nobody"}
    secret = GitCode("https://host/code.git", "c" * 40, secret="deploy")
    for single_team in (False, True):
        config = AgentConfig(run_as=SUBMITTER, user_map=mapped, single_team=single_team)
        owners = TaskAccounts(config)
        nobody = asyncio.run(owners.of(prepare(user="bob@example.org")))
        assert nobody is not None
        private = owners.of(prepare(user="bob@example.org", git=secret))
        if single_team:
            assert asyncio.run(private) == nobody
            continue
        with pytest.raises(UserRefusedError, match=r"several users run as nobody \(`user_map`\)"):
            asyncio.run(private)


def test_who_is_mapped_to_the_name_of_another_user_shares_no_secret_with_that_one() -> None:
    secret = GitCode("https://host/code.git", "c" * 40, secret="deploy")
    ann, nobody = "ann@example.org", "nobody"
    owners = TaskAccounts(AgentConfig(run_as=SUBMITTER, user_map={ann: nobody}))
    private = prepare(user=ann, git=secret)
    for users in (None, (ann, "bob"), ()):
        owners.use(users)
        assert asyncio.run(owners.of(private)) is not None
    owners.use((ann, nobody))
    assert asyncio.run(owners.of(prepare(user=ann))) is not None
    for user in (ann, nobody):
        with pytest.raises(UserRefusedError, match=r"several users run as nobody \(`user_map`\)"):
            asyncio.run(owners.of(prepare(user=user, git=secret)))
    # The jobs of user `nobody` run under another account, so the account is not shared.
    both = TaskAccounts(AgentConfig(run_as=SUBMITTER, user_map={ann: nobody, nobody: "bob"}))
    both.use((ann, nobody))
    assert asyncio.run(both.of(private)) is not None


def test_only_root_can_run_jobs_as_their_submitters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(FileError, match="only root can run jobs as the users who submit them"):
        TaskAccounts(AgentConfig(run_as=SUBMITTER))
