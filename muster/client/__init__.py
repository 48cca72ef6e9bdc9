"""Python clients of the coordinator: typed, and patient over its restarts.

from muster import Client

with_defaults = Client()
job = with_defaults.submit({"run": "train.py", "nodes": 4, "workdir": "/data/x"})
"""

from typing import TYPE_CHECKING, Any

from muster.client.client import Client
from muster.client.errors import (
    ApiError,
    BadAnswerError,
    ClientError,
    NoSuchJobError,
    NoSuchNodeError,
    SettingsError,
    UnreachableError,
)
from muster.client.settings import Settings, load_settings
from muster.client.tail import LogQuery

if TYPE_CHECKING:
    from muster.client.aio import AsyncClient

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
    """`AsyncClient` when it is asked for: aiohttp takes longer to import than a command may run."""
    if name == "AsyncClient":
        from muster.client.aio import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
