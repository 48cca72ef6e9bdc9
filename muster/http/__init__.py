"""Bodies and responses of the HTTP API, shared by coordinator and client. Pure."""
