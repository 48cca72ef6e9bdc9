"""`muster doctor`: what is wrong with this node's fabric, in place of this process."""

from __future__ import annotations

from muster.cli.daemons import daemon_command

command = daemon_command("doctor", "agent", "doctor")
