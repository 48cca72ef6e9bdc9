"""The version of a job as an ETag, and changes that are only wanted of a certain one (If-Match)."""

from __future__ import annotations

from aiohttp import web

from orchestrator.api.problems import ApiError
from orchestrator.core.state import Job, State


def job_etag(state: State, job: Job) -> str:
    """Changes with every fact about the job, and with every start of the coordinator: what was not
    on disk yet when it stopped is counted anew.
    """
    return f'"{state.epoch}.{job.revision}"'


def wanted_revision(request: web.Request, state: State, job: Job) -> tuple[int, int] | None:
    """The epoch and revision that the job must still have when it is changed; None: any. Raises
    ApiError (412) where it has another one already."""
    given = request.headers.getall("If-Match", [])
    if not given:
        return None
    tags = {tag.strip() for value in given for tag in value.split(",")}
    if tags == {"*"}:
        return None
    current = job_etag(state, job)
    if current not in tags:
        raise ApiError(
            412,
            "precondition_failed",
            f"job {job.id} is not as it was when you last looked at it",
            f"look again (GET /v1/jobs/{job.id}), and send the ETag of that answer",
            headers={"ETag": current},
        )
    return state.epoch, job.revision
