"""The client certificate of a connection, which only the listener of agents asks for."""

import hashlib

from aiohttp import web


def shown_by(request: web.Request) -> str:
    """Return the fingerprint of the certificate that the client showed; "" without one."""
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("ssl_object")
    der = None if connection is None else connection.getpeercert(binary_form=True)
    return hashlib.sha256(der).hexdigest() if der else ""
