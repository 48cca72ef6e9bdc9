"""Settings that the coordinator gives this node, within what it may give.

The node's own file and environment win: what an administrator of the node has written there holds,
and `muster node show` names it as the origin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog
from msgspec import structs

from agent.config import AgentConfig
from muster.daemon.node_settings import GIVEN, NotGivenError, check_given
from muster.protocol.observations.node_settings import NodeSetting

DEFAULT: Final = "default"
_GIVEN_MAX: Final = 64
_CHARS_MAX: Final = 200
_LOGGED_MAX: Final = 8
_VALUE_CHARS_MAX: Final = 200

_log = structlog.get_logger("agent.settings")


class SettingsInForce:
    """The agent's configuration, with what the coordinator gives. `config` is in force."""

    def __init__(self, config: AgentConfig, own: Mapping[str, str]) -> None:
        """`own` has the settings of the node's own file and environment, by path, each with its
        origin."""
        self._base = config
        self._own = own
        self._given: dict[str, tuple[Any, str]] = {}
        self.config = config

    def use(self, given: Sequence[NodeSetting]) -> None:
        """Use these settings instead of those given before. Logs those that are refused."""
        refused: dict[str, str] = {}
        self._given = {}
        self.config = self._base
        for setting in given[:_GIVEN_MAX]:
            name, origin = _text(setting.name), _text(setting.origin)
            try:
                # A truncated or deeply nested value does not decode and is refused.
                value = check_given(name, msgspec.json.decode(setting.value[:_VALUE_CHARS_MAX]))
                changed = _with(self.config, name, value)
            except (NotGivenError, msgspec.DecodeError, ValueError, RecursionError) as error:
                refused[name] = _text(f"from {origin}: {error}")
                continue
            self._given[name] = value, origin
            if name not in self._own:
                self.config = changed
        if refused:
            _log.warning("settings_refused", why=dict(list(refused.items())[:_LOGGED_MAX]))
        _log.info("settings_given", settings={name: it[0] for name, it in self._given.items()})

    def shown(self) -> tuple[NodeSetting, ...]:
        """Return the settings that a coordinator may give, as they are in force."""
        return tuple(
            NodeSetting(name, _json(_value(self.config, name)), self._origin(name))
            for name in GIVEN
        )

    def _origin(self, name: str) -> str:
        value, origin = self._given.get(name, (None, ""))
        if name not in self._own:
            return f"coordinator's {origin}" if origin else DEFAULT
        over = f", over {_json(value)} of the coordinator's {origin}" if origin else ""
        return f"{self._own[name]}{over}"


def _value(config: msgspec.Struct, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _with(config: AgentConfig, path: str, value: Any) -> AgentConfig:
    """Return the configuration with one more setting. Raises ValueError if it is not valid."""
    group, _, name = path.rpartition(".")
    if not group:
        return structs.replace(config, **{name: value})
    return structs.replace(
        config, **{group: structs.replace(getattr(config, group), **{name: value})}
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text(text: str) -> str:
    """Return a text of the coordinator as one line that cannot fill a log."""
    return "".join(char if char.isprintable() else " " for char in text[:_CHARS_MAX])
