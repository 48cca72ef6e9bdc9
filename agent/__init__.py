"""The agent of one node. `agent.__main__` runs the daemon, which holds the node's link to the
coordinator, its tasks and its monitors. `muster agent` and systemd start it as a process.

An agent never decides about a job: it does what the coordinator orders, and reports what it sees.
It keeps no journal, so whatever must survive it belongs to a shim or to the coordinator.
"""
