"""NCCL's files in a folder that is the job's."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

import pytest

from agent.monitors.traffic import nccl_log as module
from agent.monitors.traffic.nccl_log import FILES_MAX, LOG, FileState, NcclLines
from muster.fabric import nccl_communicators, nccl_log
from muster.fabric.nccl_log import ProcessEvidence
from muster.protocol.observations.traffic import NcclEvidence
from tests.descriptors import descriptors_left
from tests.fabric import nccl_lines as said


@pytest.fixture
def task(tmp_path: Path) -> Path:
    (tmp_path / "nccl").mkdir()
    (tmp_path / "logs").mkdir()
    return tmp_path


def write(task: Path, name: str, text: str) -> None:
    with open(task / "nccl" / name, "a") as file:
        file.write(text)


def test_lines_are_read_as_they_come(task: Path) -> None:
    found = NcclLines(task)
    assert found.look().processes == 0
    whole = said.IB_2_18
    write(task, "gpu-07.1", whole[:100])
    found.look()
    write(task, "gpu-07.1", whole[100:])
    write(task, "gpu-07.2", said.SOCKET_2_18)
    evidence = found.look()
    assert (evidence.processes, evidence.sockets, evidence.over_rdma) == (2, 1, 4)
    assert sorted((task / LOG).read_text().splitlines()) == sorted(
        (whole + said.SOCKET_2_18).splitlines()
    )
    found.close()


def test_another_life_goes_on_and_counts_nothing_twice(task: Path) -> None:
    first = NcclLines(task)
    write(task, "gpu-07.1", said.IB_2_18 + "gpu-07:1:2 [0] NCCL INFO Chan")
    first.look()
    known = first.state()
    first.close()
    write(task, "gpu-07.1", "nel 09/0 : 0[0] -> 8[0] [send] via NET/IB/0\n")
    second = NcclLines(task, known)
    assert second.look().over_rdma == 5
    second.close()
    assert second.look().over_rdma == 5


@pytest.mark.parametrize("left", range(4))
def test_no_line_is_lost_for_want_of_descriptors(task: Path, left: int) -> None:
    found = NcclLines(task)
    write(task, "gpu-07.1", said.IB_2_18)
    found.look()
    for name in ("gpu-07.1", "gpu-07.2", "gpu-07.3"):
        write(task, name, said.SOCKET_2_18)
    with descriptors_left(left):
        found.look()
    assert found.blind is (left < 3)
    evidence = found.look()
    assert not found.blind
    assert (evidence.processes, evidence.over_rdma) == (3, 4)
    assert sorted((task / LOG).read_text().splitlines()) == sorted(
        (said.IB_2_18 + 3 * said.SOCKET_2_18).splitlines()
    )
    found.close()


def test_evidence_from_a_deleted_file_stays_known(task: Path) -> None:
    first = NcclLines(task)
    write(task, "gpu-07.1", said.SOCKET_2_18)
    first.look()
    known = first.state()
    first.close()
    os.unlink(task / "nccl" / "gpu-07.1")
    assert NcclLines(task, known).look().sockets == 1


def test_nothing_that_the_job_lays_there_is_followed(task: Path) -> None:
    secret = task / "secret"
    secret.write_text(said.SOCKET_2_18)
    os.symlink(secret, task / "nccl" / "link.1")
    os.link(secret, task / "nccl" / "second.1")
    os.mkfifo(task / "nccl" / "fifo.1")
    (task / "nccl" / "folder.1").mkdir()
    assert NcclLines(task).look().processes == 0
    assert not (task / LOG).exists()


def test_a_folder_that_is_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "gpu-07.1").write_text(said.IB_2_18)
    os.symlink(tmp_path / "elsewhere", tmp_path / "nccl")
    assert NcclLines(tmp_path).look().processes == 0


def test_so_many_files_and_no_more(task: Path) -> None:
    for number in range(FILES_MAX + 20):
        write(task, f"gpu-07.{number}", said.info("Using network IB"))
    found = NcclLines(task)
    assert found.look().processes == FILES_MAX
    assert found.look().processes == FILES_MAX
    found.close()


def test_files_that_come_between_two_lives_are_no_more_in_all(task: Path) -> None:
    known: dict[str, FileState] = {}
    for life in range(3):
        for number in range(FILES_MAX):
            write(task, f"gpu-{life}.{number}", said.info("Using network IB"))
        found = NcclLines(task, known)
        assert found.look().processes == FILES_MAX
        known = found.state()
        found.close()
        for file in (task / "nccl").iterdir():
            file.unlink()
    assert len(known) == FILES_MAX


def test_the_records_of_a_task_s_files_are_bounded(task: Path) -> None:
    inits, channels = [
        "".join(f":1:1 [0] {line}\n" for line in lines)
        for lines in (
            [
                f"comm 0x1 rank {rank} nranks 999 c commId 0x{comm:x} - Init START"
                for comm in range(8)
                for rank in range(64)
            ],
            [f"Channel 00 : {n + 1000} -> {n + 2000} [send] via NET/IB/0" for n in range(64)],
        )
    ]
    for number in range(20):
        write(task, f"gpu-07.{number}", inits + channels)
    found = NcclLines(task)
    assert found.look().over_rdma == 20 * 64
    comms = [comm for one in found.state().values() for comm in one.said.comms]
    held = sum(1 + len(comm.own) + len(comm.pairs) for comm in comms)
    # Each process has one unnamed communicator and one unknown pair beyond them.
    most = nccl_communicators.ENTRIES_MAX
    assert most <= held <= most + 2 * 20
    known = found.state()
    found.close()
    write(task, "gpu-07.x", inits + channels)
    again = NcclLines(task, known)
    assert again.look().over_rdma == 21 * 64
    assert len(again.state()["gpu-07.x"].said.comms) <= 1
    again.close()


def test_evidence_is_put_together_where_there_are_new_bytes(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[NcclEvidence] = []
    whole = nccl_log.merged

    def counted(found: Iterable[ProcessEvidence]) -> NcclEvidence:
        merged.append(whole(found))
        return merged[-1]

    monkeypatch.setattr(module, "merged", counted)
    found = NcclLines(task)
    write(task, "gpu-07.1", said.IB_2_18)
    assert [found.look().over_rdma for _ in range(3)] == [4, 4, 4]
    assert len(merged) == 1
    write(task, "gpu-07.1", said.SOCKET_2_18)
    found.look()
    assert len(merged) == 2
    found.close()


def test_a_look_reads_a_part_and_begins_with_another_file(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_BYTES_MAX", 2 << 20)
    for name in ("a", "b", "c"):
        write(task, name, (1 << 20) * 3 * "x" + "\n")
    write(task, "d", said.IB_2_18)
    found = NcclLines(task)
    assert found.look().over_rdma == 0
    assert found.behind
    assert found.look().over_rdma == 4
    looks = 2
    while found.behind:
        found.look()
        looks += 1
    assert looks <= 6
    assert {name: one.read for name, one in found.state().items()} == {
        "a": (3 << 20) + 1,
        "b": (3 << 20) + 1,
        "c": (3 << 20) + 1,
        "d": len(said.IB_2_18),
    }
    found.close()


def test_skipped_bytes_take_no_room(task: Path) -> None:
    for rank in range(FILES_MAX):
        write(task, f"fr_{rank}", "x")
        os.mkfifo(task / "nccl" / f"frp_{rank}.pipe")
        os.symlink(task / "logs", task / "nccl" / f"a.{rank}")
    write(task, "gpu-07.1", said.IB_2_18)
    found = NcclLines(task)
    found.look()
    # The first look tried the refused files; the second look skips them.
    assert found.look().processes == 1
    found.close()


def test_the_record_of_refused_files_is_bounded(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REFUSED_MAX", 10)
    for number in range(20):
        os.symlink(task / "logs", task / "nccl" / f"a.{number}")
    write(task, "gpu-07.1", said.IB_2_18)
    found = NcclLines(task)
    assert [found.look().processes for _ in range(3)] == [0, 0, 0]
    found.close()


def test_the_copy_is_bounded_and_says_so(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 4000)
    found = NcclLines(task)
    for _ in range(20):
        write(task, "gpu-07.1", said.IB_2_18)
        found.look()
    kept = (task / LOG).read_text()
    assert len(kept) < 4200
    assert kept.endswith("[muster: NCCL said more; it is left out here]\n")
    assert found.look().over_rdma == 80
    found.close()


def test_a_file_gives_back_what_was_read_of_it(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 1 << 20)
    found = NcclLines(task)
    with open(task / "nccl" / "gpu-07.1", "wb") as file:
        file.write(b"x" * (3 << 20) + b"\n")
        file.flush()
        os.fsync(file.fileno())
        before = os.fstat(file.fileno()).st_blocks
        found.look()
        after = os.fstat(file.fileno())
        if after.st_blocks == before:
            pytest.skip("this file system does not punch holes")
        assert after.st_size == (3 << 20) + 1
        file.write(said.info("Using network Socket").encode())
        file.flush()
    assert found.look().sockets == 1
    found.close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of several users")
def test_a_file_of_root_that_the_job_moved_there_is_neither_read_nor_emptied(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 1)
    nobody = pwd.getpwnam("nobody").pw_uid
    os.chown(task / "nccl", nobody, nobody)
    write(task, "gpu-07.1", "SECRET=of root\n" + said.SOCKET_2_18)
    (task / "nccl" / "gpu-07.1").chmod(0o600)
    before = (task / "nccl" / "gpu-07.1").read_bytes()
    write(task, "gpu-07.2", said.IB_2_18)
    os.chown(task / "nccl" / "gpu-07.2", nobody, nobody)
    found = NcclLines(task)
    evidence = found.look()
    found.close()
    assert (evidence.processes, evidence.sockets, evidence.over_rdma) == (1, 0, 4)
    assert "SECRET" not in (task / LOG).read_text()
    assert (task / "nccl" / "gpu-07.1").read_bytes() == before


def test_a_part_of_a_folder_with_very_many_names_is_listed(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NAMES_MAX", 10)
    for number in range(50):
        write(task, f"gpu-07.{number}", said.info("Using network IB"))
    found = NcclLines(task)
    assert found.look().processes == 10
    found.close()
