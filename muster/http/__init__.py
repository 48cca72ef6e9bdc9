"""Bodies and responses of the HTTP API.

The coordinator and the clients share them, so that no field is written twice. The package is pure
and never makes a request.
"""
