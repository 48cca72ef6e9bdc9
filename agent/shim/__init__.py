"""The shim: the processes of one task, their lease and the record of their end.

`agent.shims` starts it and talks to it over a socket. It uses only the standard library, outlives
the agent, and never talks to the coordinator.
"""
