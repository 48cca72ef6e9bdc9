"""Prometheus metrics, computed from the state and from counters on each scrape.

`FAMILIES` lists them all; docs/reference/metrics.md and the shipped dashboard are
checked against it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from muster.protocol.instant import Instant
from muster.protocol.states import JobState
from orchestrator.api.http.access import TOKEN
from orchestrator.api.traffic_metrics import traffic
from orchestrator.certificate_ends import CertificateEnds
from orchestrator.core.engine.decide import VERSION
from orchestrator.core.model.node import AdminState, LinkState
from orchestrator.core.model.state import State
from orchestrator.core.model.status import job_state
from orchestrator.core.nodes.enrolment import never_connected
from orchestrator.core.scheduling.gpus import gpus_used
from orchestrator.shell.agent_sessions import AgentSessions
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.ingest import LogIngest
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.stats import SLOW_S, Histogram

_Labels = TypeVar("_Labels", bound=tuple[str, ...])


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family. Prometheus appends `_total` to the name of a counter."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        return self.name + suffix


FAMILIES: Final = {
    family.name: family
    for family in (
        Family("muster_build", "info", "The coordinator's version.", ("version",)),
        Family(
            "muster_epoch", "gauge", "Number of coordinator processes that have owned this journal."
        ),
        Family(
            "muster_clock_in_doubt",
            "gauge",
            "1 while the coordinator's clock may be wrong, and retention by age is suspended.",
        ),
        Family(
            "muster_certificate_end_seconds",
            "gauge",
            "End of `tls.cert`, `tls.ca` or a joined node's certificate (`node`), in UTC seconds.",
            ("certificate", "name"),
        ),
        Family(
            "muster_certificate_copied",
            "gauge",
            "1 for a node whose certificates were ended because a copy of its key was in use. It "
            "has to join again and to be accepted.",
            ("name",),
        ),
        Family("muster_jobs", "gauge", "Jobs, by the state that users see.", ("state",)),
        Family("muster_queue_jobs", "gauge", "Jobs that wait for nodes.", ("pool",)),
        Family(
            "muster_queue_oldest_wait_seconds",
            "gauge",
            "Age of the oldest waiting job.",
            ("pool",),
        ),
        Family("muster_nodes", "gauge", "Nodes that ever joined.", ("pool", "link")),
        Family(
            "muster_nodes_in_service",
            "gauge",
            "Nodes: active, draining (jobs are still there), drained.",
            ("pool", "state"),
        ),
        Family(
            "muster_nodes_quarantined",
            "gauge",
            "Nodes that were drained for the failures of jobs.",
            ("pool",),
        ),
        Family(
            "muster_nodes_joined_only",
            "gauge",
            "Nodes that have joined, or wait for an operator, and never connected.",
        ),
        Family(
            "muster_gpus",
            "gauge",
            "GPUs: of nodes that are connected (free, busy, and drained: free and out of service), "
            "of the others (away); those that no job is given (faulty).",
            ("pool", "model", "use"),
        ),
        Family("muster_attempts_started", "counter", "Attempts that have started."),
        Family(
            "muster_attempts_failed",
            "counter",
            "Attempts that stopped for another cause than completion.",
            ("cause",),
        ),
        Family(
            "muster_running_gangs",
            "gauge",
            "Gangs on nodes with RDMA devices or GPUs, by what carries their traffic.",
            ("carrier",),
        ),
        Family(
            "muster_quiet_gangs",
            "gauge",
            "Running gangs without progress, by verdict: hung or slow.",
            ("verdict",),
        ),
        Family(
            "muster_hca_bytes_per_second",
            "gauge",
            "Last traffic rate of an HCA of a running gang, in its busier direction.",
            ("node", "port"),
        ),
        Family(
            "muster_hca_flaps",
            "gauge",
            "Link-down events of an HCA since its gang started.",
            ("node", "port"),
        ),
        Family(
            "muster_hca_down",
            "gauge",
            "1 for a port that is down and was up before, or is one of the compute HCAs.",
            ("node", "port"),
        ),
        Family(
            "muster_rail_imbalance_ratio",
            "gauge",
            "By how much the least busy HCA of a node is below the mean, 0 to 1.",
            ("node",),
        ),
        Family(
            "muster_tcp_share_ratio",
            "gauge",
            "TCP share of a node's bytes since its gang started, 0 to 1.",
            ("node",),
        ),
        Family("muster_journal_facts", "counter", "Facts written to disk."),
        Family(
            "muster_journal_commit_seconds",
            "histogram",
            "Duration of commits.",
        ),
        Family("muster_turn_seconds", "histogram", "Duration of decisions on a batch of inputs."),
        Family("muster_event_loop_lag_seconds", "histogram", "Lag of a timer of one second."),
        Family("muster_agents", "gauge", "Control connections of agents."),
        Family(
            "muster_websocket_received_bytes",
            "counter",
            "Messages from agents.",
            ("channel",),
        ),
        Family("muster_websocket_sent_bytes", "counter", "Messages to agents.", ("channel",)),
        Family("muster_log_stored_bytes", "counter", "Bytes of jobs' logs taken into the store."),
        Family(
            "muster_log_stalls",
            "counter",
            "Streams that are temporarily not stored; their nodes keep the bytes.",
        ),
        Family(
            "muster_log_dropped_bytes",
            "counter",
            "Bytes of jobs' logs beyond a limit of job_logs: acknowledged and not stored.",
        ),
        Family("muster_log_store_short", "gauge", "1 while the log disk is short of room."),
        Family("muster_log_disk_unanswered", "gauge", "1 while the log disk does not answer."),
        Family(
            "muster_log_waiting_jobs",
            "gauge",
            "Running jobs whose logs wait because they use more than their share of the disk.",
        ),
        Family("muster_webhooks_waiting", "gauge", "Notices that webhooks have not accepted yet."),
        Family(
            "muster_webhooks_dropped",
            "counter",
            "Notices for webhooks that were dropped because too many waited.",
        ),
        Family(
            "muster_http_requests",
            "counter",
            "Answered requests; status 0 means that the client disconnected first.",
            ("method", "route", "status"),
        ),
        Family(
            "muster_failed_logins",
            "counter",
            "Requests that were refused for want of a valid token.",
        ),
        Family(
            "muster_http_request_seconds",
            "histogram",
            "Duration until the answer was ready, or until the end of a stream.",
            ("route",),
        ),
    )
}


def reference() -> str:
    """Return the table of docs/reference/metrics.md."""
    lines = ["| metric | type | labels | what it is |", "|---|---|---|---|"]
    for family in FAMILIES.values():
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.exported}` | {family.kind} | {labels} | {family.help} |")
    return "\n".join(lines) + "\n"


class HttpCounts:
    """Count of requests by method, route and status, and durations by route."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.failed_logins = 0
        self.seconds: dict[str, Histogram] = {}

    def ended(self, request: web.Request, status: int, took_s: float) -> None:
        resource = request.match_info.route.resource
        # Requests without a route share one series: a scan must not create thousands.
        route = resource.canonical if resource is not None else "other"
        method = request.method if resource is not None else "other"
        self.requests[method, route, str(status)] += 1
        self.failed_logins += status in (401, 429) and TOKEN not in request
        self.seconds.setdefault(route, Histogram(SLOW_S)).add(took_s)


