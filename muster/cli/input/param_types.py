"""Parameter types that several commands share."""

from __future__ import annotations

from typing import Any, Final, Literal

import click


class Duration(click.ParamType[float]):
    """A time such as `90m`, `1h` or `1d12h`, converted to seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        from muster.spec.errors import InvalidValueError
        from muster.spec.units import duration

        try:
            return duration(str(value))
        except InvalidValueError as refused:
            self.fail(f"{value!r} {refused.message}; {refused.hint}", param, ctx)


All = Literal["all"]


class CountOrAll(click.ParamType[int | All]):
    """A number from 0 to `most`, or `all`."""

    name = "N|all"

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | All:
        if isinstance(value, int):
            return value
        if value == "all":
            return "all"
        text = str(value)
        if not (text.isascii() and text.isdecimal()):
            self.fail(f"{value!r} is neither a number from 0 nor `all`", param, ctx)
        if len(text.lstrip("0")) > len(str(self._most)) or int(text) > self._most:
            self.fail(f"{value!r} is over {self._most}, and not `all`", param, ctx)
        return int(text)


def number_of(given: int | All | None) -> int | None:
    """Return the number. Returns None for `all` and for an option that was not given."""
    return given if isinstance(given, int) else None


class IdempotencyKey(click.ParamType[str]):
    """The key of one submit. Empty keys, such as from an unset variable, are refused."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        key = str(value)
        if not key.strip() or not (key.isascii() and key.isprintable()):
            self.fail(f"{key!r} is not a valid key: use printable ASCII characters", param, ctx)
        return key


DURATION: Final = Duration()
IDEMPOTENCY_KEY: Final = IdempotencyKey()
