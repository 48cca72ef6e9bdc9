"""Assembles a coordinator from its configuration and serves until SIGTERM or SIGINT."""

import asyncio
import errno
import gc
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Never

import structlog
from aiohttp import web

from muster.daemon.clock import Clock, SystemClock
from muster.daemon.errors import DaemonError
from muster.daemon.listen_address import listeners
from muster.daemon.sd_notify import Notifier
from muster.daemon.task_owner import TaskOwner
from muster.daemon.tls import Renewed, certificate_names
from muster.protocol.observations.interfaces import host_port
from orchestrator.api.app import OPEN_REQUESTS, make_app
from orchestrator.api.http.connection_limits import HEAD_S, ConnectionLimits, GuardedConnection
from orchestrator.api.http.cross_origin import Origins
from orchestrator.api.http.submit_policy import SubmitRules
from orchestrator.api.http.tokens import TokenStore
from orchestrator.certificate_ends import CertificateEnds
from orchestrator.config import CoordinatorConfig, ca_pem, webhook_secret
from orchestrator.core.facts.inputs import TokenSeen
from orchestrator.core.model.limits import HangLimits, Limits, Quarantine
from orchestrator.core.model.members import streams_of
from orchestrator.core.model.people import People
from orchestrator.core.model.plan import Backfill, PoolPolicy
from orchestrator.core.model.state import State
from orchestrator.core.nodes.enrolment import end_warnings
from orchestrator.enrolment import EnrolmentSettings, enrolment_settings
from orchestrator.journal.journal import Journal
from orchestrator.journal.writer import JournalWriter
from orchestrator.reload import Reload
from orchestrator.shell.agent_sessions import AgentSessions
from orchestrator.shell.audit import AuditLog
from orchestrator.shell.bundles.collector import BundleCollector
from orchestrator.shell.bundles.store import BundleLimits, BundleStore
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.job_retention import JobRetention, RetentionPolicy
from orchestrator.shell.logs.ingest import LogIngest
from orchestrator.shell.logs.retention import Keep, Retention
from orchestrator.shell.logs.room import MakeRoom
from orchestrator.shell.logs.store import LogStore
from orchestrator.shell.logs.writer import UNANSWERED_S
from orchestrator.shell.replay import replay
from orchestrator.shell.stats import Histogram
from orchestrator.shell.tokens_file import people_of, warn_if_changed
from orchestrator.short_collections import ShortCollections
from orchestrator.webhooks.allowlist import read_allowed
from orchestrator.webhooks.sender import WebhookSender

_SHUTDOWN_S: Final = 1.0
# A node is suspect, and its connection is closed, after this many missed heartbeats.
_SILENT_BEATS: Final = 2
_LAG_EVERY_S: Final = 1.0

_log = structlog.get_logger("muster.coordinator")


class _Archived(NamedTuple):
    """Contents of the journal besides the state, and of the tokens file if it is to be imported."""

    first_job: int
    tally: dict[str, int]
    forgotten_to: int
    last_record_at: float | None
    people: People | None


class ListenError(DaemonError):
    """The listen address is not available."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a running coordinator that are started and stopped."""

    owner: TaskOwner
    coordinator: Coordinator
    agents: AgentSessions
    logs: LogIngest
    store: LogStore
    retention: Retention
    room: MakeRoom
    forgetting: JobRetention
    sender: WebhookSender
    runner: web.AppRunner
    audit_log: AuditLog
    bundles: BundleStore
    certificates: CertificateEnds


async def serve(config: CoordinatorConfig, read: Callable[[], CoordinatorConfig]) -> None:
    """Run until SIGTERM or SIGINT. At SIGHUP, `read` the configuration again. Raises
    DaemonError.
    """
    clock = SystemClock()
    certificate = None if config.tls is None else Renewed(config.tls.cert, config.tls.key)
    of_agents = _of_agents(config)
    secret, ca, joining = webhook_secret(config), ca_pem(config), enrolment_settings(config)
    stop = _stop_signal()
    journal = Journal.open(config.state_dir, config.limits.disk_reserve_bytes, config.job_logs_path)
    try:
        if journal.doubt:
            _log.warning("commit_was_cut_off", why=journal.doubt)
        state = replayed(journal)
        people = imported(config, state)
        epoch = journal.begin_epoch()
        known = _Archived(
            journal.first_job,
            journal.tally(),
            journal.forgotten_to,
            journal.last_record_at,
            people,
        )
    except BaseException:
        journal.close()
        raise
    writer = JournalWriter(journal)
    try:
        parts = _build(config, state, writer, clock, known, secret, ca, joining)
        with ShortCollections():
            async with parts.owner:
                reload = Reload(config, read, parts.coordinator)
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.asked.set)
                parts.owner.spawn(reload.run(), name="reload", eternal=True)
                servers = await _start(parts, config, epoch, certificate, of_agents)
                await parts.owner.run_until(stop)
                await _stop(parts, servers)
        await parts.coordinator.flush()
    finally:
        writer.close()
    _log.info("stopped")


