"""How often a call is made again, and for how long: the same for both clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from muster.client.endpoints import CHANGE_S
from muster.client.errors import ClientError

OnTrouble: TypeAlias = Callable[[ClientError, float], None]

_PAUSE_MAX_S: Final = 3.0


class RetryPolicy:
    """Knows whether the coordinator was ever reached. As long as it was not, the address is
    probably wrong, and nobody wants to wait long to hear that.
    """

    def __init__(self, on_trouble: OnTrouble | None) -> None:
        self.reached = False
        self._on_trouble = on_trouble

    def rules(self, first: ClientError, patience_s: float) -> dict[str, Any]:
        """The arguments of `tenacity.Retrying` and of `AsyncRetrying`, for a call that failed with
        `first`. Raises `first` where trying again is of no use.
        """
        if not first.passing:
            raise first
        # Loaded only now: a call that succeeds does not pay for it.
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
