"""Starting shims, forked or as systemd units, and talking to them over their sockets.

`agent.tasks` calls it. The code that runs inside a shim is `agent.shim`.
"""