class MetricsApi(Collector):
    """GET /metrics, in the text format or, where that is accepted, as OpenMetrics."""

    def __init__(
        self,
        coordinator: Coordinator,
        agents: AgentSessions,
        log_connections: LogIngest,
        log_store: LogStore,
        certificates: CertificateEnds,
    ) -> None:
        self.http = HttpCounts()
        self._certificates = certificates
        self._coordinator = coordinator
        self._agents = agents
        self._log_connections = log_connections
        self._log_store = log_store
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    async def show(self, request: web.Request) -> web.Response:
        await self._coordinator.durable_state()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registration does not collect."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        state, meters = self._coordinator.state, self._coordinator.meters
        yield _values("muster_build", {(VERSION,): 1})
        yield _values("muster_epoch", {(): state.epoch})
        doubt = bool(self._coordinator.clock_doubt())
        yield _values("muster_clock_in_doubt", {(): float(doubt)})
        ends = {(setting, ""): end for setting, end in self._certificates.ends.items()}
        for node, joined in state.enrolment.nodes.items():
            if (key := joined.newest) is not None:
                ends["node", node] = key.expires
        yield _values("muster_certificate_end_seconds", ends)
        copied = {(node,): 1 for node, joined in state.enrolment.nodes.items() if joined.why}
        yield _values("muster_certificate_copied", copied)
        index = self._coordinator.index
        archived = self._coordinator.archive.ended
        jobs = Counter({name: index.ended(name) + archived[name] for name in JobState})
        jobs.update(job_state(state.jobs[job]) for job in index.open)
        yield _values("muster_jobs", {(name.value,): jobs[name] for name in JobState})
        yield from _queues(state, self._coordinator.now())
        yield from _nodes(state)
        for name, values in traffic(state, index.open):
            yield _values(name, values)
        yield _values("muster_attempts_started", {(): meters.attempts_started})
        failed = {(code.value,): count for code, count in meters.attempts_failed.items()}
        yield _values("muster_attempts_failed", failed)
        yield _values("muster_journal_facts", {(): meters.facts})
        yield _histograms("muster_journal_commit_seconds", {(): meters.commits})
        yield _histograms("muster_turn_seconds", {(): meters.turns})
        yield _histograms("muster_event_loop_lag_seconds", {(): meters.loop_lag})
        yield _values("muster_agents", {(): len(self._agents)})
        control, logs = self._agents, self._log_connections
        received = {("control",): control.received_bytes, ("logs",): logs.received_bytes}
        yield _values("muster_websocket_received_bytes", received)
        sent = {("control",): control.sent_bytes, ("logs",): logs.sent_bytes}
        yield _values("muster_websocket_sent_bytes", sent)
        yield _values("muster_log_stored_bytes", {(): self._log_store.stored_bytes})
        yield _values("muster_log_stalls", {(): self._log_store.stalls})
        yield _values("muster_log_dropped_bytes", {(): self._log_store.dropped_bytes})
        space = self._log_store.space
        yield _values("muster_log_store_short", {(): int(space.is_short)})
        unanswered = int(self._log_store.is_unanswered)
        yield _values("muster_log_disk_unanswered", {(): unanswered})
        yield _values("muster_log_waiting_jobs", {(): len(space.waiting)})
        waiting = sum(queued_webhooks.count for queued_webhooks in state.queued_webhooks.values())
        yield _values("muster_webhooks_waiting", {(): waiting})
        yield _values("muster_webhooks_dropped", {(): meters.webhooks_dropped})
        yield _values("muster_http_requests", self.http.requests)
        yield _values("muster_failed_logins", {(): self.http.failed_logins})
        seconds = {(route,): found for route, found in self.http.seconds.items()}
        yield _histograms("muster_http_request_seconds", seconds)


