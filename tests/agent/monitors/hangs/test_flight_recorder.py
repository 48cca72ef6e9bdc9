"""NCCL's flight recorder: pipes that are not the rank's are left alone, and a dump is never more
than plain data to us."""

from __future__ import annotations

import asyncio
import os
import pickle
import pwd
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from agent.monitors.hangs import flight_recorder
from agent.monitors.hangs.flight_recorder import ask, read, recorded, trigger
from agent.monitors.hangs.py_spy import WAIT_S as STACKS_S
from agent.shim.system.job_files import RefusedFileError
from agent.taskdirs.taskdirs import TaskUser
from muster.protocol.observations.hangs import RecordedRank
from orchestrator.core.model.limits import HangLimits

OWN = TaskUser(os.geteuid(), os.getegid())
ENTRIES = {
    "version": "2.9",
    "entries": [
        {
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "state": "completed" if number < 7 else "scheduled",
            "input_sizes": [[1024]],
        }
        for number in range(1, 8)
    ],
}


def read_now(path: Path, rank: int) -> RecordedRank:
    async def main() -> RecordedRank:
        return await read(path, rank, OWN, asyncio.get_running_loop().time() + 30.0)

    return asyncio.run(main())


async def all_of(folder: Path, ranks: int = 1) -> tuple[RecordedRank, ...]:
    asked = await ask(folder, OWN, range(ranks))
    return await recorded(folder, OWN, asked)


class Evil:
    """Runs a command when it is unpickled without restrictions."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_a_dump_in_words(tmp_path: Path) -> None:
    dump = tmp_path / "fr_3"
    dump.write_bytes(pickle.dumps(ENTRIES))
    found = read_now(dump, 3)
    assert (found.rank, found.enqueued, found.completed) == (3, 7, 6)
    assert found.last == "nccl:all_reduce number 7 [[1024]]: scheduled"
    assert found.problem == ""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark, dump = tmp_path / "ran", tmp_path / "fr_0"
    dump.write_bytes(pickle.dumps({"entries": [Evil(mark)]}, protocol))
    found = read_now(dump, 0)
    assert "is not plain data" in found.problem
    assert not mark.exists()


@pytest.mark.parametrize(
    "data", [b"", b"no pickle", pickle.dumps([1, 2]), b"\x80\x04" + b"(" * 1000]
)
def test_an_invalid_dump_is_reported_in_a_sentence(tmp_path: Path, data: bytes) -> None:
    dump = tmp_path / "fr_0"
    dump.write_bytes(data)
    assert read_now(dump, 0).problem


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(pickle.dumps(ENTRIES))
    (tmp_path / "fr_0").symlink_to("real")
    assert read_now(tmp_path / "fr_0", 0).problem


def test_only_a_pipe_of_the_ranks_own_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "good.pipe")
    (tmp_path / "file.pipe").write_bytes(b"")
    (tmp_path / "link.pipe").symlink_to("good.pipe")
    reader = os.open(tmp_path / "good.pipe", os.O_RDONLY | os.O_NONBLOCK)
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        trigger(folder, "good.pipe", os.getuid())
        assert os.read(reader, 10) == b"1"
        with pytest.raises(RefusedFileError, match="not to the job's user"):
            trigger(folder, "good.pipe", os.getuid() + 1)
        with pytest.raises(RefusedFileError, match="not a pipe"):
            trigger(folder, "file.pipe", os.getuid())
        with pytest.raises(RefusedFileError, match="symbolic link"):
            trigger(folder, "link.pipe", os.getuid())
        with pytest.raises(FileNotFoundError):
            trigger(folder, "none.pipe", os.getuid())
        assert (tmp_path / "file.pipe").read_bytes() == b""
    finally:
        os.close(reader)
        os.close(folder)


def test_a_pipe_without_a_reader_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / "nccl").mkdir()
    os.mkfifo(tmp_path / "nccl" / "frp_0.pipe")
    (found,) = asyncio.run(all_of(tmp_path))
    assert "No such device" in found.problem


def test_a_rank_that_is_asked_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a dump like torch: a byte comes through the pipe first."""
    monkeypatch.setattr(flight_recorder, "WAIT_S", 30.0)
    folder = tmp_path / "nccl"
    folder.mkdir()
    os.mkfifo(folder / "frp_0.pipe")
    pipe = os.open(folder / "frp_0.pipe", os.O_RDONLY | os.O_NONBLOCK)

    async def rank() -> None:
        heard = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe, heard.set)
        await heard.wait()
        (folder / "fr_0").write_bytes(pickle.dumps(ENTRIES))

    async def both() -> str:
        asked, _ = await asyncio.gather(all_of(tmp_path), rank())
        return asked[0].last

    try:
        assert "nccl:all_reduce" in asyncio.run(both())
    finally:
        os.close(pipe)


def test_ranks_are_waited_for_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nccl"
    folder.mkdir()
    pipes = []
    for rank in range(3):
        os.mkfifo(folder / f"frp_{rank}.pipe")
        pipes.append(os.open(folder / f"frp_{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK))
    together = threading.Barrier(3, timeout=30.0)

    def whole(path: Path, user: TaskUser, before: float) -> bool:
        together.wait()
        path.write_bytes(pickle.dumps(ENTRIES))
        return True

    monkeypatch.setattr(flight_recorder, "WAIT_S", 60.0)
    monkeypatch.setattr(flight_recorder, "_whole", whole)
    try:
        assert [one.problem for one in asyncio.run(all_of(tmp_path, 3))] == ["", "", ""]
    finally:
        for pipe in pipes:
            os.close(pipe)


def test_a_look_is_answered_before_the_coordinator_waits_no_more() -> None:
    assert HangLimits().look_s > STACKS_S + flight_recorder.WAIT_S + flight_recorder.READ_S


def test_without_nccl_there_is_nothing(tmp_path: Path) -> None:
    assert asyncio.run(all_of(tmp_path)) == ()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of several users")
def test_a_dump_of_another_user_is_not_read_and_one_of_the_job_as_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    user = TaskUser(nobody, nobody)
    dump = tmp_path / "fr_0"
    dump.write_bytes(pickle.dumps(ENTRIES))
    dump.chmod(0o600)

    async def story() -> tuple[RecordedRank, RecordedRank]:
        until = asyncio.get_running_loop().time() + 30.0
        refused = await read(dump, 0, user, until)
        assert not flight_recorder._whole(dump, user, 0.0)
        os.chown(dump, nobody, nobody)
        return refused, await read(dump, 0, user, until)

    # pytest's own folders let nobody else pass.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        reader = Path(name) / "reader"
        reader.write_text('#!/bin/sh\necho "{\\"rank\\": 0, \\"last\\": \\"$(id -u)\\"}"\n')
        reader.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(reader))
        refused, found = asyncio.run(story())
    assert f"belongs to uid 0 and not to the job's user, uid {nobody}" in refused.problem
    assert (found.problem, found.last) == ("", str(nobody))
