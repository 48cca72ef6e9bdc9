"""The table of routes: handler, action, and description of each (method, path)."""

from typing import Final

from muster.http import bundles as code
from muster.http import enrolment as join
from muster.http import job_actions as verbs
from muster.http import node_actions as nodes
from muster.http import people
from muster.http import views as h
from muster.http.audit import AuditList
from muster.http.explanation import Explanation
from muster.http.fabric import FabricView
from muster.http.job_evidence import Evidence
from muster.http.node_probe import CheckRequest, NodeProbe
from muster.protocol.observations.hangs import StacksView
from orchestrator.api.audit import AuditApi
from orchestrator.api.bundles.transfers import TICKET, BundlesApi
from orchestrator.api.enrolment.install import SCRIPT, InstallApi
from orchestrator.api.enrolment.routes import EnrolmentApi
from orchestrator.api.events import EventsApi
from orchestrator.api.http import query_params as p
from orchestrator.api.http.openapi import SchemaApi
from orchestrator.api.http.route import BYTES, JOB, JSON, STREAM, Route, as_json, as_text
from orchestrator.api.job_actions import JobActionsApi
from orchestrator.api.job_details import JobDetailsApi
from orchestrator.api.job_list import JobListApi
from orchestrator.api.jobs import JobsApi
from orchestrator.api.logs import LogsApi
from orchestrator.api.metrics import MetricsApi
from orchestrator.api.node_actions import NodeActionsApi
from orchestrator.api.node_check import NodeCheckApi
from orchestrator.api.nodes import NodesApi
from orchestrator.api.people import PeopleApi
from orchestrator.core.rights.rules import Action
from orchestrator.shell.agent_sessions import AgentSessions
from orchestrator.shell.logs.ingest import LogIngest

_MADE: Final = {201: {JSON: h.JobSummary}, 200: {JSON: h.JobSummary}}

_HEALTH, _CLUSTER, _OPERATE = Action.CHECK_HEALTH, Action.READ_CLUSTER, Action.OPERATE_NODE
_SUBMIT, _SEE, _READ = Action.SUBMIT_JOB, Action.SEE_JOB, Action.READ_JOB
_CHANGE, _PEOPLE, _ENROL = Action.CHANGE_JOB, Action.MANAGE_PEOPLE, Action.ENROL_NODE

