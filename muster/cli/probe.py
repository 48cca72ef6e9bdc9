"""`muster probe`: what this node has for RDMA, in place of this process."""

from __future__ import annotations

from muster.cli.daemons import daemon_command

command = daemon_command("probe", "agent", "probe")
