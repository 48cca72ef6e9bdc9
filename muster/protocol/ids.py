"""Identifiers of jobs, attempts, tasks and log streams, and their wire format.

A task id is `job.attempt.node_rank`, for example `42.1.0`. It serves as a fencing token, because
the attempt is part of it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NewType

JobId = NewType("JobId", int)
NodeName = NewType("NodeName", str)
TaskId = NewType("TaskId", str)
SessionId = NewType("SessionId", int)

_JOB: Final = re.compile(r"[1-9][0-9]{0,17}")
_TASK: Final = re.compile(r"([1-9][0-9]{0,17})\.([1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_NODE: Final = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
NODE_NAME_CHARS_MAX: Final = 253
# Every message about a task has its id, and live tasks occur again and again.
_TASKS_KEPT: Final = 4096


class BadId(ValueError):
    """A text that is not an id of the expected kind. The message contains the text."""


def is_job_id(text: str) -> bool:
    """Return whether a text, such as the name of a folder, is the number of a job."""
    return _JOB.fullmatch(text) is not None


def task_id(job: JobId, attempt: int, node_rank: int) -> TaskId:
    """Return the id of an attempt's task on its node number `node_rank` (from 0)."""
    return TaskId(f"{job}.{attempt}.{node_rank}")


@lru_cache(maxsize=_TASKS_KEPT)
def parse_task_id(text: str) -> tuple[JobId, int, int]:
    """Return (job, attempt from 1, node rank from 0). Raises BadId."""
    match = _TASK.fullmatch(text)
    if match is None:
        raise BadId(f"{text[:60]!r} is not a task id (job.attempt.node_rank, as 42.1.0)")
    return JobId(int(match[1])), int(match[2]), int(match[3])


def check_node_name(text: str) -> NodeName:
    """Check a lower-case RFC 1123 host name. Raises BadId, because the name ends up in
    /etc/hosts.
    """
    if len(text) > NODE_NAME_CHARS_MAX or _NODE.fullmatch(text) is None or text == "localhost":
        raise BadId(
            f"{text[:80]!r} is not a usable node name: lower-case letters, digits and '-' "
            "in labels of at most 63 characters joined by '.', not 'localhost'"
        )
    return NodeName(text)
