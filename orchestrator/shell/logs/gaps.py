"""Gaps of a stored stream: bytes that count in its offsets but were never stored."""

import enum
from typing import Final, assert_never

from orchestrator.core.storage.log_space import Full


class Gap(enum.IntEnum):
    """Reason of a gap. The numbers are written to index files and never change."""

    HOLE = 1
    JOB_FULL = 2
    TASK_FULL = 3


_WHY: Final = {
    Gap.JOB_FULL: "the stored logs of this job have reached job_logs.job_bytes_max",
    Gap.TASK_FULL: "the stored logs of this task have reached job_logs.task_bytes_max",
}


def gap_of(full: Full) -> Gap:
    match full:
        case Full.JOB:
            return Gap.JOB_FULL
        case Full.TASK:
            return Gap.TASK_FULL
        case _:
            assert_never(full)


def gap_text(code: int, length: int) -> str:
    """Return a sentence for readers, to follow "from byte N on: "."""
    if code == Gap.HOLE:
        return f"{length} bytes were never written: the log file has a hole here"
    why = next((why for gap, why in _WHY.items() if gap == code), "see the coordinator's log")
    return (
        f"{length} bytes so far are not stored ({why}); the job continues, and its node keeps the "
        "file until the task is removed"
    )
