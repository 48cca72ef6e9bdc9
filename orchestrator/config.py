"""The coordinator's configuration: `configs/coordinator.yaml` explains each setting."""

import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from muster.daemon.config_loader import load_config
from muster.daemon.errors import ConfigError, InsecureConfigError
from muster.daemon.listen_address import is_loopback
from muster.daemon.log_settings import Count, LogSettings, Port, Seconds
from muster.daemon.node_settings import NotGivenError, read_given
from muster.protocol.observations.interfaces import usable_name
from muster.protocol.observations.node_settings import NodeSetting
from muster.protocol.roles import Role
from muster.spec.errors import SpecError
from muster.spec.pool_defaults import check_defaults
from orchestrator.core.model.limits import CentralSettings
from orchestrator.core.rights.principals import Policy, Visibility
from orchestrator.core.storage.log_space import Bounds
from orchestrator.webhooks.allowlist import read_allowed, refused

SECRET_BYTES_MIN: Final = 16
PREFIX: Final = "MUSTER_COORDINATOR"
_MOVED: Final = {
    "pool_defaults": "is now part of `pools`; instead of pool_defaults: {lab: {time_limit: 24h}} "
    "write pools: {lab: {defaults: {time_limit: 24h}}}"
}
Priority = Annotated[int, msgspec.Meta(ge=0, le=100)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses at which users and agents reach the coordinator. With port 0 the kernel chooses
    one. `names` are the host names that requests may use.
    """

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 7077
    names: tuple[str, ...] = ()


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files: the certificate with its chain, its private key without a passphrase, and the CA
    that clients need, unless they trust it already. With `ca_key`, the CA's private key, the
    coordinator signs certificates of nodes that join.
    """

    cert: Path
    key: Path
    ca: Path | None = None
    ca_key: Path | None = None


class ListenAgents(msgspec.Struct, frozen=True, kw_only=True):
    """Address at which agents with a certificate reach the coordinator."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)] = "127.0.0.1"
    port: Port = 7079


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """Joining of nodes. With `approve`, each new node waits for `muster node accept`. `run_as`,
    `python` and `address` are printed in the lines for nodes. `certificate_s` is the lifetime of a
    node's certificate, which is renewed at two thirds of it. `wheels` is a directory filled by
    `muster up`, from which nodes without a package index install Muster.
    """

    approve: bool = False
    run_as: str = ""
    python: str = ""
    address: str = ""
    certificate_s: Annotated[float, msgspec.Meta(ge=60, le=10 * 366 * 86400)] = 90 * 86400.0
    wheels: Path | None = None


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper limits of the coordinator, so that no caller can exhaust it."""

    http_body_bytes_max: Count = 1 << 20
    agent_message_bytes_max: Count = 1 << 20
    agents_max: Count = 10_000
    new_nodes_per_hour: Count = 2000
    queued_jobs_max: Count = 100_000
    spec_bytes_per_user_max: Count = 128 << 20
    spec_bytes_max: Count = 256 << 20
    connections_per_token_max: Count = 1000
    pending_connections_per_address_max: Count = 4096
    streams_per_user_max: Count = 256
    streams_max: Count = 1024
    submits_per_s: Rate = 1000
    refusals_per_s: Rate = 100
    disk_reserve_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 36)] = 16 << 20


