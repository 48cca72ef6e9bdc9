"""Kinds of arguments that several verbs take."""

from __future__ import annotations

from typing import Any, Final, Literal

import click


class Duration(click.ParamType[float]):
    """`90m`, `1h`, `1d12h`: seconds as a float."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        from muster.spec.errors import RefusedError
        from muster.spec.units import duration

        try:
            return duration(str(value))
        except RefusedError as refused:
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
    """None for `all`, and for what was not given."""
    return given if isinstance(given, int) else None


class IdempotencyKey(click.ParamType[str]):
    """What names one submit. An empty one, of a variable that is not set, would be none at all."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        key = str(value)
        if not key.strip() or not (key.isascii() and key.isprintable()):
            self.fail(f"{key!r} is no key: write printable ASCII characters", param, ctx)
        return key


DURATION: Final = Duration()
IDEMPOTENCY_KEY: Final = IdempotencyKey()
