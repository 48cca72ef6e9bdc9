"""A coordinator whose journal is damaged: refused with the command that helps, and then well."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from muster.protocol.states import TaskState
from orchestrator.journal.backup import back_up
from orchestrator.journal.journal import Journal
from tests.orchestrator.fake_agent import connect
from tests.orchestrator.journal.commands import in_this_process
from tests.orchestrator.process import DEADLINE_S, CoordinatorProcess, run
from tests.orchestrator.user import user_of
from tests.small_disk import small_disk


def verb(process: CoordinatorProcess, *words: str) -> tuple[int, str]:
    """`muster coordinator WORDS` in this process; its code and what it says."""
    code, output = in_this_process(*words, "--config", str(process.config))
    return code, output.strip()


def refused(process: CoordinatorProcess) -> str:
    """Return the output of a coordinator that cannot start."""
    daemon = run(process.config)
    _, said = daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == 1
    return said.strip()


async def submit(process: CoordinatorProcess) -> tuple[int, str]:
    """Submit a job; returns it with the task that the node prepared."""
    async with user_of(process) as user, connect(process, "n1") as agent:
        await agent.hello()
        job = await user.submit()
        task = await agent.prepare()
        await agent.report(task, TaskState.CLEANED)
        return job, task


def test_a_damaged_journal_is_restored_by_the_command_that_is_named(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path).start() as process:
        assert asyncio.run(submit(process))[0] == 1
        assert verb(process, "--check")[0] == 0, "beside the one that runs"
        backup = str(tmp_path / "backup.sqlite")
        code, said = verb(process, "backup", backup)
        assert (code, "1 jobs" in said) == (0, True), said
        code, said = verb(process, "backup", backup)
        assert (code, "exists already" in said) == (1, True), said
        code, said = verb(process, "restore", backup)
        assert (code, "in use by process" in said) == (1, True), said
        # The backup does not contain this job.
        asyncio.run(submit(process))
        epoch = process.events("serving")[-1]["epoch"]
        process.terminate()
        with (process.state_dir / "journal.sqlite").open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 8192)

        said = refused(process)
        (line,) = said.splitlines()
        assert "is damaged" in line
        assert f"`muster restore --config {process.config} BACKUP`" in line
        assert verb(process, "--check") == (1, said)
        words = shlex.split(line.partition("`")[2].partition("`")[0])[1:]
        code, said = verb(process, *(word.replace("BACKUP", backup) for word in words))
        assert (code, "restored 1 jobs" in said) == (0, True), said

        process.start()
        assert process.events("serving")[-1]["epoch"] > epoch, "agents take it for the newest"
        assert asyncio.run(submit(process))[0] > 2, "no number comes twice"


@pytest.mark.root
def test_a_restore_by_root_is_for_the_user_of_the_coordinator(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path).start() as process:
        asyncio.run(submit(process))
        verb(process, "backup", str(tmp_path / "backup.sqlite"))
        process.terminate()
        # Like a machine that the coordinator has just moved to: an empty folder owned by its user.
        shutil.rmtree(process.state_dir)
        process.state_dir.mkdir()
        os.chown(process.state_dir, 12345, 12346)
        code, said = verb(process, "restore", str(tmp_path / "backup.sqlite"))
        assert code == 0, said
    made = {
        file.name: (file.stat().st_uid, file.stat().st_gid) for file in process.state_dir.iterdir()
    }
    assert made == dict.fromkeys(("journal.sqlite", "lock"), (12345, 12346))


def test_a_tool_that_opened_the_journal_after_a_crash_costs_no_job(
    tmp_path: Path,
) -> None:
    with CoordinatorProcess(tmp_path).start() as process:
        asyncio.run(submit(process))
        process.kill()
        # The sqlite3 tool does the same: the last process to close the file merges and removes its
        # WAL.
        with contextlib.closing(sqlite3.connect(process.state_dir / "journal.sqlite")) as database:
            database.execute("SELECT count(*) FROM fact").fetchone()
        said = refused(process)
        assert "sqlite3" in said
        assert said.index("remove ") < said.index("as a last resort"), "which would lose jobs"
        mark = shlex.split(said.partition("remove ")[2])[0]
        Path(mark).unlink()
        code, said = verb(process, "--check")
        assert (code, "has 1 jobs" in said) == (0, True), said
        process.start()
        assert asyncio.run(submit(process))[0] == 2


async def several(process: CoordinatorProcess, count: int) -> list[int]:
    async with user_of(process) as user, connect(process, "n1") as agent:
        await agent.hello()
        return [await user.submit() for _ in range(count)]


async def known(process: CoordinatorProcess) -> set[int]:
    async with user_of(process) as user:
        return {job["id"] for job in (await user.get("/v1/jobs?limit=100"))["jobs"]}


def command_in(said: str, word: str) -> list[str]:
    """Return the command in backticks that contains that word, without `muster`."""
    (command,) = (part for part in said.split("`")[1::2] if word in part)
    return shlex.split(command)[1:]


@pytest.mark.parametrize("how", ["a bit is flipped", "cut"])
def test_a_damaged_log_is_refused_and_its_whole_part_goes_on(tmp_path: Path, how: str) -> None:
    with CoordinatorProcess(tmp_path).start() as process:
        jobs = asyncio.run(several(process, 20))
        epoch = process.events("serving")[-1]["epoch"]
        process.kill()
        log = process.state_dir / "journal.sqlite-wal"
        data = bytearray(log.read_bytes())
        data[len(data) // 3] ^= 1
        log.write_bytes(data if how != "cut" else data[: len(data) // 3])

        said = refused(process)
        assert "journal.sqlite-wal is " in said
        assert "damaged" in said
        assert said.index("--salvage") < said.index("BACKUP"), "which loses more"
        assert verb(process, "--check") == (1, said)
        code, of_backup = verb(process, "backup", str(tmp_path / "copy"))
        assert (code, "damaged" in of_backup) == (1, True), of_backup
        code, said = verb(process, *command_in(said, "--salvage"))
        assert code == 0, said

        process.start()
        assert process.events("serving")[-1]["epoch"] > epoch + 1, "agents take it for the newest"
        left = asyncio.run(known(process))
        # About two thirds of the log came behind the damage.
        assert set(jobs[:3]) <= left < set(jobs)
        assert asyncio.run(several(process, 1))[0] > jobs[-1], "no number comes twice"


def test_a_database_that_is_lost_after_a_crash_is_put_back_with_all_jobs(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path).start() as process:
        jobs = asyncio.run(several(process, 5))
        process.kill()
        database = process.state_dir / "journal.sqlite"
        database.rename(tmp_path / "moved")
        said = refused(process)
        assert "journal.sqlite is missing or empty" in said
        assert "put the journal back" in said
        (tmp_path / "moved").rename(database)
        process.start()
        assert asyncio.run(known(process)) == set(jobs)


@pytest.mark.root
def test_a_state_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        process = CoordinatorProcess(tmp_path, state_dir=str(disk / "state")).start()
        process.terminate()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        said = refused(process)
        assert verb(process, "--check") == (1, said)
    (line,) = said.splitlines()
    assert "Read-only file system" in line
    assert str(disk / "state") in line


def test_a_check_before_the_first_start_makes_nothing(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path)
    process.config.write_text(f"state_dir: {tmp_path}/s\ntokens_file: {tmp_path}/tokens\n")
    code, said = verb(process, "--check")
    assert (code, "0 jobs" in said) == (0, True), said
    assert not (tmp_path / "s").exists(), "looking makes nothing"


def test_the_folder_of_logs_that_is_configured_is_looked_at(tmp_path: Path) -> None:
    logs = tmp_path / "disk"
    (logs / "2000").mkdir(parents=True)
    process = CoordinatorProcess(tmp_path, job_logs={"dir": str(logs)})
    process.config.write_text(json.dumps(process.settings))
    said = refused(process)
    assert "journal.sqlite is missing or empty" in said
    assert verb(process, "--check") == (1, said)
    code, of_backup = verb(process, "backup", str(tmp_path / "none"))
    assert (code, "journal.sqlite is missing or empty" in of_backup) == (1, True), of_backup

    Journal.open(tmp_path / "other").close()
    backup = str(tmp_path / "backup.sqlite")
    back_up(tmp_path / "other", Path(backup))
    assert verb(process, "restore", backup)[0] == 0
    with contextlib.closing(Journal.open(process.state_dir)) as journal:
        assert journal.first_job > 2000


def test_logs_on_a_disk_that_is_not_mounted_are_not_begun_anew(tmp_path: Path) -> None:
    async def submit() -> None:
        async with connect(process, "n1") as agent, user_of(process) as user:
            await agent.hello()
            await user.submit("one")

    mount = tmp_path / "disk"
    logs = mount / "logs"
    process = CoordinatorProcess(tmp_path, job_logs={"dir": str(logs)})
    with process.start():
        asyncio.run(submit())
    mount.rename(tmp_path / "away")
    mount.mkdir()
    said = refused(process)
    assert "Mount its disk" in said
    assert not logs.exists()
    assert verb(process, "--check") == (1, said)
    mount.rmdir()
    (tmp_path / "away").rename(mount)
    with process.start():
        pass
    shutil.rmtree(mount)
    logs.mkdir(parents=True)
    (logs / "muster-job-logs").touch()
    with process.start():
        pass


def test_files_of_every_command_belong_to_the_owner_only(tmp_path: Path) -> None:
    """Also what SQLite makes while a backup is written, whatever umask the shell has."""
    modes = []

    def probe(*_: object) -> None:
        (tmp_path / "made").touch()
        modes.append((tmp_path / "made").stat().st_mode & 0o777)

    process = CoordinatorProcess(tmp_path)
    process.config.write_text(f"state_dir: {tmp_path}/s\ntokens_file: {tmp_path}/tokens\n")
    before = os.umask(0)
    try:
        with mock.patch("orchestrator.__main__.back_up", probe):
            verb(process, "backup", str(tmp_path / "none"))
    finally:
        os.umask(before)
    assert modes == [0o600]