# A route has its method, path, handler and action in its first line.
# fmt: off
ROUTES: Final = (
    Route("GET", "/openapi.json", SchemaApi.show, _CLUSTER,
          "This description, OpenAPI 3.1.", answers={200: {JSON: None}}),
    Route("GET", "/healthz", NodesApi.healthz, _HEALTH, "Liveness check.", answers=as_text()),
    Route("GET", "/readyz", NodesApi.readyz, _HEALTH,
          "Readiness check: requests are accepted.", answers=as_text()),
    Route("HEAD", "/healthz", NodesApi.healthz, _HEALTH,
          "Like GET, without a body.", answers=as_text()),
    Route("HEAD", "/readyz", NodesApi.readyz, _HEALTH,
          "Like GET, without a body.", answers=as_text()),
    Route("GET", "/metrics", MetricsApi.show, Action.READ_METRICS,
          "Prometheus metrics, or OpenMetrics if accepted.", answers=as_text()),
    Route("GET", "/v1/version", NodesApi.version, _CLUSTER,
          "The coordinator's version, and the caller's user.", answers=as_json(h.VersionView)),
    Route("GET", "/v1/nodes", NodesApi.nodes, _CLUSTER,
          "The nodes by name, in pages.", query=p.NodesQuery, answers=as_json(h.NodeList)),
    Route("GET", "/v1/nodes/{id}", NodesApi.node, _CLUSTER, "One node.",
          answers=as_json(h.NodeView)),
    Route("GET", "/v1/nodes/{id}/probe", NodeCheckApi.probe, _CLUSTER,
          "The agent's reports on a node's GPUs, networks and RDMA.", answers=as_json(NodeProbe)),
    Route("POST", "/v1/nodes/{id}/check", NodeCheckApi.check, _SUBMIT,
          "Submit a job that checks a node with free nodes of its pool.", body=CheckRequest,
          answers=_MADE, headers=("Idempotency-Key",), answer_headers=("Location",),
          problems=(409, 422, 507)),
    Route("POST", "/v1/nodes/{id}/drain", NodeActionsApi.drain, _OPERATE,
          "Take a node out of service.", body=nodes.DrainRequest,
          answers=as_json(nodes.NodeAnswer), problems=(422, 507)),
    Route("POST", "/v1/nodes/{id}/resume", NodeActionsApi.resume, _OPERATE,
          "Return a node to service after a check.", body=nodes.ResumeRequest,
          answers=as_json(nodes.NodeAnswer), problems=(409, 422, 507)),
    Route("POST", "/v1/nodes/{id}/remove", NodeActionsApi.remove, _OPERATE,
          "Remove a node that is gone.", body=nodes.RemoveRequest,
          answers=as_json(nodes.NodeAnswer), problems=(409, 422, 507)),
    Route("POST", "/v1/nodes/{id}/lost", NodeActionsApi.lost, _OPERATE,
          "Declare that nothing runs any more on a node that is not connected.",
          body=nodes.LostRequest, answers=as_json(nodes.LostAnswer), problems=(409, 422, 507)),
    Route("POST", "/v1/jobs", JobsApi.submit, _SUBMIT,
          "Submit a job; a repeated Idempotency-Key returns the same job.", body=JOB,
          answers=_MADE, headers=("Idempotency-Key",), answer_headers=("Location",),
          problems=(409, 422, 507)),
    Route("POST", "/v1/jobs:validate", JobDetailsApi.validate, _SUBMIT,
          "Validate a job without submitting it.", body=JOB, answers=as_json(h.Validation),
          problems=(422,)),
    Route("GET", "/v1/jobs", JobListApi.list, Action.LIST_JOBS,
          "Jobs, newest first, in pages.", query=p.JobsQuery, answers=as_json(h.JobList)),
    Route("GET", "/v1/jobs/{id}", JobsApi.show, _READ,
          "Everything about a job.", answers=as_json(h.JobView), answer_headers=("ETag",)),
    Route("GET", "/v1/jobs/{id}/spec", JobDetailsApi.spec, _READ,
          "A job's specification with all defaults.", answers=as_json(h.SpecView)),
    Route("GET", "/v1/jobs/{id}/env", JobDetailsApi.env, _READ,
          "The environment of the last attempt, by node.", query=p.EnvironmentQuery,
          answers=as_json(h.EnvironmentView)),
    Route("GET", "/v1/jobs/{id}/fabric", JobDetailsApi.fabric, _READ,
          "The fabric plan of the last attempt: rails, ports, settings and reasons.",
          answers=as_json(FabricView)),
    Route("PATCH", "/v1/jobs/{id}", JobActionsApi.change, _CHANGE,
          "Change, hold or release a job.", body=verbs.ChangeRequest,
          answers=as_json(verbs.ChangeAnswer), headers=("If-Match",), answer_headers=("ETag",),
          problems=(409, 412, 422, 507)),
    Route("GET", "/v1/jobs/{id}/wait", JobsApi.wait, _SEE,
          "Wait until the job has ended, or until the timeout.", query=p.WaitQuery,
          answers=as_json(h.JobSummary)),
    Route("POST", "/v1/jobs/{id}/cancel", JobsApi.cancel, _CHANGE,
          "Cancel a job.", body=verbs.CancelRequest, answers=as_json(verbs.CancelAnswer, 202),
          problems=(422,)),
    Route("GET", "/v1/jobs/{id}/events", EventsApi.of_job, _READ,
          "The events of a job; also as Server-Sent Events.", query=p.EventsQuery,
          answers={200: {JSON: h.EventList, STREAM: None}, 204: {}},
          items=(h.EventView, h.EventsEnd), headers=("Last-Event-ID",)),
    Route("GET", "/v1/events", EventsApi.of_all, Action.LIST_EVENTS,
          "All events; also as Server-Sent Events.", query=p.EventsQuery,
          answers={200: {JSON: h.EventList, STREAM: None}}, items=(h.EventView, h.EventsEnd),
          headers=("Last-Event-ID",)),
    Route("GET", "/v1/jobs/{id}/explain", JobActionsApi.explain, _READ,
          "Explain a job's state, or answer a what-if question.", query=p.ExplainQuery,
          answers=as_json(Explanation), problems=(409, 422)),
    Route("POST", "/v1/jobs/{id}/signal", JobActionsApi.signal, _CHANGE,
          "Send a signal to a job's ranks.", body=verbs.SignalRequest,
          answers=as_json(verbs.SignalAnswer, 202), problems=(409, 422, 507)),
    Route("POST", "/v1/jobs/{id}/stacks", JobActionsApi.stacks, _READ,
          "The current stacks of a running job's ranks, grouped by equal stacks.",
          answers=as_json(StacksView), problems=(409,)),
    Route("GET", "/v1/jobs/{id}/evidence", JobDetailsApi.evidence, _READ,
          "The verdicts on a job's attempts, with their evidence.", answers=as_json(Evidence)),
    Route("POST", "/v1/jobs/{id}/rerun", JobActionsApi.rerun, Action.RERUN_JOB,
          "Submit a job again, with changes.", body=verbs.RerunRequest, answers=_MADE,
          headers=("Idempotency-Key",), answer_headers=("Location",), problems=(409, 422, 507)),
    Route("GET", "/v1/jobs/{id}/logs", LogsApi.read, _READ,
          "A job's logs; can be followed.", query=p.LogsQuery,
          answers={200: {"application/x-ndjson": None, "text/plain": None}},
          items=(h.LogRecord, h.LogTrailer), problems=(410,)),
    Route("GET", "/v1/audit", AuditApi.show, Action.READ_AUDIT,
          "Requests that changed something, were refused, or read another's job.",
          query=p.AuditQuery, answers=as_json(AuditList)),
    Route("POST", "/v1/blobs:missing", BundlesApi.missing, Action.SEND_CODE,
          "Those of the chunks of a bundle that the caller has not uploaded.",
          body=code.MissingRequest, answers=as_json(code.MissingAnswer), problems=(422,)),
    Route("POST", "/v1/blobs", BundlesApi.put, Action.SEND_CODE,
          "Upload a pack of chunks: each its length (4 bytes), its SHA-256 (32) and its content.",
          body=BYTES, answers=as_json(code.PackAnswer, 201), problems=(422, 507)),
    Route("PUT", "/v1/bundles/{id}", BundlesApi.put_manifest, Action.SEND_CODE,
          "Upload the manifest of a bundle whose content the caller has uploaded.",
          body=BYTES, answers=as_json(code.BundleView, 201), problems=(409, 422, 507)),
    Route("GET", "/v1/bundles/{id}", BundlesApi.show, Action.SEND_CODE,
          "A bundle that the caller has uploaded.", answers=as_json(code.BundleView)),
    Route("GET", "/v1/agent/tasks/{id}/bundle", BundlesApi.manifest, Action.FETCH_CODE,
          "The manifest of a task's code, for its node.", answers={200: {BYTES: None}},
          headers=(TICKET,), problems=(409, 410)),
    Route("POST", "/v1/agent/tasks/{id}/blobs", BundlesApi.chunks, Action.FETCH_CODE,
          "Chunks of a task's code as a pack, for its node.", body=code.ChunksRequest,
          answers={200: {BYTES: None}}, headers=(TICKET,), problems=(409, 410, 422)),
    Route("POST", "/v1/agent/tasks/{id}/peers", BundlesApi.peers, Action.FETCH_CODE,
          "The other nodes of the gang that give content of a task's code, for its node.",
          body=code.PeersRequest, answers=as_json(code.PeersAnswer), headers=(TICKET,),
          problems=(409,)),
    Route("GET", "/v1/users", PeopleApi.users, _PEOPLE, "The users by name.",
          answers=as_json(people.UserList)),
    Route("POST", "/v1/users", PeopleApi.add_user, _PEOPLE, "Add a user.", body=people.UserRequest,
          answers=as_json(people.UserAnswer, 201), problems=(409, 507)),
    Route("PATCH", "/v1/users/{id}", PeopleApi.change_user, _PEOPLE,
          "Change a user's role or teams, or enable the user.", body=people.UserChange,
          answers=as_json(people.UserAnswer), problems=(409, 507)),
    Route("POST", "/v1/users/{id}/disable", PeopleApi.disable_user, _PEOPLE,
          "Accept no token of the user any more.", body=people.DisableRequest,
          answers=as_json(people.UserAnswer), problems=(409, 507)),
    Route("GET", "/v1/tokens", PeopleApi.tokens, Action.LIST_TOKENS,
          "Your tokens; to admins, all.", query=p.TokensQuery, answers=as_json(people.TokenList)),
    Route("POST", "/v1/tokens", PeopleApi.create_token, _PEOPLE,
          "Create a token; only this response has its text.", body=people.TokenRequest,
          answers=as_json(people.NewToken, 201), problems=(404, 409, 422, 507)),
    Route("POST", "/v1/tokens/{id}/revoke", PeopleApi.revoke_token, Action.REVOKE_TOKEN,
          "Revoke a token.", body=people.RevokeRequest, answers=as_json(people.TokenView),
          problems=(409,)),
    Route("POST", "/v1/join", EnrolmentApi.join, Action.JOIN,
          "Join as a node: sign its certificate. The body has a join secret.",
          body=join.JoinRequest, answers=as_json(join.JoinAnswer, 201),
          problems=(404, 409, 422, 429, 507)),
    Route("GET", "/v1/join", EnrolmentApi.show, _OPERATE,
          "The join secrets, and the machines that wait for an operator.",
          answers=as_json(join.EnrolmentList)),
    Route("POST", "/v1/join/secrets", EnrolmentApi.create_secret, _ENROL,
          "Create a join secret; only this response has its text.", body=join.JoinSecretRequest,
          answers=as_json(join.NewJoinSecret, 201), problems=(404, 409, 507)),
    Route("POST", "/v1/join/secrets/{id}/revoke", EnrolmentApi.revoke_secret, _ENROL,
          "Revoke a join secret.", body=join.RevokeSecretRequest,
          answers=as_json(join.JoinSecretView)),
    Route("POST", "/v1/nodes/{id}/accept", EnrolmentApi.accept, _OPERATE,
          "Accept, or reject, the machine that waits to be this node.", body=join.AcceptRequest,
          answers=as_json(join.EnrolmentList), problems=(409, 507)),
    Route("POST", "/v1/nodes/{id}/revoke", EnrolmentApi.revoke_node, _OPERATE,
          "Accept no certificate of this node any more.", body=join.RevokeNodeRequest,
          answers=as_json(join.EnrolmentList), problems=(409,)),
    Route("POST", "/v1/agent/certificate", EnrolmentApi.renew, Action.RENEW,
          "Renew the certificate that this node shows.", body=join.RenewRequest,
          answers=as_json(join.RenewAnswer), problems=(404, 409, 422, 429, 507)),
    Route("GET", "/v1/ca", PeopleApi.ca, Action.READ_CA,
          "The CA of the coordinator's certificate (PEM).",
          answers=as_text("application/x-pem-file"), problems=(404,)),
    Route("GET", "/v1/install.sh", InstallApi.script, Action.INSTALL,
          "A script that installs Muster from this coordinator, and joins.",
          answers=as_text(SCRIPT), problems=(404,)),
    Route("GET", "/v1/wheels/{id}", InstallApi.wheel, Action.INSTALL,
          "A wheel that the script names, as a file.", answers={200: {BYTES: None}}),
    Route("GET", "/v1/agent", AgentSessions.serve, Action.CONNECT,
          "An agent's control connection (websocket).", answers={101: {}}),
    Route("GET", "/v1/agent/logs", LogIngest.serve, Action.CONNECT,
          "An agent's bulk connection (websocket).", answers={101: {}}),
)
# fmt: on
