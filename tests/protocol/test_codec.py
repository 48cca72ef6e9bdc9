"""The wire: every message survives it, and nothing that is not a message gets through."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.ids import NodeName, SessionId, TaskId
from muster.protocol.link import codec
from muster.protocol.link import control_channel as m
from muster.protocol.link.codec import CommandFrame, ProtocolError, ReportFrame, UnknownMessage
from muster.protocol.link.given import GiveSettings, GiveUsers
from muster.protocol.link.terms import ChangeTerms, Terms
from muster.protocol.observations.fabric import NodeRdma
from muster.protocol.observations.hangs import (
    Doing,
    Frame,
    RankActivity,
    RankStacks,
    RecordedRank,
    Sign,
    ThreadStack,
)
from muster.protocol.observations.hardware_events import Grade, HardwareEvent
from muster.protocol.observations.node_settings import NodeSetting
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState

TASK = TaskId("42.1.0")
INVENTORY = m.Inventory(address="10.0.0.1", machine_id="m", gpus=8, labels={"rack": "r1"})
PREPARED = m.Prepared(
    address="10.0.0.1",
    ports=(20001,),
    gpus=8,
    log_dir="/l",
    workdir="/w",
    scratch="/s",
    output="/o",
    hostfile="/h",
    fingerprint=m.Fingerprint("3.11.7", "2.13.0"),
)
REPORT = m.TaskReport(
    task=TASK,
    state=TaskState.EXITED,
    prepared=PREPARED,
    listening=True,
    ranks=(m.RankReport(3, 3, 17, ExitStatus(signal=9), "Traceback"),),
    exit=ExitStatus(1),
    first_failed=3,
    running_s=1.5,
    stopped_by="stop",
    survivors=(17,),
    doomed=True,
)
REPORTS: tuple[m.Report, ...] = (
    m.Hello(NodeName("n"), "id", "boot", "0.1.0", m.NodeObservations(INVENTORY), (REPORT,), 4),
    REPORT,
    m.TaskReport(TASK, TaskState.ASSIGNED, refusal=m.Refusal("no_folder", "no /x", True)),
    m.Heartbeat(12.5),
    m.Heartbeat(
        12.5,
        changes=m.NodeChanges(
            hardware=(
                HardwareEvent("b", 7, "xid 79", Grade.CRITICAL, "GPU: Xid 79", task=TASK, pid=3),
            )
        ),
    ),
    m.StacksReport(
        TASK,
        3,
        7,
        (RankStacks(3, 17, (ThreadStack("MainThread", (Frame("step", "/w/train.py", 41),)),)),),
        (RankActivity(3, True, 70.0, None, 12.0, 5.0, Doing.STOPPED, "futex", (Sign.LOG,)),),
        (RecordedRank(3, 7, 6, "all_reduce"),),
    ),
    m.Heartbeat(12.5, 1.0, m.NodeChanges(rdma=NodeRdma("InfiniBand MT4129", 6, 8, "0f", ""))),
)
COMMANDS: tuple[m.Command, ...] = (
    m.Welcome(3, SessionId(7), 5.0, "0.1.0", "c1", (TASK,)),
    m.Refused("protocol", "install the same release"),
    m.HeartbeatAck(12.5),
    m.PrepareTask(TASK, "torchrun", "/w", None, ("sh", "-c", "true"), {"A": "1"}, 300.0, 8),
    m.PrepareTask(TASK, "none", None, None, (), {}, 300.0, preflight=True),
    m.ArrangeTask(TASK, ("--nnodes", "2"), {"B": "2"}, (("n", "10.0.0.1"),), "n slots=8\n", 20001),
    m.StartTask(TASK),
    m.StopTask(TASK, "SIGINT", 3.0, True),
    m.SignalTask(TASK, "SIGUSR1", 1),
    ChangeTerms(TASK, Terms(2, 100.0, 70.0, "SIGUSR1")),
    m.DumpStacks(TASK, 3, 7, threads=True),
    m.ForgetTask(TASK),
    GiveSettings((NodeSetting("hangs.period_s", "5.0", "nodes.pools.a100"),)),
    GiveUsers(("ada", "bob")),
)


def test_there_is_an_example_of_every_message() -> None:
    assert {type(r) for r in REPORTS} == set(typing.get_args(m.Report))
    assert {type(c) for c in COMMANDS} == set(typing.get_args(m.Command))


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: type(r).__name__)
def test_reports_survive_the_wire(report: m.Report) -> None:
    frame = ReportFrame(5, report)
    assert codec.decode_report(codec.encode(frame)) == frame


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_commands_survive_the_wire(command: m.Command) -> None:
    frame = CommandFrame(5, command)
    assert codec.decode_command(codec.encode(frame)) == frame


def test_unknown_fields_are_ignored() -> None:
    raw = b'{"seq":1,"new":0,"body":{"type":"start","task":"42.1.0","later":{"x":[1]}}}'
    assert codec.decode_command(raw) == CommandFrame(1, m.StartTask(TASK))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"seq":1,"body":{"type":"no_such","task":"1.1.0"}}',
        b'{"seq":"1","body":{"type":"start","task":"1.1.0"}}',
        b'{"seq":1,"body":{"type":"start"}}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"seq":1,"body":' + b" " * codec.FRAME_BYTES_MAX,
    ],
)
def test_an_invalid_message_is_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode_command(raw)
    with pytest.raises(ProtocolError):
        codec.decode_report(raw)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(raw: bytes) -> None:
    for decode in (codec.decode_command, codec.decode_report):
        try:
            decode(raw)
        except ProtocolError:
            continue


@pytest.mark.parametrize("number", ["1" * 20, "-" + "9" * 4300, "1" * 20 + "e5"])
def test_a_number_of_more_than_19_digits_is_refused(number: str) -> None:
    """`128 + signal` of such a number had more digits than Python writes: each restart of the
    coordinator ended when it showed that job."""
    task = '{"type": "task", "task": "1.1.0", "state": "cleaned", "exit": {"signal": %s}}'
    raw = '{"seq": 1, "body": ' + task % number + "}"
    with pytest.raises(ProtocolError, match="digits"):
        codec.decode_report(raw)
    with pytest.raises(ProtocolError, match="digits"):
        codec.decode_report(raw.encode())


def test_long_digits_of_a_text_or_a_fraction_are_no_long_number() -> None:
    said = "7" * 30 + '", 8' + "8" * 30
    refused = m.Refused("x", said)
    assert codec.decode_command(codec.encode(CommandFrame(1, refused))).body == refused
    raw = '{"seq": 1, "body": {"type": "heartbeat", "sent_s": 0.%s}}' % ("12345" * 5)
    assert isinstance(codec.decode_report(raw).body, m.Heartbeat)


def test_a_frame_over_the_limit_is_not_sent() -> None:
    huge = m.Refused("x", "y" * codec.COMMAND_BYTES_MAX)
    with pytest.raises(ProtocolError, match="over the limit"):
        codec.encode(CommandFrame(1, huge))


def test_a_message_of_a_later_protocol_is_distinguished_from_a_broken_one() -> None:
    raw = b'{"seq":8,"body":{"type":"of_the_future","task":{"x":1}},"more":0}'
    for decode in (codec.decode_command, codec.decode_report):
        with pytest.raises(UnknownMessage, match="'of_the_future'") as caught:
            decode(raw)
        assert (caught.value.kind, caught.value.seq) == ("of_the_future", 8)
    # A message of the other direction, or a known one with a wrong field, is a protocol error.
    for raw in (b'{"seq":8,"body":{"type":"hello"}}', b'{"seq":8,"body":{"type":"start"}}'):
        for decode in (codec.decode_command, codec.decode_report):
            with pytest.raises(ProtocolError) as refused:
                decode(raw)
            assert not isinstance(refused.value, UnknownMessage)


def test_the_window_of_protocols_is_always_said() -> None:
    """If the default were left out, the reader's own default would be read."""
    hello = m.Hello(
        NodeName("n"), "id", "boot", "0.1.0", m.NodeObservations(INVENTORY), protocol_max=9
    )
    said = codec.encode(ReportFrame(1, hello))
    assert b'"protocol_max":9' in said
    welcome = m.Welcome(3, SessionId(7), 5.0, "0.1.0", protocol=9)
    assert b'"protocol":9' in codec.encode(CommandFrame(1, welcome))
    for field in (*msgspec.structs.fields(m.Hello), *msgspec.structs.fields(m.Welcome)):
        if field.name.startswith("protocol"):
            assert field.default == 1, field.name


def test_tags_are_spelled_as_they_always_were() -> None:
    """Renaming one breaks every node that has not been upgraded."""
    kinds = [*typing.get_args(m.Report), *typing.get_args(m.Command)]
    tags = {kind.__struct_config__.tag for kind in kinds}
    assert tags == {
        "hello",
        "task",
        "heartbeat",
        "welcome",
        "refused",
        "heartbeat_ack",
        "prepare",
        "arrange",
        "start",
        "stop",
        "signal",
        "terms",
        "forget",
        "settings",
        "users",
        "look",
        "stacks",
    }
    assert all(isinstance(kind, type) and issubclass(kind, msgspec.Struct) for kind in kinds)
