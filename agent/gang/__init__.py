"""Network setup of a gang on this node before it starts: names, ports, and a check that its nodes
reach each other. Later, the agents of a gang vouch for each other.

`agent.tasks` and the daemon call it. It never starts or stops a process of a job.
"""