class JobLogs(msgspec.Struct, frozen=True, kw_only=True):
    """Storage of job output, and its retention. A `dir` of None is below the state directory. A
    `task_bytes_max` of None is half of `job_bytes_max`.
    """

    dir: Path | None = None
    keep_s: Annotated[float, msgspec.Meta(gt=0)] = 30 * 86400
    keep_bytes_max: Count = 100 << 30
    job_bytes_max: Count = 20 << 30
    task_bytes_max: Count | None = None
    free_bytes_min: Annotated[int, msgspec.Meta(ge=0)] = 256 << 20

    @property
    def bounds(self) -> Bounds:
        """The bytes stored of one job and of one task at most."""
        return Bounds(self.job_bytes_max, self.task_bytes_max or max(1, self.job_bytes_max // 2))


class QuarantineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Automatic drains. A node is drained if it was at fault in that many different jobs (0:
    never), or if its agent has started more than `restarts` times (0: never) within ten minutes. At
    most `pool_share` of a pool's nodes are drained in this way.
    """

    jobs: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    forgiven_after: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10
    pool_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.25
    restarts: Annotated[int, msgspec.Meta(ge=0, le=30)] = 5


class Bundles(msgspec.Struct, frozen=True, kw_only=True):
    """Storage of the code that travels with jobs: bytes of one job's code, of all the code of a
    user, and those that stay free on the disk, more than job logs leave free. Code that no live job
    names is kept for `keep_s` after its last use.
    """

    dir: Path | None = None
    bundle_bytes_max: Count = 4 << 30
    user_bytes_max: Count = 32 << 30
    free_bytes_min: Annotated[int, msgspec.Meta(ge=0)] = 1 << 30
    keep_s: Annotated[float, msgspec.Meta(ge=3600)] = 30 * 86400


class EndedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Retention of ended jobs: by age and by number."""

    keep_s: Annotated[float, msgspec.Meta(ge=3600)] = 365 * 86400
    keep_max: Count = 1_000_000


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a pool: `defaults` of its jobs, in the words of a job file, and the order of its
    queue. With `conservative`, the first `promises` waiting jobs get a latest start that later jobs
    may not delay, and with `easy` only the first. With `off`, no job goes ahead of another.
    """

    defaults: dict[str, Any] = {}
    backfill: Literal["conservative", "easy", "off"] = "conservative"
    promises: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class Hangs(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of hang detection: a job hangs if it was silent for `quiet_s` and for `gaps` times
    its longest gap so far. Also the thresholds for reporting a job that still computes or waits for
    a disk.
    """

    quiet_s: Seconds = 60.0
    gaps: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 5.0
    slow_s: Seconds = 600.0
    again_s: Seconds = 5.0


class Webhooks(msgspec.Struct, frozen=True, kw_only=True):
    """Webhook addresses that the `notify` of a job may name, and the file with the secret that
    signs the requests.
    """

    allow: tuple[str, ...] = ()
    secret_file: Path | None = None

    def __post_init__(self) -> None:
        if read_allowed(self.allow) and self.secret_file is None:
            raise ValueError(
                "webhooks.secret_file is not set: it signs webhook requests; create one with "
                "`head -c 32 /dev/urandom | base64`, readable only by the coordinator"
            )


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of agents, by pool, by label (`rack=a1`) and by name of the nodes, as in an agent's
    own file.
    """

    pools: dict[str, dict[str, Any]] = {}
    labels: dict[str, dict[str, Any]] = {}
    names: dict[str, dict[str, Any]] = {}

    @property
    def central(self) -> CentralSettings:
        """The settings for the core. Raises ValueError."""
        for label in self.labels:
            if not all(label.partition("=")):
                raise ValueError(f"nodes.labels.{label}: write a label as NAME=VALUE")
        return CentralSettings(
            _given("pools", self.pools),
            _given("labels", self.labels),
            _given("names", self.names),
        )


class PriorityMax(msgspec.Struct, frozen=True, kw_only=True):
    """The highest priority of the jobs of a role and of a team. Of the limits that apply to a user,
    the largest holds; without any, every priority is allowed.
    """

    roles: dict[Role, Priority] = {}
    teams: dict[str, Priority] = {}


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a coordinator; durations are in seconds."""

    listen: Listen = Listen()
    listen_agents: ListenAgents | None = None
    state_dir: Path = Path("/var/lib/muster/coordinator")
    tls: Tls | None = None
    join: Join = Join()
    tokens_file: Path | None = None
    visibility: Visibility = Visibility.PUBLIC
    priority_max: PriorityMax = PriorityMax()
    lease_s: Seconds = 300
    heartbeat_s: Seconds = 5
    prepare_timeout_s: Seconds = 300
    arrange_timeout_s: Seconds = 60
    start_timeout_s: Seconds = 120
    networks: tuple[str, ...] = ()
    pools: dict[str, Pool] = {}
    nodes: NodeSettings = NodeSettings()
    limits: RequestLimits = RequestLimits()
    quarantine: QuarantineSettings = QuarantineSettings()
    hangs: Hangs = Hangs()
    job_logs: JobLogs = JobLogs()
    ended_jobs: EndedJobs = EndedJobs()
    bundles: Bundles = Bundles()
    webhooks: Webhooks = Webhooks()
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        if self.lease_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"lease_s ({self.lease_s:g}) must be at least three times heartbeat_s "
                f"({self.heartbeat_s:g}), or one lost heartbeat ends jobs"
            )
        tls = self.tls
        if self.listen_agents is not None and (tls is None or not tls.ca or not tls.ca_key):
            raise ValueError(
                "listen_agents needs tls.ca and tls.ca_key: agents show certificates of that CA, "
                "and the coordinator signs them; `muster up` makes all of it"
            )
        for entry in self.networks:
            _check_network(entry)
        for name, pool in self.pools.items():
            _check_defaults(name, pool.defaults, self.webhooks)
        _ = self.nodes.central

    @property
    def policy(self) -> Policy:
        """The site's choices about rights."""
        limits = self.priority_max
        return Policy(visibility=self.visibility, roles=limits.roles, teams=limits.teams)

    @property
    def job_logs_path(self) -> Path:
        """Directory of job output."""
        return self.job_logs.dir or self.state_dir / "logs"

    @property
    def bundles_path(self) -> Path:
        """Directory of the code that travels with jobs."""
        return self.bundles.dir or self.state_dir / "bundles"

    @property
    def pool_defaults(self) -> dict[str, dict[str, Any]]:
        """The defaults of each pool's jobs."""
        return {name: pool.defaults for name, pool in self.pools.items()}

    @property
    def tokens_path(self) -> Path:
        """The tokens file. It must exist, because there is no anonymous mode."""
        return self.tokens_file or self.state_dir / "tokens"


def load(
    *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> CoordinatorConfig:
    """Read the configuration and check that it is safe to start with. Raises ConfigError."""
    config = load_config(
        CoordinatorConfig, prefix=PREFIX, file=file, environ=environ, flags=flags, moved=_MOVED
    )
    check_listen(config)
    return config


def _given(kind: str, groups: dict[str, dict[str, Any]]) -> dict[str, tuple[NodeSetting, ...]]:
    found = {}
    for group, tree in groups.items():
        origin = f"nodes.{kind}.{group}"
        try:
            found[group] = tuple(
                NodeSetting(name, msgspec.json.encode(value).decode(), origin)
                for name, value in read_given(tree)
            )
        except NotGivenError as error:
            raise ValueError(f"{origin}.{error}") from error
    return found


def _check_network(entry: str) -> None:
    if usable_name(entry):
        return
    try:
        ipaddress.ip_network(entry)
    except ValueError as error:
        raise ValueError(
            f"networks: {entry!r} is neither the name of an interface (ib0) nor a network "
            f"(10.1.0.0/16): {error}"
        ) from error


def _check_defaults(pool: str, tree: dict[str, Any], webhooks: Webhooks) -> None:
    try:
        spec = check_defaults(pool, tree)
    except SpecError as error:
        text = "; ".join(
            f"pools.{pool}.defaults{f'.{p.field}' if p.field else ''}: "
            f"{f'{p.value!r} ' if p.value else ''}{p.message}{f' ({p.hint})' if p.hint else ''}"
            for p in error.problems
        )
        raise ValueError(text) from error
    for url in spec.notify:
        if why := refused(url, read_allowed(webhooks.allow)):
            raise ValueError(f"pools.{pool}.defaults.notify: {url} {why}")


def webhook_secret(config: CoordinatorConfig) -> bytes:
    """Return the secret that signs webhook requests; empty if none are allowed. Raises
    ConfigError.
    """
    path = config.webhooks.secret_file
    if path is None or not config.webhooks.allow:
        return b""
    try:
        mode, secret = path.stat().st_mode, path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"webhooks.secret_file: {path} cannot be read: {error.strerror}"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"webhooks.secret_file: others can read {path}; run: chmod 600 {path}")
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"webhooks.secret_file: {path} holds fewer than {SECRET_BYTES_MIN} bytes; write more "
            "with: head -c 32 /dev/urandom | base64"
        )
    return secret


def ca_pem(config: CoordinatorConfig) -> bytes:
    """Return the CA that clients need; empty if they need none. Raises ConfigError."""
    if config.tls is None or config.tls.ca is None:
        return b""
    try:
        pem = config.tls.ca.read_bytes()
        ssl.create_default_context(cadata=pem.decode("ascii"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tls.ca: {config.tls.ca} is not a file of certificates: {error}"
        ) from error
    return pem


def check_listen(config: CoordinatorConfig) -> None:
    """Refuse to listen on a network without TLS. Raises InsecureConfigError; pure otherwise."""
    host = config.listen.host
    if any(letter.isspace() or letter in "/@?#" for letter in host):
        raise ConfigError(f"listen.host: expected an address or a host name, got {host!r}")
    if config.tls is None and not is_loopback(host):
        raise InsecureConfigError(
            f"listen.host: {host} is reachable from the network, where tokens can be read "
            "in transit without TLS; set tls.cert and tls.key, or listen on 127.0.0.1"
        )