def replayed(journal: Journal) -> State:
    """Return the state replayed from disk, frozen for the garbage collector. A collection over a
    million jobs would stop the loop for seconds. Raises JournalError.
    """
    gc.disable()
    try:
        state = replay(journal.replay())
    finally:
        gc.enable()
    gc.freeze()
    return state


def imported(config: CoordinatorConfig, state: State) -> People | None:
    """Return the people of the tokens file for a state without users and tokens, or None. Raises
    ConfigError.
    """
    if not state.people.imported:
        return people_of(config.tokens_path)
    warn_if_changed(config.tokens_path, state.people.imported)
    return None


def _build(
    config: CoordinatorConfig,
    state: State,
    writer: JournalWriter,
    clock: Clock,
    known: _Archived,
    secret: bytes,
    ca: bytes,
    joining: EnrolmentSettings | None,
) -> _Parts:
    allowed = read_allowed(config.webhooks.allow)
    owner = TaskOwner("coordinator")
    changes = ChangeCounters()
    store = LogStore(
        config.job_logs_path,
        changes,
        clock,
        free_bytes_min=config.job_logs.free_bytes_min,
        bounds=config.job_logs.bounds,
        streams_max=partial(streams_of, state),
    )
    bundles = BundleStore(config.bundles_path, _bundle_limits(config))
    agents = AgentSessions(
        owner,
        ticket=bundles.ticket,
        message_bytes_max=config.limits.agent_message_bytes_max,
        agents_max=config.limits.agents_max,
    )
    coordinator = Coordinator(
        state=state,
        journal=writer,
        clock=clock,
        limits=_limits(config),
        sessions=agents,
        changes=changes,
        networks=config.networks,
        pools=_pools(config),
        first_job=known.first_job,
        archived=known.tally,
        forgotten_to=known.forgotten_to,
        last_record_at=known.last_record_at,
        people=known.people,
    )
    agents.coordinator = coordinator
    logs = LogIngest(
        owner,
        store,
        coordinator,
        connections_max=2 * config.limits.agents_max,
        heartbeat_s=config.heartbeat_s,
    )
    audit_log = AuditLog(config.state_dir)
    tls = config.tls
    files = {} if tls is None else {"tls.cert": tls.cert, "tls.ca": tls.ca}
    certificates = CertificateEnds(
        {name: path for name, path in files.items() if path},
        clock,
        partial(end_warnings, state.enrolment),
    )
    app = make_app(
        coordinator=coordinator,
        agents=agents,
        log_connections=logs,
        log_store=store,
        tokens=TokenStore(
            state.people,
            clock,
            lambda token: coordinator.put_now(TokenSeen(token)),
            state.enrolment,
        ),
        origins=_origins(config),
        limits=config.limits,
        rules=SubmitRules(config.pool_defaults, allowed),
        policy=config.policy,
        audit_log=audit_log,
        bundles=bundles,
        ca=ca,
        enrolment=joining,
        certificates=certificates,
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_S)
    keep = Keep(config.job_logs.keep_s, config.job_logs.keep_bytes_max)
    retention = Retention(config.job_logs_path, store, coordinator, keep)
    room = MakeRoom(config.job_logs_path, store.space, coordinator, retention.remove)
    kept = RetentionPolicy(config.ended_jobs.keep_s, config.ended_jobs.keep_max)
    forgetting = JobRetention(coordinator, kept)
    sender = WebhookSender(coordinator, owner, allowed, secret)
    return _Parts(
        owner,
        coordinator,
        agents,
        logs,
        store,
        retention,
        room,
        forgetting,
        sender,
        runner,
        audit_log,
        bundles,
        certificates,
    )


