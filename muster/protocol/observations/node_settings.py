"""Settings of an agent, as the two sides of a link name them."""

from __future__ import annotations

import msgspec


class NodeSetting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A setting by its path in the agent's configuration (`hangs.period_s`), its value as JSON, and
    where the value comes from, in words.
    """

    name: str
    value: str
    origin: str = ""


class GiveSettings(msgspec.Struct, frozen=True, omit_defaults=True, tag="settings"):
    """The settings that the coordinator gives a node, all of them, after they have changed. An
    agent refuses those that it has no right to give. An agent of an earlier version ignores the
    message, and gets the settings when it connects again.
    """

    settings: tuple[NodeSetting, ...] = ()
