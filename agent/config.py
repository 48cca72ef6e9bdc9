"""The agent's configuration: `configs/agent.yaml` explains each setting."""

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec

from muster.daemon.config_loader import load_config, written_settings
from muster.daemon.errors import InsecureConfigError
from muster.daemon.listen_address import is_loopback
from muster.daemon.log_settings import LogSettings, Port, Seconds
from muster.daemon.node_settings import Processes
from muster.fabric.operator_rules import Rules

PREFIX: Final = "MUSTER_AGENT"
PEER_PORT: Final = 7079

# RFC 1123: a node's name becomes a host name in every peer's hosts file.
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SETTING_MAX: Final = 200
SITE_SETTINGS: Final = (
    "NCCL_CROSS_NIC",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_TOPO_FILE",
    "NCCL_IB_MERGE_NICS",
)
"""NCCL settings that depend on the site's network and cannot be probed: rails that are not
connected, traffic classes, a provider's topology, NICs that must not be merged."""
_POOL: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_INTERFACE: Final = r"^[A-Za-z0-9_.@-]{1,15}$"
SUBMITTER: Final = "SUBMITTER"
"""The value of `run_as` for the user who submitted the job; no account's name has capitals."""
# useradd's own rule, or SUBMITTER.
_USER: Final = r"^([a-z_][a-z0-9_-]{0,30}\$?|SUBMITTER)$"
# The syntax of DeviceAllow in systemd.
_DEVICE: Final = r"^(/dev/[A-Za-z0-9_][A-Za-z0-9_./-]*|(char|block)-[a-z0-9_-]+)$"
_ACCOUNT: Final = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


def default_node_name() -> str:
    """This machine's host name in lower case, without its domain; validated like a configured
    one."""
    return socket.gethostname().partition(".")[0].lower()


class PortSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The range of ports for the rendezvous of jobs, both ends included."""

    first: Port = 20_000
    last: Port = 29_999

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise ValueError(f"ports.last ({self.last}) is below ports.first ({self.first})")


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """Source of the names of a gang's nodes. `auto` means `file` if the agent runs as root
    and does not share its machine, else `off`."""

    mode: Literal["auto", "file", "private", "off"] = "auto"
    file: Path = Path("/etc/hosts")

    def __post_init__(self) -> None:
        if not self.file.is_absolute():
            raise ValueError(f"hosts.file {self.file} is not an absolute path")


class FabricSettings(Rules, frozen=True, kw_only=True):
    """`root`: the directory below which the agent reads sys, proc and etc for the fabric; only
    tests change it. `settings`: NCCL variables that only the network's operator can know."""

    root: Path = Path("/")
    settings: dict[str, str | int] = msgspec.field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """`settings` as environment variables."""
        return {name: str(value) for name, value in self.settings.items()}

    def __post_init__(self) -> None:
        for name, value in self.variables.items():
            if name not in SITE_SETTINGS:
                raise ValueError(
                    f"fabric.settings.{name} is not a setting here, unlike "
                    f"{', '.join(SITE_SETTINGS)}; "
                    "all others are planned, or belong into the env of a job"
                )
            if not value.isprintable() or not 0 < len(value) <= _SETTING_MAX:
                raise ValueError(f"fabric.settings.{name} is not a valid environment value")
        if not self.root.is_absolute():
            raise ValueError(f"fabric.root {self.root} is not an absolute path")


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """`kmsg`: the kernel's log; only tests name another file than /dev/kmsg."""

    kmsg: Path = Path("/dev/kmsg")

    def __post_init__(self) -> None:
        if not self.kmsg.is_absolute():
            raise ValueError(f"hardware.kmsg {self.kmsg} is not an absolute path")


class HangSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The interval between two samples of a task's ranks."""

    period_s: Seconds = 5.0


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of an agent."""

    coordinator: str = "http://127.0.0.1:7077"
    node: str = msgspec.field(default_factory=default_node_name)
    address: str | None = None
    interface: Annotated[str, msgspec.Meta(pattern=_INTERFACE)] | None = None
    state_dir: Path = Path("/var/lib/muster/agent")
    token_file: Path | None = None
    tls_ca: Path | None = None
    certificate: Path | None = None
    pool: Annotated[str, msgspec.Meta(pattern=_POOL)] = "default"
    labels: dict[str, str] = {}
    python: Path = Path(sys.executable)
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1024)] | Literal["auto"] = "auto"
    ports: PortSettings = PortSettings()
    peer_port: Port = PEER_PORT
    hosts: Hosts = Hosts()
    fabric: FabricSettings = FabricSettings()
    hardware: Hardware = Hardware()
    hangs: HangSettings = HangSettings()
    shared_host: bool = False
    shims: Literal["auto", "forked", "systemd"] = "auto"
    run_as: Annotated[str, msgspec.Meta(pattern=_USER)] | None = None
    uid_min: Annotated[int, msgspec.Meta(ge=1)] = 1000
    user_map: dict[str, str] = {}
    single_team: bool = False
    allow_root_jobs: bool = False
    private_tmp: bool | None = None
    hide_processes: bool | None = None
    fence: bool | None = None
    unkillable_s: Seconds = 60.0
    processes_max: Processes | None = None
    part_limits: Literal["requests", "shares", "none"] = "requests"
    devices_allowed: tuple[Annotated[str, msgspec.Meta(pattern=_DEVICE)], ...] = ()
    prolog: Path | None = None
    epilog: Path | None = None
    health_check: Path | None = None
    health_check_period_s: Seconds = 300.0
    hook_timeout_s: Seconds = 60.0
    git_config: Path | None = None
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        _check_node(self.node)
        _check_url(self.coordinator)
        if not self.state_dir.is_absolute():
            # The shims' working directories differ from the agent's.
            raise ValueError(f"state_dir {self.state_dir} is not an absolute path")
        if self.git_config is not None and not self.git_config.is_absolute():
            raise ValueError(f"git_config {self.git_config} is not an absolute path")
        if self.address is not None:
            _check_address(self.address)
        if self.hosts.mode == "file" and self.shared_host:
            raise ValueError(
                "hosts.mode is file and shared_host is true: the agents of one machine would write "
                "the same file; use private or off"
            )
        if self.shims == "systemd" and self.shared_host:
            raise ValueError(
                "shims is systemd and shared_host is true: the units of two agents would have the "
                "same names; use forked"
            )
        if self.run_as == "root" and not self.allow_root_jobs:
            raise ValueError("run_as is root, but allow_root_jobs is false: name another user")
        if self.run_as == SUBMITTER and self.allow_root_jobs:
            raise ValueError(
                f"run_as is {SUBMITTER} and allow_root_jobs is true: no submitter runs jobs as "
                "root; set allow_root_jobs to false"
            )
        for user, account in self.user_map.items():
            if not is_account(account):
                raise ValueError(f"user_map.{user}: {account!r} is not a user's name")

    @property
    def as_submitters(self) -> bool:
        """True if each job runs as the user who submitted it: root's default."""
        if self.run_as is None:
            return os.geteuid() == 0 and not self.allow_root_jobs
        return self.run_as == SUBMITTER

    @property
    def fences(self) -> bool:
        """True if the ports of gangs are for their own users and nodes only."""
        return self.as_submitters if self.fence is None else self.fence

    @property
    def has_private_tmp(self) -> bool:
        """True if each job has its own /tmp, /var/tmp and /dev/shm."""
        return self.as_submitters if self.private_tmp is None else self.private_tmp

    @property
    def hides_processes(self) -> bool:
        """True if jobs do not see the processes of other users."""
        return self.as_submitters if self.hide_processes is None else self.hide_processes


def is_account(name: str) -> bool:
    """True if a text can be the name of an account that jobs run as."""
    return _ACCOUNT.fullmatch(name) is not None


def load(
    *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> AgentConfig:
    """Read the configuration and check that it is safe to start with. Raises ConfigError."""
    config = load_config(AgentConfig, prefix=PREFIX, file=file, environ=environ, flags=flags)
    check_coordinator(config)
    return config


def written(*, file: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that this node's own file or environment sets, by path, each with its
    origin. Raises ConfigError."""
    return written_settings(AgentConfig, prefix=PREFIX, file=file, environ=environ)


def check_coordinator(config: AgentConfig) -> None:
    """Refuse to send a token over a network in the clear. Raises InsecureConfigError."""
    url = urlsplit(config.coordinator)
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        raise InsecureConfigError(
            f"coordinator: {config.coordinator} is reached over the network without TLS, so this "
            "node's token could be read on the way; use https:// (tls_ca names a CA of your own)"
        )


def _check_node(name: str) -> None:
    if not _LABEL.fullmatch(name) or name == "localhost":
        raise ValueError(
            f"node {name!r} is not a host name: use at most 63 lower-case letters, digits and "
            "inner hyphens"
        )
    if name.isdecimal():
        raise ValueError(f"node {name!r} would be read as an address: put a letter into it")


def _check_url(text: str) -> None:
    problem = f"coordinator {text!r} is not of the form https://host:port"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(problem) from error
    if url.scheme not in {"http", "https"} or not url.hostname or port == 0:
        raise ValueError(problem)
    if url.path not in {"", "/"} or url.query or url.fragment or url.username is not None:
        raise ValueError(f"{problem}: it must not have a user, path or query")


def _check_address(text: str) -> None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError(f"address {text!r} is not an IPv4 or IPv6 address") from error
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"address {text} is not reachable for peers")
