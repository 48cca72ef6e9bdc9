"""The logging settings and setting types that both daemons share."""

from typing import Annotated

import msgspec

from muster.daemon.logging import Format, Level

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=30 * 86400)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Log level and format; `auto` is console on a terminal and JSON elsewhere."""

    level: Level = "info"
    format: Format = "auto"
