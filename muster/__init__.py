"""The user-facing clients and command line, and code that both daemons share. Imports neither
daemon.

`from muster import Client, AsyncClient`: docs/reference/client.md.
"""

# Not from `typing`, because each shim imports this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from muster.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> "Any":
    """Import the clients on first access, so that other imports of this package stay fast."""
    if name in __all__:
        import muster.client

        return getattr(muster.client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
