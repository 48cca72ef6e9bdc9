"""The messages of agent/shim/messages.py on the agent's side: as dataclasses, which msgspec encodes
and decodes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from agent.shim.messages import *  # noqa: F403
from agent.shim.messages import MESSAGES, ShimCommand

for _message in MESSAGES:
    dataclass(_message)


def encode(command: ShimCommand) -> bytes:
    """Encode a command as the shim reads it (agent/shim/commands.py)."""
    return msgspec.json.encode({"cmd": command.cmd, **vars(command)})