def _origins(config: CoordinatorConfig) -> Origins:
    names = config.listen.names
    if config.tls is not None and not names:
        return Origins(None)
    return Origins((*names, config.listen.host, socket.gethostname()))


async def _start(
    parts: _Parts,
    config: CoordinatorConfig,
    epoch: int,
    certificate: Renewed | None,
    of_agents: Renewed | None,
) -> list[asyncio.Server]:
    """Take over the state, then open the listening sockets."""
    on_own_disk = config.job_logs.dir is not None
    await parts.store.prepare(existed=on_own_disk and parts.coordinator.state.next_job > 1)
    parts.owner.spawn(parts.coordinator.run(epoch), name="owner", eternal=True)
    parts.owner.spawn(parts.store.run(), name="log-sync", eternal=True)
    parts.owner.spawn(parts.store.watch(), name="log-disk", eternal=True)
    lag = parts.coordinator.meters.loop_lag
    parts.owner.spawn(_measure_lag(lag), name="loop-lag", eternal=True)
    await parts.owner.run_until(parts.coordinator.started)
    parts.owner.spawn(parts.coordinator.archive_ended(), name="archive", eternal=True)
    parts.owner.spawn_monitor(parts.retention.run, name="log-retention")
    parts.owner.spawn_monitor(parts.room.run, name="log-room")
    parts.owner.spawn(parts.forgetting.run(), name="ended-jobs", eternal=True)
    parts.owner.spawn(parts.audit_log.run(), name="audit", eternal=True)
    collector = BundleCollector(parts.coordinator, parts.bundles)
    parts.owner.spawn(collector.run(), name="bundles", eternal=True)
    parts.owner.spawn(parts.sender.run(), name="webhooks", eternal=True)
    parts.owner.spawn(parts.coordinator.watch_space(), name="space", eternal=True)
    parts.owner.spawn(parts.runner.app[OPEN_REQUESTS].watch(), name="tokens", eternal=True)
    for each in (certificate, of_agents):
        if each is not None:
            parts.owner.spawn(parts.certificates.follow(each), name="certificate", eternal=True)
    parts.owner.spawn_monitor(parts.certificates.watch, name="certificate-ends")
    await parts.runner.setup()
    try:
        servers = await _listen(parts.runner, config, certificate, of_agents)
    except BaseException:
        await parts.runner.cleanup()
        raise
    addresses = [found.getsockname() for server in servers for found in server.sockets]
    where = " ".join(host_port(str(address[0]), address[1]) for address in addresses)
    jobs = len(parts.coordinator.state.jobs) + parts.coordinator.archive.ended.total()
    _log.info("serving", address=where, epoch=epoch, jobs=jobs)
    notifier = Notifier()
    notifier.ready(f"epoch {epoch}, {where}")
    if notifier.watchdog_s is not None:
        parts.owner.spawn(
            _watchdog(notifier, parts.coordinator, notifier.watchdog_s), name="watchdog"
        )
    return servers


