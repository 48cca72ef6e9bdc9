"""Probes of an agent's node: its inventory, its network, its interpreter and its tools.

The daemon calls them for each new connection, and `muster probe` and `muster doctor` call
`agent.probe.fabric`. Probes only read. A value that cannot be read is unknown and never stops the
agent.
"""
