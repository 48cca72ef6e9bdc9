"""The identity of an agent: its node's name, its installation id, and the inventory of its node."""

from __future__ import annotations

import secrets
from importlib import metadata
from pathlib import Path
from typing import Final

import structlog

from agent.config import AgentConfig
from agent.core.state import AgentIdentity
from agent.probe import host
from agent.probe.network import NetworkProbe
from agent.taskdirs.taskdirs import has_tasks
from muster.daemon.durable_files import write_atomic
from muster.daemon.errors import FileError
from muster.protocol.ids import check_node_name
from muster.protocol.link.control_channel import Inventory

_AGENT_ID: Final = "agent_id"
_NODE: Final = "node"
_DISTRIBUTION: Final = "muster-cluster"

_log = structlog.get_logger("agent")


def identify(config: AgentConfig, network: NetworkProbe) -> tuple[AgentIdentity, Inventory]:
    """Determine this agent's identity and its node's inventory.

    May wait for a name server. Raises DaemonError.
    """
    host.check_labels(config)
    interfaces = host.interfaces(config, network)
    identity = AgentIdentity(
        node=check_node_name(config.node),
        agent_id=agent_id(config.state_dir),
        boot_id=host.boot_id(),
        version=version(),
        allow_root_jobs=config.allow_root_jobs,
        instance=secrets.token_hex(8),
        hide_processes=config.hides_processes,
        git_config=str(config.git_config or ""),
    )
    return identity, host.inventory(config, interfaces)


def agent_id(state_dir: Path) -> str:
    """The id of this installation, created once. It distinguishes a restart from a second node of
    the same name.

    Raises FileError.
    """
    path = state_dir / _AGENT_ID
    text = read_name(path)
    if not text:
        text = secrets.token_hex(16)
        write_atomic(path, f"{text}\n".encode(), 0o600)
    return text


def node_name(config: AgentConfig) -> str:
    """The node name under which this agent joins.

    A node that is renamed while it has tasks keeps its old name. Otherwise the coordinator would
    take the tasks for those of a lost node and have them ended here. That holds after a reboot,
    too: no task runs then, but the coordinator may not have the exit codes yet. Raises FileError.
    """
    path = config.state_dir / _NODE
    before = read_name(path).partition(" ")[0]
    if before in {"", config.node} or not has_tasks(config.state_dir):
        if before != config.node:
            write_atomic(path, f"{config.node}\n".encode(), 0o600)
        return config.node
    _log.warning(
        "renamed",
        why=f"this node was {before} when it took the tasks that it has, and stays {before} until "
        f"a start without tasks; then it is {config.node}",
    )
    return before


def read_name(path: Path) -> str:
    """The content of a one-line file, or "" if it does not exist. Raises FileError."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def version() -> str:
    """The installed version of Muster."""
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0"
