"""Messages with what the coordinator gives a node while it is connected.

The welcome has the same. An agent of an earlier version ignores the messages, and gets what they
have when it connects again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.protocol.observations.node_settings import NodeSetting

USERS_MAX: Final = 256
"""With more users, a node is sent none, and judges nothing by them."""


class GiveSettings(msgspec.Struct, frozen=True, omit_defaults=True, tag="settings"):
    """The settings of this node have changed: all of them. The agent refuses those that no
    coordinator may give.
    """

    settings: tuple[NodeSetting, ...] = ()


class GiveUsers(msgspec.Struct, frozen=True, omit_defaults=True, tag="users"):
    """The users who may submit jobs have changed: all of them, or None if they are too many. A node
    that runs jobs as their submitters refuses every job if none of them has an account there.
    """

    users: tuple[str, ...] | None = None


Given = GiveSettings | GiveUsers
