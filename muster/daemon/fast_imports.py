"""Imported before all else of a daemon: aiohttp and structlog, without what costs a start most.

As it is imported aiohttp makes two TLS contexts, and each reads every certificate of the machine;
structlog imports rich where that is installed, to print tracebacks in colours. Together that is as
much as all the rest. Here the one context reads its certificates when it is first used, the other,
which verifies nothing, never, and rich stays out.
"""

import contextlib
import ssl
import sys
from collections.abc import Iterator
from typing import Any


class LazySSLContext(ssl.SSLContext):
    """As `ssl.create_default_context` makes it, but that certificates are read at first use."""

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
    # Only the context that verifies nothing is asked for that.
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
