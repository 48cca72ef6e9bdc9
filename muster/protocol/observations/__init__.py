"""Observations of a node and its tasks, as the agent reports them and users see them: disks, GPUs,
interfaces, traffic, hardware events.

Agent and coordinator use them. Nothing here measures.
"""
