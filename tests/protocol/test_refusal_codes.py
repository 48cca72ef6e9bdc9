"""Codes of refusals: one list, which a word of a later version does not break."""

from __future__ import annotations

from muster.protocol.ids import TaskId
from muster.protocol.link import codec
from muster.protocol.link import control_channel as m
from muster.protocol.link.codec import ReportFrame
from muster.protocol.refusal_codes import RefusalCode
from muster.protocol.states import TaskState


def test_a_word_that_nobody_knows_yet_is_read() -> None:
    refusal = m.Refusal("of_a_later_version", "it cannot", node_fault=True)
    frame = ReportFrame(1, m.TaskReport(TaskId("1.1.0"), TaskState.ASSIGNED, refusal=refusal))
    assert codec.decode_report(codec.encode(frame)) == frame


def test_each_word_goes_over_the_wire_and_is_found_in_the_list() -> None:
    for code in RefusalCode:
        report = m.TaskReport(TaskId("1.1.0"), TaskState.ASSIGNED, refusal=m.Refusal(code, "no"))
        body = codec.decode_report(codec.encode(ReportFrame(1, report))).body
        assert isinstance(body, m.TaskReport)
        assert body.refusal is not None
        assert body.refusal.code in frozenset(RefusalCode)