async def _measure_lag(lag: Histogram) -> Never:
    """Measure the lag of the loop: how late a timer of one second fires."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        lag.add(max(0.0, loop.time() - due))


async def _watchdog(notifier: Notifier, coordinator: Coordinator, every_s: float) -> Never:
    """Notify the service manager through the owner of the state: if the owner hangs, the
    notifications stop.
    """
    while True:
        await coordinator.next_turn()
        notifier.watchdog()
        await asyncio.sleep(every_s)


async def _stop(parts: _Parts, servers: Sequence[asyncio.Server]) -> None:
    """Stop accepting, notify all clients, and flush everything to disk. Agents and jobs
    continue.
    """
    Notifier().stopping()
    _log.info("stopping")
    for server in servers:
        server.close()
    parts.coordinator.changes.close()
    parts.agents.close_all()
    await parts.logs.close_all()
    await parts.runner.cleanup()
    await parts.audit_log.flush()
    # The agents keep unacknowledged bytes and send them to the next process.
    try:
        async with asyncio.timeout(UNANSWERED_S):
            await parts.store.sync()
    except TimeoutError:
        _log.error("log_disk_unanswered", path=str(parts.store.root), done="not waited for")
    else:
        parts.store.close()


async def _listen(
    runner: web.AppRunner,
    config: CoordinatorConfig,
    certificate: Renewed | None,
    of_agents: Renewed | None,
) -> list[asyncio.Server]:
    manager = runner.server
    assert manager is not None
    connections = ConnectionLimits(
        pending_per_address_max=config.limits.pending_connections_per_address_max,
        per_token_max=config.limits.connections_per_token_max,
    )
    places = [(config.listen.host, config.listen.port, certificate)]
    if config.listen_agents is not None:
        places.append((config.listen_agents.host, config.listen_agents.port, of_agents))
    servers: list[asyncio.Server] = []
    for host, port, shown in places:
        try:
            servers.append(
                await asyncio.get_running_loop().create_server(
                    lambda: GuardedConnection(connections, manager),
                    host,
                    port,
                    ssl=None if shown is None else shown.context,
                    ssl_handshake_timeout=None if shown is None else HEAD_S,
                    backlog=1024,
                )
            )
        except OSError as error:
            for server in servers:
                server.close()
            raise ListenError(_cannot_listen(host, port, error)) from error
    return servers


def _of_agents(config: CoordinatorConfig) -> Renewed | None:
    """The certificate of the agents' listener, which demands one of each client."""
    if config.tls is None or config.listen_agents is None:
        return None
    return Renewed(config.tls.cert, config.tls.key, config.tls.ca)


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    where = f"listen: {host}:{port} cannot be used"
    match error.errno:
        case errno.EADDRINUSE:
            who = " and ".join(listeners(port)) or "another program"
            return f"{where}: {who} listens there; stop it, or set another listen.port"
        case errno.EADDRNOTAVAIL:
            return (
                f"{where}: this machine has no such address; set listen.host to one that `ip "
                "address` shows, or to 0.0.0.0 for all of them"
            )
        case errno.EACCES | errno.EPERM:
            return f"{where}: this user is not allowed to listen there; set listen.port above 1023"
        case _:
            why = error.strerror or str(error)
            return f"{where} ({why}); set another listen.host or listen.port"


def _pools(config: CoordinatorConfig) -> dict[str, PoolPolicy]:
    """The policies of the configured pools; all others have the default."""
    return {
        name: PoolPolicy(Backfill(pool.backfill), pool.promises)
        for name, pool in config.pools.items()
    }


def _limits(config: CoordinatorConfig) -> Limits:
    return Limits(
        lease_s=config.lease_s,
        heartbeat_s=config.heartbeat_s,
        silence_s=_SILENT_BEATS * config.heartbeat_s,
        prepare_timeout_s=config.prepare_timeout_s,
        arrange_timeout_s=config.arrange_timeout_s,
        start_timeout_s=config.start_timeout_s,
        hangs=HangLimits(
            quiet_s=config.hangs.quiet_s,
            gaps=config.hangs.gaps,
            slow_s=config.hangs.slow_s,
            again_s=config.hangs.again_s,
        ),
        quarantine=Quarantine(
            jobs=config.quarantine.jobs,
            forgiven_after=config.quarantine.forgiven_after,
            pool_share=config.quarantine.pool_share,
            restarts=config.quarantine.restarts,
        ),
        spec_bytes_max=config.limits.spec_bytes_max,
        user_spec_bytes_max=config.limits.spec_bytes_per_user_max,
        nodes_max=config.limits.agents_max,
        new_nodes_per_hour=config.limits.new_nodes_per_hour,
        own_names=_own_names(config),
        node_settings=config.nodes.central,
    )


def _bundle_limits(config: CoordinatorConfig) -> BundleLimits:
    asked = config.bundles
    return BundleLimits(
        asked.bundle_bytes_max, asked.user_bytes_max, asked.free_bytes_min, asked.keep_s
    )


def _own_names(config: CoordinatorConfig) -> frozenset[str]:
    """Names of this machine that no agent of another machine may use. Raises TlsError."""
    hostname = socket.gethostname()
    names = [*config.listen.names, config.listen.host, hostname, hostname.partition(".")[0]]
    if config.tls is not None:
        names += certificate_names(config.tls.cert, config.tls.key)
    return frozenset(name.lower().rstrip(".") for name in names)


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
