"""A Python client of the coordinator: synchronous, typed, and patient over its restarts.

from muster.client import Client
job = Client(url, token).submit({"run": "train.py", "nodes": 4, "workdir": "/data/x"}, key)
"""

from muster.client.client import Client
from muster.client.errors import (
    ApiError,
    BadAnswerError,
    ClientError,
    NoSuchJobError,
    SettingsError,
    UnreachableError,
)
from muster.client.settings import Settings, load_settings
from muster.client.tail import LogQuery

__all__ = [
    "ApiError",
    "BadAnswerError",
    "Client",
    "ClientError",
    "LogQuery",
    "NoSuchJobError",
    "Settings",
    "SettingsError",
    "UnreachableError",
    "load_settings",
]