def _queues(state: State, now: Instant) -> Iterator[Metric]:
    waiting = {(pool,): queue for pool, queue in state.queues.items()}
    yield _values("muster_queue_jobs", {pool: len(queue) for pool, queue in waiting.items()})
    oldest = {
        pool: max((now.wall - state.jobs[job].submitted_at for _, job in queue), default=0.0)
        for pool, queue in waiting.items()
    }
    yield _values("muster_queue_oldest_wait_seconds", {k: max(v, 0.0) for k, v in oldest.items()})


def _nodes(state: State) -> Iterator[Metric]:
    links: Counter[tuple[str, ...]] = Counter()
    service: Counter[tuple[str, ...]] = Counter()
    quarantined: Counter[tuple[str, ...]] = Counter()
    gpus: Counter[tuple[str, ...]] = Counter()
    for node in state.nodes.values():
        pool = node.inventory.pool
        for link in LinkState:
            links[pool, link.value] += node.link is link
        for admin in AdminState:
            service[pool, admin.value] += node.admin is admin
        quarantined[(pool,)] += node.drain is not None and bool(node.drain.jobs)
        model, all_of_it = node.inventory.gpu_model, node.inventory.gpus
        used = gpus_used(node)
        if node.link is LinkState.CONNECTED:
            gpus[pool, model, "busy"] += used
            free = "free" if node.in_service else "drained"
            gpus[pool, model, free] += all_of_it - used
        else:
            gpus[pool, model, "away"] += all_of_it
        if faulty := sum(1 for gpu in node.inventory.devices if gpu.fault):
            gpus[pool, model, "faulty"] += faulty
    yield _values("muster_nodes", links)
    yield _values("muster_nodes_joined_only", {(): len(never_connected(state))})
    yield _values("muster_nodes_in_service", service)
    yield _values("muster_nodes_quarantined", quarantined)
    yield _values("muster_gpus", gpus)


def _values(name: str, values: Mapping[_Labels, float]) -> Metric:
    family = FAMILIES[name]
    match family.kind:
        case "counter":
            counter = CounterMetricFamily(name, family.help, labels=family.labels)
            for labels, value in values.items():
                counter.add_metric(labels, value)
            return counter
        case "info":
            info = InfoMetricFamily(name, family.help)
            for labels in values:
                info.add_metric((), dict(zip(family.labels, labels, strict=True)))
            return info
        case _:
            gauge = GaugeMetricFamily(name, family.help, labels=family.labels)
            for labels, value in values.items():
                gauge.add_metric(labels, value)
            return gauge


def _histograms(name: str, found: Mapping[_Labels, Histogram]) -> Metric:
    family = FAMILIES[name]
    metric = HistogramMetricFamily(name, family.help, labels=family.labels)
    for labels, histogram in found.items():
        below, buckets = 0, []
        bounds = [*map(str, histogram.bounds), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            below += count
            buckets.append((bound, below))
        metric.add_metric(labels, buckets, histogram.sum)
    return metric
