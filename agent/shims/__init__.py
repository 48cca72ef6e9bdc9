"""Shim backends (forked, or systemd units), and the connection to a shim's socket.

`agent.tasks` calls it. The code that runs inside a shim is `agent.shim`. The package never signals
a rank itself: it orders the shim to.
"""
