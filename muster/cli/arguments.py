"""Kinds of arguments that several verbs take."""

from __future__ import annotations

from typing import Any, Final

import click


class Duration(click.ParamType[float]):
    """`90m`, `1h`, `1d12h`: seconds as a float."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        from muster.spec.problems import RefusedError
        from muster.spec.units import duration

        try:
            return duration(str(value))
        except RefusedError as refused:
            self.fail(f"{value!r} {refused.message}; {refused.hint}", param, ctx)


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
