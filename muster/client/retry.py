"""Retry rules, the same for both clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from muster.client.endpoints import CHANGE_S
from muster.client.errors import ClientError

OnTrouble: TypeAlias = Callable[[ClientError, float], None]

_PAUSE_MAX_S: Final = 3.0


class RetryPolicy:
    """Tracks whether the coordinator was ever reached. Until then the address is probably wrong, so
    the retry time is shorter."""

    def __init__(self, on_trouble: OnTrouble | None) -> None:
        self.reached = False
        self._on_trouble = on_trouble

    def rules(self, first: ClientError, patience_s: float) -> dict[str, Any]:
        """Return the arguments of `tenacity.Retrying` and `AsyncRetrying` for a call that failed
        with `first`. Raises `first` if it is not transient."""
        if not first.passing:
            raise first
        # Import it only now, so that successful calls do not pay for it.
        import tenacity

        if not self.reached:
            patience_s = min(patience_s, CHANGE_S)
        if self._on_trouble is not None:
            self._on_trouble(first, patience_s)
        return {
            "retry": tenacity.retry_if_exception(
                lambda error: isinstance(error, ClientError) and error.passing
            ),
            "wait": tenacity.wait_random_exponential(multiplier=0.1, max=_PAUSE_MAX_S),
            "stop": tenacity.stop_after_delay(patience_s),
            "reraise": True,
        }
