"""Python clients of the coordinator: typed, and patient over its restarts.

Users' programs, the command line and `agent join` call them. A client never imports a daemon.

from muster import Client

with_defaults = Client()
job = with_defaults.submit({"run": "train.py", "nodes": 4, "workdir": "/data/x"})
"""

from typing import TYPE_CHECKING, Any

from muster.client.client import Client
from muster.client.config import Settings, load_settings
from muster.client.errors import (
    ApiError,
    BadAnswerError,
    ClientError,
    NoSuchJobError,
    NoSuchNodeError,
    SettingsError,
    UnreachableError,
)

if TYPE_CHECKING:
    from muster.client.async_client import AsyncClient
    from muster.client.log_stream import LogQuery

__all__ = [
    "ApiError",
    "AsyncClient",
    "BadAnswerError",
    "Client",
    "ClientError",
    "LogQuery",
    "NoSuchJobError",
    "NoSuchNodeError",
    "Settings",
    "SettingsError",
    "UnreachableError",
    "load_settings",
]


def __getattr__(name: str) -> Any:
    """Import clients on first access: aiohttp is slow to import, and few commands read logs."""
    if name == "AsyncClient":
        from muster.client.async_client import AsyncClient

        return AsyncClient
    if name == "LogQuery":
        from muster.client.log_stream import LogQuery

        return LogQuery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
