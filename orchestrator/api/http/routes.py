"""Descriptions of all routes. The coordinator does not start if a route has none."""

from typing import Final

from muster.http import job_actions as verbs
from muster.http import node_actions as nodes
from muster.http import views as h
from muster.http.fabric import FabricView
from muster.http.job_evidence import Evidence
from muster.http.node_probe import CheckRequest, NodeProbe
from muster.protocol.hangs import StacksView
from orchestrator.api.http import query_params as p
from orchestrator.api.http.route_doc import JOB, JSON, STREAM, RouteDoc, as_json, as_text

_MADE: Final = {201: {JSON: h.JobSummary}, 200: {JSON: h.JobSummary}}

DESCRIPTIONS: Final = {
    ("GET", "/openapi.json"): RouteDoc(
        summary="This description, OpenAPI 3.1.", answers={200: {JSON: None}}
    ),
    ("GET", "/healthz"): RouteDoc(summary="Liveness check.", answers=as_text()),
    ("GET", "/readyz"): RouteDoc(
        summary="Readiness check: requests are accepted.", answers=as_text()
    ),
    ("HEAD", "/healthz"): RouteDoc(summary="Like GET, without a body.", answers=as_text()),
    ("HEAD", "/readyz"): RouteDoc(summary="Like GET, without a body.", answers=as_text()),
    ("GET", "/metrics"): RouteDoc(
        summary="Prometheus metrics, or OpenMetrics if accepted.",
        answers=as_text(),
    ),
    ("GET", "/v1/version"): RouteDoc(
        summary="The coordinator's version, and the caller's user.",
        answers=as_json(h.VersionView),
    ),
    ("GET", "/v1/nodes"): RouteDoc(
        summary="The nodes by name, in pages.",
        query=p.NodesQuery,
        answers=as_json(h.NodeList),
    ),
    ("GET", "/v1/nodes/{id}"): RouteDoc(summary="One node.", answers=as_json(h.NodeView)),
    ("GET", "/v1/nodes/{id}/probe"): RouteDoc(
        summary="The agent's reports on a node's GPUs, networks and RDMA.",
        answers=as_json(NodeProbe),
    ),
    ("POST", "/v1/nodes/{id}/check"): RouteDoc(
        summary="Submit a job that checks a node with free nodes of its pool.",
        body=CheckRequest,
        answers=_MADE,
        headers=("Idempotency-Key",),
        answer_headers=("Location",),
        problems=(409, 422, 507),
    ),
    ("POST", "/v1/nodes/{id}/drain"): RouteDoc(
        summary="Take a node out of service.",
        body=nodes.DrainRequest,
        answers=as_json(nodes.NodeAnswer),
        problems=(422,),
    ),
    ("POST", "/v1/nodes/{id}/resume"): RouteDoc(
        summary="Return a node to service after a check.",
        body=nodes.ResumeRequest,
        answers=as_json(nodes.NodeAnswer),
        problems=(409, 422),
    ),
    ("POST", "/v1/nodes/{id}/remove"): RouteDoc(
        summary="Remove a node that is gone.",
        body=nodes.RemoveRequest,
        answers=as_json(nodes.NodeAnswer),
        problems=(409, 422),
    ),
    ("POST", "/v1/nodes/{id}/lost"): RouteDoc(
        summary="Declare that nothing runs any more on a node that is not connected.",
        body=nodes.LostRequest,
        answers=as_json(nodes.LostAnswer),
        problems=(409, 422, 507),
    ),
    ("POST", "/v1/jobs"): RouteDoc(
        summary="Submit a job; a repeated Idempotency-Key returns the same job.",
        body=JOB,
        answers=_MADE,
        headers=("Idempotency-Key",),
        answer_headers=("Location",),
        problems=(409, 422, 507),
    ),
    ("POST", "/v1/jobs:validate"): RouteDoc(
        summary="Validate a job without submitting it.",
        body=JOB,
        answers=as_json(h.Validation),
        problems=(422,),
    ),
    ("GET", "/v1/jobs"): RouteDoc(
        summary="Jobs, newest first, in pages.",
        query=p.JobsQuery,
        answers=as_json(h.JobList),
    ),
    ("GET", "/v1/jobs/{id}"): RouteDoc(
        summary="Everything about a job.",
        answers=as_json(h.JobView),
        answer_headers=("ETag",),
    ),
    ("GET", "/v1/jobs/{id}/spec"): RouteDoc(
        summary="A job's specification with all defaults.", answers=as_json(h.SpecView)
    ),
    ("GET", "/v1/jobs/{id}/env"): RouteDoc(
        summary="The environment of the last attempt, by node.",
        answers=as_json(h.EnvironmentView),
    ),
    ("GET", "/v1/jobs/{id}/fabric"): RouteDoc(
        summary="The fabric plan of the last attempt: rails, ports, settings and reasons.",
        answers=as_json(FabricView),
    ),
    ("PATCH", "/v1/jobs/{id}"): RouteDoc(
        summary="Change, hold or release a job.",
        body=verbs.ChangeRequest,
        answers=as_json(verbs.ChangeAnswer),
        headers=("If-Match",),
        answer_headers=("ETag",),
        problems=(409, 412, 422, 507),
    ),
    ("GET", "/v1/jobs/{id}/wait"): RouteDoc(
        summary="Wait until the job has ended, or until the timeout.",
        query=p.WaitQuery,
        answers=as_json(h.JobSummary),
    ),
    ("POST", "/v1/jobs/{id}/cancel"): RouteDoc(
        summary="Cancel a job.",
        body=verbs.CancelRequest,
        answers=as_json(verbs.CancelAnswer, 202),
        problems=(422,),
    ),
    ("GET", "/v1/jobs/{id}/events"): RouteDoc(
        summary="The events of a job; also as Server-Sent Events.",
        query=p.EventsQuery,
        answers={200: {JSON: h.EventList, STREAM: None}, 204: {}},
        items=(h.EventView, h.EventsEnd),
        headers=("Last-Event-ID",),
    ),
    ("GET", "/v1/events"): RouteDoc(
        summary="All events; also as Server-Sent Events.",
        query=p.EventsQuery,
        answers={200: {JSON: h.EventList, STREAM: None}},
        items=(h.EventView, h.EventsEnd),
        headers=("Last-Event-ID",),
    ),
    ("GET", "/v1/jobs/{id}/explain"): RouteDoc(
        summary="Explain a job's state, or answer a what-if question.",
        query=p.ExplainQuery,
        answers=as_json(h.Explanation),
        problems=(409, 422),
    ),
    ("POST", "/v1/jobs/{id}/signal"): RouteDoc(
        summary="Send a signal to a job's ranks.",
        body=verbs.SignalRequest,
        answers=as_json(verbs.SignalAnswer, 202),
        problems=(409, 422, 507),
    ),
    ("POST", "/v1/jobs/{id}/stacks"): RouteDoc(
        summary="The current stacks of a running job's ranks, grouped by equal stacks.",
        answers=as_json(StacksView),
        problems=(409,),
    ),
    ("GET", "/v1/jobs/{id}/evidence"): RouteDoc(
        summary="The verdicts on a job's attempts, with their evidence.",
        answers=as_json(Evidence),
    ),
    ("POST", "/v1/jobs/{id}/rerun"): RouteDoc(
        summary="Submit a job again, with changes.",
        body=verbs.RerunRequest,
        answers=_MADE,
        headers=("Idempotency-Key",),
        answer_headers=("Location",),
        problems=(409, 422, 507),
    ),
    ("GET", "/v1/jobs/{id}/logs"): RouteDoc(
        summary="A job's logs; can be followed.",
        query=p.LogsQuery,
        answers={200: {"application/x-ndjson": None, "text/plain": None}},
        items=(h.LogRecord, h.LogTrailer),
        problems=(410,),
    ),
    ("GET", "/v1/agent"): RouteDoc(
        summary="An agent's control connection (websocket).", answers={101: {}}
    ),
    ("GET", "/v1/agent/logs"): RouteDoc(
        summary="An agent's bulk connection (websocket).", answers={101: {}}
    ),
}
