"""Everything that an agent reports is bounded when it is decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.protocol.ids import NodeName, TaskId
from muster.protocol.link.codec import FRAME_BYTES_MAX, ReportFrame, decode_report
from muster.protocol.link.control_channel import (
    Heartbeat,
    Hello,
    NodeChanges,
    NodeObservations,
    Prepared,
    RankReport,
    Refusal,
    Report,
    StacksReport,
    TaskReport,
)
from muster.protocol.link.report_bounds import bounded
from muster.protocol.observations import kernel_log
from muster.protocol.observations.fabric import PORTS_MAX, FabricPort, MissingPort, NodeFabric
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.observations.hangs import Frame, RankStacks, ThreadStack
from muster.protocol.observations.tasks import Checkpoint, TaskObservations
from muster.protocol.observations.traffic import FabricReport, NcclEvidence
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from tests.protocol.test_codec import INVENTORY

TASK = TaskId("1.1.0")
LONG = "x" * 50_000
PATHS = dict.fromkeys(("log_dir", "workdir", "scratch", "output", "hostfile"), "/x")


def prepared(**more: Any) -> Prepared:
    return Prepared(**{"address": "10.0.0.1", "ports": (1,), "gpus": 0, **PATHS, **more})


def report(**more: Any) -> TaskReport:
    return TaskReport(TASK, TaskState.STARTED, **more)


def fabric(**more: Any) -> TaskReport:
    return report(prepared=prepared(fabric=NodeFabric(**more)))


def largest(value: object) -> tuple[int, int]:
    """The longest text and the largest collection in a value."""
    match value:
        case str():
            return len(value), 0
        case tuple() | dict():
            members = [*value, *value.values()] if isinstance(value, dict) else value
            inner = [largest(member) for member in members]
            return max((i[0] for i in inner), default=0), max([len(value), *(i[1] for i in inner)])
        case msgspec.Struct():
            return largest(tuple(getattr(value, name) for name in value.__struct_fields__))
        case _:
            return 0, 0


@pytest.mark.parametrize(
    ("said", "chars", "members"),
    [
        (report(stopped_by=LONG), 4096, 256),
        (report(warnings=(LONG,)), 4096, 256),
        (report(warnings=("x",) * 9000), 4096, 256),
        (report(launcher_said=LONG), 16 << 10, 256),
        (report(observed=TaskObservations(checkpoint=Checkpoint(1, LONG))), 256, 256),
        (report(ranks=(RankReport(0),) * 9000), 16, 4096),
        (report(ranks=(RankReport(0, error=LONG, kernel=LONG),)), 16 << 10, 256),
        (report(refusal=Refusal("x", LONG)), 16 << 10, 256),
        (report(prepared=prepared(scratch=LONG, ports=(1,) * 9000)), 4096, 256),
        (fabric(unfit=(LONG,) * 9000), 512, PORTS_MAX),
        (fabric(ports=(FabricPort(LONG, 1),) * 9000), 512, PORTS_MAX),
        (fabric(missing=(MissingPort(LONG, "", LONG),) * 9000), 512, PORTS_MAX),
        (fabric(settings={LONG: LONG}), 512, PORTS_MAX),
        (
            report(observed=TaskObservations(FabricReport(nccl=NcclEvidence(reason=LONG)))),
            512,
            256,
        ),
        (
            StacksReport(
                TASK, 1, 1, (RankStacks(0, 1, (ThreadStack(LONG, (Frame(LONG, LONG),) * 9000),)),)
            ),
            4096,
            256,
        ),
    ],
)
def test_a_text_that_is_too_large_is_cut(said: Report, chars: int, members: int) -> None:
    before, after = largest(said), largest(bounded(said))
    assert before > after
    assert after[0] <= chars
    assert after[1] <= max(members, 32)  # the fields of a struct


def test_a_normal_report_arrives_unchanged() -> None:
    rank = RankReport(7, exit=ExitStatus(code=1), error="e" * 4096, kernel="k" * 32 * 400)
    ports = tuple(FabricPort(f"mlx5_{n}", 1, addresses=("10.0.0.1",) * 2) for n in range(PORTS_MAX))
    said = report(
        ranks=(rank,) * 8,
        launcher_said="s" * 4096,
        prepared=prepared(fabric=NodeFabric(ports=ports), addresses=("10.0.0.1",) * 200),
    )
    assert bounded(said) is said
    hello = Hello(NodeName("n1"), "id", "boot", "1", NodeObservations(INVENTORY), (said,) * 100)
    assert bounded(hello) is hello


def test_a_part_refused_as_too_large_is_not_cut() -> None:
    devices = tuple(GpuDevice(f"{n}") for n in range(1000))
    beat = Heartbeat(1.0, changes=NodeChanges(devices=devices))
    assert bounded(beat) is beat
    known = NodeObservations(msgspec.structs.replace(INVENTORY, devices=devices))
    hello = Hello(NodeName("n1"), "id", "boot", "1", known)
    assert bounded(hello) is hello


def test_a_decoded_report_is_cut() -> None:
    data = msgspec.json.encode(ReportFrame(1, report(stopped_by="x" * (FRAME_BYTES_MAX // 2))))
    body = decode_report(data).body
    assert isinstance(body, TaskReport)
    assert len(body.stopped_by) == 4096


@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Killed process {} (python) total-vm:1kB",
        "Out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:{}kB, file-rss:0kB",
        "NVRM: Xid (PCI:0000:4e:00): {}, pid=4242, name=python, gone",
    ],
)
def test_a_number_that_no_kernel_writes_is_none(line: str) -> None:
    found = kernel_log.read(line.format("9" * 5000))
    assert found is None or isinstance(found, kernel_log.Killed)
    assert "9999" not in repr(found)
