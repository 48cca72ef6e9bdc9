"""`muster restore`: a backup becomes the journal of a coordinator; in place of this process."""

from __future__ import annotations

from muster.cli.daemons import daemon_command

command = daemon_command("restore", "orchestrator", "restore")
