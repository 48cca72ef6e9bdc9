"""Import aiohttp and structlog without their slowest steps. Daemons import this module first.

On import, aiohttp makes two TLS contexts, and each reads every certificate of the machine.
structlog imports rich, if installed, for coloured tracebacks. Together these take as long as the
rest of a daemon's start. Here, one context reads its certificates at first use, the other, which
verifies nothing, never reads any, and rich is not imported.
"""

import contextlib
import ssl
import sys
from collections.abc import Iterator
from typing import Any


class LazySSLContext(ssl.SSLContext):
    """Like `ssl.create_default_context`, but certificates are read at first use."""

    _read = False

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        if not self._read:
            self._read = True
            self.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return super().wrap_bio(*arguments, **more)


def _read_nothing(_: ssl.SSLContext) -> None:
    pass


@contextlib.contextmanager
def _without_certificates() -> Iterator[None]:
    whole = ssl.create_default_context

    def make(*_: object, **__: object) -> ssl.SSLContext:
        return LazySSLContext(ssl.PROTOCOL_TLS_CLIENT)

    ssl.create_default_context = make
    # Only the context that verifies nothing calls this.
    ssl.SSLContext.set_default_verify_paths = _read_nothing  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ssl.create_default_context = whole
        del ssl.SSLContext.set_default_verify_paths


@contextlib.contextmanager
def _without_rich() -> Iterator[None]:
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["rich"]


with _without_certificates(), _without_rich():
    import aiohttp  # noqa: F401
    import structlog  # noqa: F401
